"""Documents into rows of equal length: every row starts with BOS, and almost no token is padding or thrown away.

A document longer than a row is cut into pieces, each with its own BOS; the pieces are packed best-fit, longest first
(Ding et al., 2404.10830), each into the row with the least room that still holds it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agent_forge.errors import DataError, UsageError

IGNORE = -100


@dataclass(frozen=True)
class PackedRows:
    """`tokens` [rows, length + 1] and, for each token, the number of its document (-1: padding)."""

    tokens: np.ndarray
    documents: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def length(self) -> int:
        return int(self.tokens.shape[1]) - 1

    @property
    def used(self) -> float:
        """The share of the places that hold a token."""
        return float((self.documents >= 0).mean())

    def batch(self, step: int, rows: int, seed: int) -> Batch:
        """The batch of a step: a function of the step alone, so a resumed run needs no position in the data.

        Rows are drawn without replacement within an epoch; a batch may reach over the end of one.
        """
        first = step * rows
        places = np.arange(first, first + rows)
        picked = [_order(len(self), int(place) // len(self), seed)[place % len(self)] for place in places]
        return self.take(np.array(picked))

    def take(self, rows: Any) -> Batch:
        """Inputs, targets (-100 for padding and for the first token of the next document) and document numbers."""
        tokens = torch.from_numpy(self.tokens[rows].astype(np.int64))
        documents = torch.from_numpy(self.documents[rows].astype(np.int64))
        follows = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] >= 0)
        return Batch(tokens[:, :-1], tokens[:, 1:].masked_fill(~follows, IGNORE), documents[:, :-1])


@dataclass(frozen=True)
class StagedRows(PackedRows):
    """Rows of a curriculum: each stage has its own, from its first step on. `stages` are (first step, first row).

    >>> tokens = np.arange(12).reshape(4, 3)
    >>> rows = StagedRows(tokens, np.zeros_like(tokens), ((0, 0), (10, 3)))
    >>> rows.batch(9, 2, seed=0).inputs.max() < 9, rows.batch(10, 2, seed=0).inputs.tolist()
    (tensor(True), [[9, 10], [9, 10]])
    """

    stages: tuple[tuple[int, int], ...] = ((0, 0),)

    @staticmethod
    def of(stages: Sequence[tuple[int, PackedRows]]) -> StagedRows:
        """The stages' rows in one; each comes with its first step, the first with 0."""
        sizes = [0, *(len(rows) for _, rows in stages)]
        firsts = [int(first) for first in np.cumsum(sizes)[:-1]]
        tokens, documents = ([getattr(rows, name) for _, rows in stages] for name in ("tokens", "documents"))
        starts = tuple((step, first) for (step, _), first in zip(stages, firsts, strict=True))
        return StagedRows(np.concatenate(tokens), np.concatenate(documents), starts)

    def batch(self, step: int, rows: int, seed: int) -> Batch:
        """The batch of a step, from the rows of the stage that the step is in."""
        now = max(number for number, (first_step, _) in enumerate(self.stages) if first_step <= step)
        first_step, first = self.stages[now]
        end = self.stages[now + 1][1] if now + 1 < len(self.stages) else len(self)
        part = PackedRows(self.tokens[first:end], self.documents[first:end])
        return part.batch(step - first_step, rows, seed)


@lru_cache(maxsize=4)
def _order(rows: int, epoch: int, seed: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(rows)


@dataclass(frozen=True)
class Batch:
    inputs: Tensor
    targets: Tensor
    documents: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    def split(self, rows: int) -> Iterator[Batch]:
        for start in range(0, len(self), rows):
            part = slice(start, start + rows)
            yield Batch(self.inputs[part], self.targets[part], self.documents[part])

    def every(self, world: int, rank: int) -> Batch:
        """The share of one of several processes. Raises UsageError if there is not a row for each."""
        if len(self) < world:
            raise UsageError(f"{len(self)} rows cannot be shared by {world} processes", fix="raise batch_rows")
        part = slice(rank, None, world)
        return Batch(self.inputs[part], self.targets[part], self.documents[part])

    def to(self, device: torch.device) -> Batch:
        if device.type != "cuda":
            return Batch(self.inputs.to(device), self.targets.to(device), self.documents.to(device))
        moved = (x.pin_memory().to(device, non_blocking=True) for x in (self.inputs, self.targets, self.documents))
        return Batch(*moved)

    def copy(self, other: Batch) -> None:
        """Takes over another batch's numbers, in place."""
        pairs = ((self.inputs, other.inputs), (self.targets, other.targets), (self.documents, other.documents))
        for mine, its in pairs:
            mine.copy_(its.pin_memory() if mine.is_cuda else its, non_blocking=True)


def encode(tokenizer: Any, texts: Sequence[str], eos: bool = True) -> list[np.ndarray]:
    """Token numbers of each text, without BOS (packing adds it), with EOS at the end unless told otherwise."""
    ending = [tokenizer.eos_token_id] if eos and tokenizer.eos_token_id is not None else []
    found: list[np.ndarray] = []
    for start in range(0, len(texts), 512):
        part = tokenizer(list(texts[start : start + 512]), add_special_tokens=False)["input_ids"]
        found.extend(np.array([*ids, *ending], dtype=np.int32) for ids in part)
    return found


def pack(documents: Sequence[np.ndarray], length: int, bos: int, pad: int = 0, alone: bool = False) -> PackedRows:
    """Rows of `length` inputs and as many targets. `alone` gives every piece its own row, as evaluation wants it.

    Raises DataError if there is nothing to pack.

    >>> rows = pack([np.arange(5), np.arange(30), np.arange(9)], length=15, bos=99)
    >>> rows.tokens.shape, round(rows.used, 2)
    ((3, 16), 1.0)
    """
    pieces = [
        (number, document[start : start + length])
        for number, document in enumerate(documents)
        for start in range(0, len(document), length)
    ]
    if not pieces:
        raise DataError("there is no text to pack", where="pack", fix="check the loader's filters")
    plan = [[i] for i in range(len(pieces))] if alone else _best_fit([len(p) + 1 for _, p in pieces], length + 1)
    tokens = np.full((len(plan), length + 1), pad, dtype=np.int32)
    numbers = np.full((len(plan), length + 1), -1, dtype=np.int32)
    for row, members in enumerate(plan):
        at = 0
        for member in members:
            number, piece = pieces[member]
            tokens[row, at] = bos
            tokens[row, at + 1 : at + 1 + len(piece)] = piece
            numbers[row, at : at + 1 + len(piece)] = number
            at += 1 + len(piece)
    return PackedRows(tokens, numbers)


def _best_fit(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Which pieces share a row. Rows are found by the room left in them: there are at most `capacity` kinds."""
    rows: list[list[int]] = []
    with_room: dict[int, list[int]] = {}
    rooms: list[int] = []  # the keys of with_room, sorted
    for piece in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        at = bisect_left(rooms, sizes[piece])
        if at == len(rooms):
            row, room = len(rows), capacity
            rows.append([])
        else:
            room = rooms[at]
            row = with_room[room].pop()
            if not with_room[room]:
                del with_room[room]
                rooms.pop(at)
        rows[row].append(piece)
        left = room - sizes[piece]
        if left >= 2:  # a piece is at least BOS and one token
            if left not in with_room:
                with_room[left] = []
                insort(rooms, left)
            with_room[left].append(row)
    return rows
