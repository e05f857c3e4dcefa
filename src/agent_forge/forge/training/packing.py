"""Documents packed into rows of equal length: every row starts with BOS, and almost no token is padding or lost.

A document longer than a row is cut into pieces, each with its own BOS. The pieces are packed best-fit, longest first
(Ding et al., 2404.10830): each goes into the row with the least room that still holds it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agent_forge.errors import DataError, UsageError

IGNORE = -100
TEXTS_AT_ONCE = 512  # enough for all cores, where some texts are long


@dataclass(frozen=True)
class PackedRows:
    """Rows of tokens and, for each token, the number of its document (-1: padding)."""

    tokens: np.ndarray  # [rows, length + 1]
    documents: np.ndarray  # the same shape

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def length(self) -> int:
        return int(self.tokens.shape[1]) - 1

    @property
    def used(self) -> float:
        """The share of positions that hold a token."""
        return float((self.documents >= 0).mean())

    def batch(self, step: int, rows: int, seed: int) -> Batch:
        """The batch of a step: a function of the step alone, so a resumed run needs no position in the data.

        Rows are drawn without replacement within an epoch; a batch may reach over the end of one.
        """
        positions = range(step * rows, (step + 1) * rows)
        picked = [_order(len(self), at // len(self), seed)[at % len(self)] for at in positions]
        return self.take(np.array(picked))

    def take(self, rows: Any) -> Batch:
        """Inputs, targets (-100 for padding and for the first token of the next document) and document numbers.

        All three are [rows, length]: a row of length + 1 tokens is `length` inputs and, shifted by one, their targets.
        """
        tokens = torch.from_numpy(self.tokens[rows].astype(np.int64))
        documents = torch.from_numpy(self.documents[rows].astype(np.int64))
        follows = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] >= 0)
        return Batch(tokens[:, :-1], tokens[:, 1:].masked_fill(~follows, IGNORE), documents[:, :-1])


@dataclass(frozen=True)
class StagedRows(PackedRows):
    """Rows of a training with stages: each has its own, from its first step on. `stages` holds (first step, first row).

    >>> tokens = np.arange(12).reshape(4, 3)
    >>> rows = StagedRows(tokens, np.zeros_like(tokens), ((0, 0), (10, 3)))
    >>> rows.batch(9, 2, seed=0).inputs.max() < 9, rows.batch(10, 2, seed=0).inputs.tolist()
    (tensor(True), [[9, 10], [9, 10]])
    """

    stages: tuple[tuple[int, int], ...] = ((0, 0),)

    @staticmethod
    def of(stages: Sequence[tuple[int, PackedRows]]) -> StagedRows:
        """All rows in one, from (first step, rows) of each stage; the first begins at step 0."""
        sizes = [0, *(len(rows) for _, rows in stages)]
        firsts = [int(first) for first in np.cumsum(sizes)[:-1]]
        tokens, documents = ([getattr(rows, name) for _, rows in stages] for name in ("tokens", "documents"))
        starts = tuple((step, first) for (step, _), first in zip(stages, firsts, strict=True))
        return StagedRows(np.concatenate(tokens), np.concatenate(documents), starts)

    def batch(self, step: int, rows: int, seed: int) -> Batch:
        """The batch of a step, from the rows of its stage."""
        now = max(number for number, (first_step, _) in enumerate(self.stages) if first_step <= step)
        first_step, first = self.stages[now]
        end = self.stages[now + 1][1] if now + 1 < len(self.stages) else len(self)
        part = PackedRows(self.tokens[first:end], self.documents[first:end])
        return part.batch(step - first_step, rows, seed)


@lru_cache(maxsize=4)
def _order(rows: int, epoch: int, seed: int) -> np.ndarray:
    """The order of the rows in an epoch."""
    return np.random.default_rng([seed, epoch]).permutation(rows)


PARTS = 64  # pieces that a document of a sheet may have: see `Batch.context`


@dataclass(frozen=True)
class Batch:
    """Rows to train on, each tensor [B, T].

    With `positions` the rows are sheets: a document is number * PARTS + part, part 0 is what all its parts see
    (the tools of a prompt), and the others (requests with their answers) do not see each other.
    """

    inputs: Tensor
    targets: Tensor  # -100: not a target
    documents: Tensor
    positions: Tensor | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        positions = None if self.positions is None else change(self.positions)
        return Batch(change(self.inputs), change(self.targets), change(self.documents), positions)

    def split(self, rows: int) -> Iterator[Batch]:
        for start in range(0, len(self), rows):
            yield self._each(itemgetter(slice(start, start + rows)))

    def every(self, world: int, rank: int) -> Batch:
        """One process's share of the rows. Raises UsageError if there are fewer rows than processes."""
        if len(self) < world:
            raise UsageError(f"{len(self)} rows cannot be shared by {world} processes", fix="Raise batch_rows")
        return self._each(lambda x: x[rank::world])

    def to(self, device: torch.device) -> Batch:
        if device.type != "cuda":
            return self._each(lambda x: x.to(device))
        return self._each(lambda x: x.pin_memory().to(device, non_blocking=True))

    def copy(self, other: Batch) -> None:
        """Overwrites this batch with another's numbers, in place."""
        pairs = [(self.inputs, other.inputs), (self.targets, other.targets), (self.documents, other.documents)]
        if self.positions is not None and other.positions is not None:
            pairs.append((self.positions, other.positions))
        for target, source in pairs:
            target.copy_(source.pin_memory() if target.is_cuda else source, non_blocking=True)

    def context(self) -> dict[str, Tensor]:
        """What a model must be told beside the inputs: nothing for plain rows; for sheets the positions, and a mask
        [B, 1, T, T] under which a part sees itself and the first part of its document."""
        if self.positions is None:
            return {}
        number, part = self.documents // PARTS, self.documents % PARTS
        same = (number[:, :, None] == number[:, None, :]) & (
            (part[:, None, :] == 0) | (self.documents[:, :, None] == self.documents[:, None, :])
        )
        mask = same.tril()  # [B, T, T]: queries, keys
        return {"attention_mask": mask[:, None], "position_ids": self.positions}


def encode(tokenizer: Any, texts: Sequence[str], eos: bool = True) -> list[np.ndarray]:
    """Token IDs of each text, without BOS (packing adds it), with EOS at the end unless `eos` is False."""
    ending = [tokenizer.eos_token_id] if eos and tokenizer.eos_token_id is not None else []
    encoded: list[np.ndarray] = []
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        part = list(texts[start : start + TEXTS_AT_ONCE])
        encoded.extend(np.array([*ids, *ending], dtype=np.int32) for ids in _token_ids(tokenizer, part))
    return encoded


def _token_ids(tokenizer: Any, texts: list[str]) -> Iterable[list[int]]:
    """As the tokenizer itself gives them; one of the `tokenizers` library is asked directly, since the lists that
    transformers makes beside the tokens take several times as long as what all cores do for them."""
    library = getattr(tokenizer, "backend_tokenizer", None)
    if library is None:
        ids: list[list[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"]
        return ids
    library.no_truncation()
    library.no_padding()
    library.encode_special_tokens = tokenizer.split_special_tokens
    return (encoding.ids for encoding in library.encode_batch_fast(texts, add_special_tokens=False))


def pack(documents: Sequence[np.ndarray], length: int, bos: int, pad: int = 0, alone: bool = False) -> PackedRows:
    """Rows of `length` inputs and as many targets. `alone` gives every piece its own row, as evaluation needs.

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
        raise DataError("there is no text to pack", where="pack", fix="Check the loader's filters")
    rows = [[i] for i in range(len(pieces))] if alone else best_fit([len(p) + 1 for _, p in pieces], length + 1)
    tokens = np.full((len(rows), length + 1), pad, dtype=np.int32)
    numbers = np.full((len(rows), length + 1), -1, dtype=np.int32)
    for row, members in enumerate(rows):
        at = 0
        for member in members:
            number, piece = pieces[member]
            tokens[row, at] = bos
            tokens[row, at + 1 : at + 1 + len(piece)] = piece
            numbers[row, at : at + 1 + len(piece)] = number
            at += 1 + len(piece)
    return PackedRows(tokens, numbers)


def best_fit(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Which pieces share a row. Rows are looked up by the room left in them: at most `capacity` different values."""
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
