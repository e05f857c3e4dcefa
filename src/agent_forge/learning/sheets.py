"""Rows to learn planning from as tokens: one list of tools, and behind it several requests with their answers.

The requests of a sheet see the tools and not each other, so the longest part of a prompt is read once for all of them.
Only answers are learnt. A plan row without company is a sheet of one request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from agent_forge.agents.planner.script import request_text, tools_text
from agent_forge.errors import DataError
from agent_forge.forge.training.packing import IGNORE, PARTS, Batch, PackedRows, best_fit
from agent_forge.learning.rows import PlanRow


@dataclass(frozen=True)
class PlanSheets(PackedRows):
    """Packed sheets: `documents` are sheet * PARTS + part (-1: padding), `learnt` marks the tokens of answers."""

    positions: np.ndarray  # [rows, length + 1], as are all
    learnt: np.ndarray

    def take(self, rows: Any) -> Batch:
        tokens = torch.from_numpy(self.tokens[rows].astype(np.int64))
        documents = torch.from_numpy(self.documents[rows].astype(np.int64))
        follows = torch.from_numpy(self.learnt[rows])[:, 1:] & (documents[:, 1:] == documents[:, :-1])
        targets = tokens[:, 1:].masked_fill(~follows, IGNORE)
        positions = torch.from_numpy(self.positions[rows].astype(np.int64))
        return Batch(tokens[:, :-1], targets, documents[:, :-1], positions[:, :-1])


@dataclass(frozen=True)
class Sheet:
    """The tokens of a sheet, and of each the part and position, and whether it is learnt."""

    tokens: list[int]
    parts: list[int]
    positions: list[int]
    learnt: list[bool]

    @classmethod
    def of(cls, tools: Sequence[int], pairs: Iterable[tuple[Sequence[int], Sequence[int]]], most: int) -> Sheet:
        """The tools and as many pairs of request and answer as fit into `most` tokens."""
        sheet = cls([*tools], [0] * len(tools), [*range(len(tools))], [False] * len(tools))
        for part, (request, answer) in enumerate(pairs, 1):
            size = len(request) + len(answer)
            if len(sheet.tokens) + size > most or part == PARTS:
                break
            sheet.tokens.extend([*request, *answer])
            sheet.parts.extend([part] * size)
            sheet.positions.extend(range(len(tools), len(tools) + size))
            sheet.learnt.extend([False] * len(request) + [True] * len(answer))
        return sheet


def encode_sheets(groups: Sequence[Sequence[PlanRow]], tokenizer: Any, length: int, end: int) -> list[Sheet]:
    """Groups of rows over the same tools as sheets of at most `length` tokens. What does not fit on one sheet goes on
    the next; a row that is too long for a sheet of its own is left out.
    `tokenizer` is one of the library tokenizers, `end` the token that ends an answer."""
    texts: list[str] = []
    for group in groups:
        texts.append(tools_text(group[0].tools) if group[0].steps is None else "")
        for row in group:
            texts += [request_text(row.request), row.answer]
    ids = iter([each.ids for each in tokenizer.encode_batch(texts, add_special_tokens=False)])
    sheets = []
    for group in groups:
        tools = next(ids)
        sheets += fill_sheets(tools, [(next(ids), [*next(ids), end]) for _ in group], length)
    return sheets


def fill_sheets(
    shared: Sequence[int], pairs: Sequence[tuple[Sequence[int], Sequence[int]]], length: int
) -> list[Sheet]:
    """Pairs of request and answer on sheets that begin with what they share. A pair too long for one is left out."""
    sheets = []
    while pairs:
        sheet = Sheet.of(shared, pairs, length + 1)
        placed = max(sheet.parts, default=0)
        if placed:
            sheets.append(sheet)
        pairs = pairs[placed or 1 :]
    return sheets


def pack_sheets(sheets: Sequence[Sheet], length: int) -> PlanSheets:
    """Sheets side by side in rows of `length` inputs. Raises DataError if there are none."""
    if not sheets:
        raise DataError("there is nothing to learn from", where="pack_sheets", fix="Check the rows with `audit`")
    rows = best_fit([len(sheet.tokens) for sheet in sheets], length + 1)
    shape = (len(rows), length + 1)
    tokens, positions = np.zeros(shape, np.int32), np.zeros(shape, np.int16)
    documents, learnt = np.full(shape, -1, np.int32), np.zeros(shape, bool)
    for row, members in enumerate(rows):
        at = 0
        for member in members:
            sheet = sheets[member]
            place = slice(at, at + len(sheet.tokens))
            tokens[row, place], positions[row, place] = sheet.tokens, sheet.positions
            documents[row, place] = np.array(sheet.parts) + member * PARTS
            learnt[row, place] = sheet.learnt
            at = place.stop
    return PlanSheets(tokens, documents, positions, learnt)
