"""The generation cache: for every layer of every pass, a window of keys and values and the state of the memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from agent_forge.errors import UsageError
from agent_forge.forge.models.config import CognateConfig


class SlotCache(CacheLayerMixin):
    """One slot: the last `window - 1` keys and values, [B, G, S, K] (the newest query brings its own), and the memory's
    state, [B, H, E, P*D]."""

    is_sliding = True
    is_compileable = False

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window
        self.seen = 0
        self.memory: Tensor | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Appends, and returns everything that the new queries may attend to."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        keys = torch.cat([self.keys, key_states], dim=-2)
        values = torch.cat([self.values, value_states], dim=-2)
        self.seen += key_states.shape[-2]
        self.keys, self.values = keys[:, :, 1 - self.window :], values[:, :, 1 - self.window :]
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        cached = min(self.seen, self.window - 1)
        return cached + query_length, self.seen - cached

    def get_seq_length(self) -> int:
        return self.seen

    def get_max_length(self) -> int:
        return self.window

    get_max_cache_shape = get_max_length  # the name before transformers 5.20

    def reset(self) -> None:
        self.seen, self.is_initialized = 0, False
        self.keys = self.values = self.memory = None

    def crop(self, *_: Any) -> None:
        fix = "Start a new cache, or read what is to be forgotten inside `thinking_aside(cache)`"
        raise UsageError("a Cognate cache cannot be cropped: its memory has no inverse", fix=fix)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._each(lambda state: state.index_select(0, beam_idx.to(state.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._each(lambda state: state.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._each(lambda state: state[indices])

    def _each(self, change: Callable[[Tensor], Tensor]) -> None:
        for name in ("keys", "values", "memory"):
            if (state := getattr(self, name)) is not None:
                setattr(self, name, change(state))


class CognateCache(Cache):
    """The cache of `generate()`; slot = pass * layers + layer.

    >>> CognateCache(CognateConfig(loops=2)).get_seq_length()
    0
    """

    def __init__(self, config: CognateConfig) -> None:
        super().__init__(layers=[SlotCache(config.sliding_window) for _ in range(config.slots)])
        self.read_only = False  # whether the memory is only read: see `thinking_aside`

    def memory(self, slot: int) -> Tensor | None:
        layer: Any = self.layers[slot]
        return layer.memory

    def set_memory(self, slot: int, state: Tensor) -> None:
        layer: Any = self.layers[slot]
        layer.memory = state


@contextmanager
def thinking_aside(cache: Any) -> Iterator[None]:
    """What is read inside the block is forgotten after it, and the memory of a Cognate is only read meanwhile.

    For a CognateCache and a DynamicCache: both make new tensors when they grow, so a shallow copy of each layer keeps
    everything as it was, also the keys that a window has dropped since.
    """
    layers, cache.layers = cache.layers, [copy.copy(layer) for layer in cache.layers]
    cache.read_only = True
    try:
        yield
    finally:
        cache.layers, cache.read_only = layers, False
