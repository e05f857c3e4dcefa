"""Tokens by the compiled model: a sequence alone (`Decoder`), and several side by side (`Batch`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agent_forge.errors import UsageError
from agent_forge.forge.models.packed.compiled import LANES, TOGETHER, CHistory, CompiledModel, why_not

STRIDE = 256  # tokens by which a history grows at least


class History:
    """What a sequence left behind: keys and values of every layer, and Cognate's memories. It grows as needed."""

    def __init__(self, model: CompiledModel, seen: CHistory) -> None:
        self._model = model
        self.seen = seen  # as C sees it
        shape = model.shape
        self._state = np.zeros((model.memories, shape.memory_heads, shape.memory_width, shape.memory_width), np.float32)
        self._keys = self._values = np.empty((shape.layers, shape.groups, 0, LANES * shape.head_width), np.float32)
        self.seen.length = self.seen.read = 0

    def make_room(self, tokens: int) -> None:
        """For so many more tokens."""
        needed = self.seen.read + tokens
        if needed > self.seen.length:
            length = max(needed, self.seen.length * 3 // 2) if self.seen.length else needed
            self.resize(-(-length // STRIDE) * STRIDE)

    def resize(self, length: int) -> None:
        """Room for `length` tokens, those that were read included, and up to 15 more."""
        length = -(-length // LANES) * LANES
        self._model.reach(length)
        self._keys, self._values = (_longer(old, self.seen.read, length) for old in (self._keys, self._values))
        self.seen.length = length
        self.show(self.seen)

    def show(self, seen: CHistory) -> None:
        """Lets C see it at this place from now on."""
        seen.length, seen.read = self.seen.length, self.seen.read
        seen.keys, seen.values = self._keys.ctypes.data, self._values.ctypes.data
        seen.state = self._state.ctypes.data
        self.seen = seen

    def forget(self) -> None:
        """As if nothing had been read."""
        self.seen.read = 0
        self._state.fill(0)


def _longer(old: Any, read: int, length: int) -> Any:
    blocks = -(-read // LANES)
    new = np.empty((*old.shape[:2], length // LANES, old.shape[3]), np.float32)
    new[:, :, :blocks] = old[:, :, :blocks]
    return new


class Decoder:
    """Reads tokens and answers with the logits of the next one.

    `context` is the most tokens that it can hold. Raises UsageError for a model it cannot run (see `why_not`).
    """

    def __init__(self, model: Any, context: int = 2048) -> None:
        self.context = context
        self._model = CompiledModel(model)
        self._history = History(self._model, CHistory())
        self._history.resize(context)

    @property
    def position(self) -> int:
        """Tokens that were read."""
        return int(self._history.seen.read)

    @property
    def vocabulary(self) -> int:
        return self._model.vocabulary

    def read(self, ids: Sequence[int]) -> Tensor:
        """Takes in `ids` after what it has read so far; the logits [vocabulary] of the token after them."""
        self._check(ids)
        return torch.from_numpy(_read(self._model, self._history, ids))

    def read_all(self, ids: Sequence[int]) -> Tensor:
        """The same, with the logits after every token: [len(ids), vocabulary]."""
        self._check(ids)
        logits = np.empty((len(ids), self.vocabulary), dtype=np.float32)
        for start in range(0, len(ids), TOGETHER):
            some = np.array([ids[start : start + TOGETHER]], dtype=np.int64)
            self._model.read(self._history.seen, some, logits[start:], some.shape[1])
        return torch.from_numpy(logits)

    def reset(self) -> None:
        """Forgets everything that was read."""
        self._history.forget()

    def _check(self, ids: Sequence[int]) -> None:
        if self.position + len(ids) > self.context:
            raise UsageError(
                f"{self.position + len(ids):,} tokens, and the decoder holds {self.context:,}",
                fix="make it with a larger context",
            )


def _read(model: CompiledModel, history: History, ids: Sequence[int]) -> Any:
    """The logits [vocabulary] after all of `ids`, for which there is room."""
    logits = np.empty(model.vocabulary, dtype=np.float32)
    numbers = np.array([ids], dtype=np.int64)
    for start in range(0, len(ids), TOGETHER):
        last = start + TOGETHER >= len(ids)
        model.read(history.seen, np.ascontiguousarray(numbers[:, start : start + TOGETHER]), logits, int(last))
    return logits


class Batch:
    """Sequences that are written side by side, so that the weights are read once for all of them.

    They may join and leave between two steps. What one of them says is, to the last bit, what it would say alone.

    Shapes: V vocabulary.
    """

    most: int | None = None  # sequences it can hold: as many as there is memory for

    def __init__(self, model: Any) -> None:
        self._model = CompiledModel(model)
        self._rows: list[History] = []
        self._seen: Any = (CHistory * 0)()  # the rows as C sees them, in order; there may be more places than rows

    @property
    def count(self) -> int:
        """Sequences in it."""
        return len(self._rows)

    def join(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Adds sequences behind the others; the logits [len(prompts), V] of what comes after each."""
        found = []
        for prompt in prompts:  # each alone: how they are cut must not depend on the others
            if self.count == len(self._seen):
                self._more_places()
            row = History(self._model, self._seen[self.count])
            row.make_room(len(prompt) + 1)
            found.append(_read(self._model, row, prompt))
            self._rows.append(row)
        return torch.from_numpy(np.stack(found))

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Adds one token to every sequence; the logits [count, V] of what comes after."""
        for row in self._rows:
            row.make_room(1)
        numbers = np.array(tokens, dtype=np.int64)[:, None]
        logits = np.empty((len(tokens), self._model.vocabulary), dtype=np.float32)
        for start in range(0, len(tokens), TOGETHER):
            self._model.read(self._seen[start], numbers[start : start + TOGETHER], logits[start:], 1)
        return torch.from_numpy(logits)

    def leave(self, rows: Sequence[int]) -> None:
        """Removes sequences, from the highest number down; the last one takes the place of the one that leaves."""
        for place in sorted(rows, reverse=True):
            last = self._rows.pop()
            if place < self.count:
                last.show(self._seen[place])
                self._rows[place] = last

    def cells(self, rows: int, length: int) -> int:
        """Bytes that so many sequences of this length take."""
        shape = self._model.shape
        cells = 2 * shape.layers * shape.groups * shape.head_width * -(-length // STRIDE) * STRIDE
        state = self._model.memories * shape.memory_heads * shape.memory_width**2
        return int(rows * (cells + state) * 4)

    def _more_places(self) -> None:
        self._seen = (CHistory * max(8, 2 * len(self._seen)))()
        for place, row in enumerate(self._rows):
            row.show(self._seen[place])


def fast_tokens(
    model: Any, prompt: Sequence[int], most: int, *, temperature: float = 0.0, seed: int | None = None
) -> Iterator[int]:
    """New tokens one after another, greedily or at a temperature; the caller stops when it has enough.

    The compiled decoder where it runs the model, else the model's own forward pass. `model` may be a Decoder.
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
    """`Decoder.read` by transformers."""
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
    """The new tokens, up to and with the one that ends the text (see `fast_tokens`)."""
    ends = {eos_token_id} if isinstance(eos_token_id, int) else set(eos_token_id or ())
    found: list[int] = []
    for token in fast_tokens(model, prompt, max_new_tokens, temperature=temperature, seed=seed):
        found.append(token)
        if token in ends:
            break
    return found
