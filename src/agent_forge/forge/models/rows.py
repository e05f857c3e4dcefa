"""A batch of Cognate's sequences, for the batching engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from agent_forge.forge.models.cache import CognateCache
from agent_forge.inference.rows import without
from agent_forge.inference.torch_rows import Reader, TorchRows


class WindowRows(TorchRows):
    """Rows for Cognate, whose cache holds a window of keys and values and the state of the memory."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        self._window = int(reader.model.config.sliding_window)
        self._cache: Any = None
        self._lengths: list[int] = []  # tokens of each row

    @property
    def count(self) -> int:
        return len(self._lengths)

    def add(self, prompts: Sequence[Sequence[int]], copies: int = 1) -> Tensor:
        logits, fresh = self._read.read(prompts, CognateCache(self._read.model.config), copies)
        if self._cache is None:
            self._cache = fresh
        else:
            for mine, theirs in zip(self._cache.layers, fresh.layers, strict=True):
                _append(mine, theirs)
        self._lengths += [len(prompt) for prompt in prompts for _ in range(copies)]
        return logits

    def extend(self, tokens: Sequence[int] | Tensor) -> Tensor:
        device = self._read.device
        written = torch.tensor(self._lengths)
        width = min(self._cache.get_seq_length(), self._window - 1) + 1
        ages = torch.arange(width - 1, -1, -1)  # how many steps ago each column was written; 0 is the new one
        out = self._read(
            torch.as_tensor(tokens).unsqueeze(1).to(device),
            past_key_values=self._cache,
            attention_mask=(ages[None] <= written[:, None]).to(device),
            position_ids=written.unsqueeze(1).to(device),
        )
        self._lengths = [length + 1 for length in self._lengths]
        logits: Tensor = out.logits[:, -1]
        return logits

    def _leave(self, rows: Sequence[int]) -> None:
        order = list(range(self.count))
        without(order, rows)
        self._lengths = [self._lengths[source] for source in order]
        if not order:
            self._cache = None
        elif len(rows):
            self._cache.batch_select_indices(torch.tensor(order, device=self._read.device))

    def cells(self, rows: int, length: int) -> int:
        config = self._read.model.config
        slot = 2 * config.num_key_value_heads * config.head_dim * min(length, self._window)
        memory = config.memory_heads * config.memory_head_dim * config.memory_head_dim * 2
        return int(rows * config.slots * (slot + memory) * 4)


def _append(mine: Any, theirs: Any) -> None:
    """Joins the rows of two Cognate slots; the shorter history is padded on the left."""
    width = max(mine.keys.shape[2], theirs.keys.shape[2])
    for name in ("keys", "values"):
        states = [getattr(one, name) for one in (mine, theirs)]  # each [N, H, T, D]
        parts = [torch.nn.functional.pad(state, (0, 0, width - state.shape[2], 0)) for state in states]
        setattr(mine, name, torch.cat(parts))
    if mine.memory is not None:
        mine.memory = torch.cat([mine.memory, theirs.memory])
    mine.seen = max(mine.seen, theirs.seen)
