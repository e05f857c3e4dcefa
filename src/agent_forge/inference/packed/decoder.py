"""Tokens from the compiled model: one sequence (`Decoder`), or several side by side (`DecoderBatch`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agent_forge.errors import UsageError
from agent_forge.inference.packed.compiled import LANES, TOGETHER, CHistory, CompiledModel, why_not

STRIDE = 256  # tokens by which a cache grows at least


class SequenceCache:
    """Keys and values of every layer, and Cognate's memories, for the tokens of one sequence. It
    grows as needed."""

    def __init__(self, model: CompiledModel, view: CHistory) -> None:
        self._model = model
        self.view = view  # as C sees it
        shape = model.shape
        self._state = np.zeros((model.memories, shape.memory_heads, shape.memory_width, shape.memory_width), np.float32)
        # [layers, groups, blocks of 16 tokens, 16 * head width]
        self._keys = self._values = np.empty((shape.layers, shape.groups, 0, LANES * shape.head_width), np.float32)
        self.view.length = self.view.read = 0

    def make_room(self, tokens: int) -> None:
        """Room for so many more tokens."""
        needed = self.view.read + tokens
        if needed > self.view.length:
            length = max(needed, self.view.length * 3 // 2) if self.view.length else needed
            self.resize(-(-length // STRIDE) * STRIDE)

    def resize(self, length: int) -> None:
        """Room for `length` tokens in all, rounded up to whole blocks."""
        length = -(-length // LANES) * LANES
        self._model.reach(length)
        blocks = -(-self.view.read // LANES)

        def longer(old: Any) -> Any:
            new = np.empty((*old.shape[:2], length // LANES, old.shape[3]), np.float32)
            new[:, :, :blocks] = old[:, :, :blocks]
            return new

        self._keys, self._values = longer(self._keys), longer(self._values)
        self.view.length = length
        self.show(self.view)

    def show(self, view: CHistory) -> None:
        """C sees the cache at this place from now on."""
        view.length, view.read = self.view.length, self.view.read
        view.keys, view.values = self._keys.ctypes.data, self._values.ctypes.data
        view.state = self._state.ctypes.data
        self.view = view

    def clear(self) -> None:
        self.view.read = 0
        self._state.fill(0)


class Decoder:
    """Reads tokens and returns the logits of the next one.

    `context` is the largest number of tokens. Raises UsageError for a model it cannot run (see
    `why_not`).
    """

    def __init__(self, model: Any, context: int = 2048) -> None:
        self.context = context
        self._model = CompiledModel(model)
        self._cache = SequenceCache(self._model, CHistory())
        self._cache.resize(context)

    @property
    def position(self) -> int:
        """The number of tokens read so far."""
        return int(self._cache.view.read)

    @property
    def vocabulary(self) -> int:
        return self._model.vocabulary

    def read(self, ids: Sequence[int]) -> Tensor:
        """Reads `ids` after the tokens so far; returns the logits [vocabulary] of the next token."""
        self._check(ids)
        return torch.from_numpy(_read(self._model, self._cache, ids))

    def read_all(self, ids: Sequence[int]) -> Tensor:
        """Reads `ids` after the tokens so far; returns the logits after each of them, [len(ids),
        vocabulary]."""
        self._check(ids)
        logits = np.empty((len(ids), self.vocabulary), dtype=np.float32)
        for start in range(0, len(ids), TOGETHER):
            some = np.array([ids[start : start + TOGETHER]], dtype=np.int64)
            self._model.read(self._cache.view, some, logits[start:], some.shape[1])
        return torch.from_numpy(logits)

    def reset(self) -> None:
        """Forgets all tokens."""
        self._cache.clear()

    def _check(self, ids: Sequence[int]) -> None:
        if self.position + len(ids) > self.context:
            raise UsageError(
                f"{self.position + len(ids):,} tokens, and the decoder holds {self.context:,}",
                fix="Create it with a larger context",
            )


def _read(model: CompiledModel, cache: SequenceCache, ids: Sequence[int]) -> Any:
    """The logits [vocabulary] after all of `ids`, for which there is room."""
    logits = np.empty(model.vocabulary, dtype=np.float32)
    numbers = np.array([ids], dtype=np.int64)
    for start in range(0, len(ids), TOGETHER):
        last = start + TOGETHER >= len(ids)
        model.read(cache.view, np.ascontiguousarray(numbers[:, start : start + TOGETHER]), logits, int(last))
    return logits


class DecoderBatch:
    """Sequences that are decoded side by side, so that the weights are read once for all of them.

    They may join and leave between two steps. The logits of a sequence are, to the last bit, those
    it would have alone.

    Shapes: V vocabulary.
    """

    most: int | None = None  # sequences it can hold: as many as fit in memory

    def __init__(self, model: Any) -> None:
        self._model = CompiledModel(model)
        self._rows: list[SequenceCache] = []
        self._views: Any = (CHistory * 0)()  # the rows as C sees them, in order; there may be more places than rows

    @property
    def count(self) -> int:
        """The number of sequences."""
        return len(self._rows)

    def join(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Adds sequences after the others; returns the logits [len(prompts), V] of the token after each."""
        logits = []
        for prompt in prompts:  # each alone: how they are cut must not depend on the others
            if self.count == len(self._views):
                self._views = (CHistory * max(8, 2 * len(self._views)))()
                for place, row in enumerate(self._rows):
                    row.show(self._views[place])
            row = SequenceCache(self._model, self._views[self.count])
            row.make_room(len(prompt) + 1)
            logits.append(_read(self._model, row, prompt))
            self._rows.append(row)
        return torch.from_numpy(np.stack(logits))

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Adds one token to every sequence; returns the logits [count, V] of the next."""
        for row in self._rows:
            row.make_room(1)
        numbers = np.array(tokens, dtype=np.int64)[:, None]
        logits = np.empty((len(tokens), self._model.vocabulary), dtype=np.float32)
        for start in range(0, len(tokens), TOGETHER):
            self._model.read(self._views[start], numbers[start : start + TOGETHER], logits[start:], 1)
        return torch.from_numpy(logits)

    def leave(self, rows: Sequence[int]) -> None:
        """Removes sequences, from the highest number down; the last one takes the place of the one
        that leaves."""
        for place in sorted(rows, reverse=True):
            last = self._rows.pop()
            if place < self.count:
                last.show(self._views[place])
                self._rows[place] = last

    def cells(self, rows: int, length: int) -> int:
        """Bytes that so many sequences of this length take."""
        shape = self._model.shape
        cells = 2 * shape.layers * shape.groups * shape.head_width * -(-length // STRIDE) * STRIDE
        state = self._model.memories * shape.memory_heads * shape.memory_width**2
        return int(rows * (cells + state) * 4)


def fast_tokens(
    model: Any, prompt: Sequence[int], most: int, *, temperature: float = 0.0, seed: int | None = None
) -> Iterator[int]:
    """New tokens one after another, greedily or at a temperature, until the caller stops or there are `most`.

    Uses the compiled decoder if it can run the model, otherwise the model's own forward pass.
    `model` may be a Decoder.
    """
    draw = torch.Generator()
    draw.manual_seed(seed) if seed is not None else draw.seed()
    if isinstance(model, Decoder):
        model.reset()
        read = model.read
    elif why_not(model) is None:
        read = Decoder(model, len(prompt) + most).read
    else:
        read = _reader(model)
    logits = read(prompt)
    for _ in range(most):
        if temperature:
            token = int(torch.multinomial(torch.softmax(logits / temperature, dim=-1), 1, generator=draw))
        else:
            token = int(logits.argmax())
        yield token
        logits = read([token])


def _reader(model: Any) -> Any:
    """`Decoder.read` with transformers' own forward pass."""
    cache = None

    @torch.inference_mode()
    def read(ids: Sequence[int]) -> Tensor:
        nonlocal cache
        tokens = torch.tensor([list(ids)], device=model.device)
        out = model(input_ids=tokens, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        return out.logits[0, -1].float().cpu()

    return read


def fast_generate(
    model: Any,
    prompt: Sequence[int],
    max_new_tokens: int,
    *,
    temperature: float = 0.0,
    seed: int | None = None,
    eos_token_id: int | Sequence[int] | None = None,
) -> list[int]:
    """The new tokens, up to and including the one that ends the text (see `fast_tokens`)."""
    ends = {eos_token_id} if isinstance(eos_token_id, int) else set(eos_token_id or ())
    tokens: list[int] = []
    for token in fast_tokens(model, prompt, max_new_tokens, temperature=temperature, seed=seed):
        tokens.append(token)
        if token in ends:
            break
    return tokens
