"""Answers to one prompt read as one row: the prompt once, then the answers, each of which sees the prompt and itself.

What a learning pass reads of eight answers to a prompt of 400 tokens is then 400 tokens of prompt, not 3,200. The mask
and the restarting positions are those of `packing.Batch`; log-probabilities and gradients stay the same.

Shapes: B rows of T tokens, laid out as S sheets of U tokens.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from agent_forge.forge.training.experience import row_lengths
from agent_forge.forge.training.packing import PARTS, Batch
from agent_forge.inference.graph_step import sees_all


def sheet_width(model: Any) -> int | None:
    """The model's width if it can read sheets: rotary positions, every layer sees all tokens, and any mask is taken."""
    config = model.config.get_text_config()
    plain = (
        getattr(config, "rope_parameters", None)
        and sees_all(config)
        and not getattr(model, "_is_stateful", False)
        and getattr(config, "_attn_implementation", None) in ("sdpa", "eager")
    )
    return int(config.hidden_size) if plain else None


def sheets_of_rows(tokens_BT: Tensor, mask_BT: Tensor, width: int | None) -> list[list[int]]:
    """Which rows share a sheet, the longest rows first; without a `width` each row stays alone.

    Another answer of L tokens on a sheet of T tokens saves reading its prompt of P again, and costs attention to the
    T - P tokens that it must not see. Per layer a token costs about 24 D^2 operations and a pair of tokens 4 D, which
    take twice as long under a mask, so an answer joins while 2 L (T - P) < P (3 D + P). The sheets of a prompt then get
    as many answers each: all sheets are padded to the longest.
    """
    order = row_lengths(mask_BT).argsort(descending=True, stable=True).tolist()
    if width is None:
        return [[row] for row in order]
    spans = _answers(mask_BT)
    of_prompt: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for row in order:
        of_prompt[tuple(tokens_BT[row, : spans[row][0]].tolist())].append(row)
    sheets: list[list[int]] = []
    for prompt, rows in of_prompt.items():
        saved, count, taken = len(prompt) * (3 * width + len(prompt)), 1, 0  # taken: by answers, of the newest sheet
        for length in (spans[row][1] - spans[row][0] for row in rows):
            if 2 * length * taken >= saved:
                count, taken = count + 1, 0
            taken += length
        size = min(-(-len(rows) // count), PARTS - 1)
        sheets += [rows[start : start + size] for start in range(0, len(rows), size)]
    rank = {row: place for place, row in enumerate(order)}
    return sorted(sheets, key=lambda rows: rank[rows[0]])


def share_prompts(tokens_BT: Tensor, mask_BT: Tensor, width: int | None) -> tuple[Batch, Tensor] | None:
    """The rows as sheets, and where each token of the rows stands in them, [B, T] into S * U; None if none share one
    (the last sampled token of a row, and what follows it, is left out: place 0)."""
    tokens, mask = tokens_BT.cpu(), mask_BT.cpu()
    sheets = sheets_of_rows(tokens, mask, width)
    if len(sheets) == len(tokens):
        return None
    spans = _answers(mask)
    sizes = [spans[rows[0]][0] + sum(spans[row][1] - spans[row][0] for row in rows) for rows in sheets]
    shape = len(sheets), max(sizes)
    inputs, positions = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    documents, place = torch.full(shape, -1), torch.zeros(tokens.shape, dtype=torch.long)
    columns = torch.arange(shape[1])
    for number, rows in enumerate(sheets):
        at = start = spans[rows[0]][0]
        inputs[number, :start] = tokens[rows[0], :start]
        positions[number, :start], documents[number, :start] = columns[:start], 0
        for part, row in enumerate(rows, 1):
            end = spans[row][1]
            there = slice(at, at + end - start)
            inputs[number, there] = tokens[row, start:end]
            positions[number, there], documents[number, there] = columns[start:end], part
            place[row, :start] = number * shape[1] + columns[:start]
            place[row, start:end] = number * shape[1] + columns[there]
            at = there.stop
    batch = Batch(inputs, inputs, documents, positions).to(tokens_BT.device)
    return batch, place.to(tokens_BT.device)


def _answers(mask_BT: Tensor) -> list[tuple[int, int]]:
    """Of each row the columns from the first sampled token to the last, without that one: it predicts nothing."""
    starts = mask_BT.bool().int().argmax(1)
    ends = (row_lengths(mask_BT) - 1).maximum(starts)
    return list(zip(starts.tolist(), ends.tolist(), strict=True))
