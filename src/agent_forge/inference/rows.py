"""The running batch of one model, as the engine and the samplers see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from agent_forge.inference.packed.model import DecoderBatch, PackedModel


class Rows(Protocol):
    """A batch, as the scheduler uses it. The logits are those of the next token, numpy [N, V]."""

    most: int | None  # rows it can hold; None: as many as fit into memory

    @property
    def count(self) -> int:
        """Number of rows."""

    def join(self, prompts: Sequence[Sequence[int]]) -> Any:
        """Reads prompts and adds them as the last rows."""

    def step(self, tokens: Sequence[int]) -> Any:
        """Adds one token to every row."""

    def leave(self, rows: Sequence[int]) -> None:
        """Removes rows, in the manner of `without`."""

    def cells(self, rows: int, length: int) -> int:
        """Bytes that this many rows of this length would take."""


def rows_for(model: Any) -> Rows:
    """The batch for a packed model, or for a torch model (see `torch_rows`)."""
    if isinstance(model, PackedModel):
        return DecoderBatch(model)
    from agent_forge.inference.torch_rows import torch_rows

    return torch_rows(model)


def without(items: list[Any], leaving: Sequence[int]) -> None:
    """Removes items by place: from the highest down, the last item takes the place of the one that leaves.

    >>> rows = ["a", "b", "c", "d"]
    >>> without(rows, [0, 2])
    >>> rows
    ['d', 'b']
    """
    for place in sorted(leaving, reverse=True):
        items[place] = items[-1]
        items.pop()
