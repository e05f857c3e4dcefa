"""The running batch of one torch model: rows of tokens that join and leave between two steps.

All rows end in the same column, so a step writes one column; what lies before the first token of a row is masked.
Joining rows are read separately and then placed so that they end where the others do. When a row leaves, the last one
takes its place, so the rows in use are always the first ones and the batch is never copied as a whole.

    row 0  . . . a b c d        columns `start` to `end` are in use; a step fills column `end`
    row 1  . e f g h i j        first = (3, 1, 5), written = end - first
    row 2  . . . . . k l

Shapes: N rows, T columns, V vocabulary, H key/value heads, D head width.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer

from agent_forge.errors import UsageError
from agent_forge.inference import architectures
from agent_forge.inference.graph_step import FixedStep, can_be_fixed
from agent_forge.inference.grouped_attention import use_grouped_attention
from agent_forge.inference.packed.model import DecoderBatch
from agent_forge.inference.packed.modules import PackedLinear
from agent_forge.inference.packed.torch_model import from_torch, is_plain_llama, why_not
from agent_forge.inference.rows import Rows, without

STRIDE = 256  # columns by which the buffers grow, at least
FEW, SMALL = 24, 140_000_000  # rows, and weights on one thread, up to which the compiled decoder is faster than torch


def torch_rows(model: Any) -> Rows:
    """The batch for a torch model: the compiled one for packed models in main memory; for others by their kind of
    cache: one that was registered, the plain one of transformers, or an unknown one (then one row at a time)."""
    if runs_compiled(model):
        return DecoderBatch(from_torch(model))
    reader = Reader(model)
    if (rows := architectures.ROWS.get(model.config.model_type)) is not None:
        return rows(reader)
    plain = not getattr(model, "_is_stateful", False) and _plain(model.config)
    return BufferRows(reader) if plain else LoneRow(reader)


def sampling_rows(model: Any, most: int, copies: int = 1) -> Rows:
    """The batch for up to `most` rows, `copies` for each prompt, which are all written before the model changes: what
    the compiled decoder does faster than torch (a token of a small model is mostly Python) it does, from the model's
    own memory; else the copies share their prompt where they can."""
    weights = sum(weight.numel() for weight in model.parameters()) if isinstance(model, torch.nn.Module) else SMALL + 1
    small = weights * torch.get_num_threads() ** 2 <= SMALL  # more threads help torch alone, and large models most
    if most <= FEW and small and is_plain_llama(model) and not torch.is_autocast_enabled("cpu"):
        with suppress(UsageError):  # no compiler, or a shape that it does not know
            return CompiledRows(Reader(model))
    from agent_forge.inference.shared_rows import SharedRows, can_share

    rows = torch_rows(model)
    if copies > 1 and can_share(model, rows):
        return SharedRows(Reader(model))
    if isinstance(rows, TorchRows):
        rows.steady = True
    return rows


def runs_compiled(model: Any) -> bool:
    """Whether the weights are packed and the compiled decoder knows the architecture."""
    return any(isinstance(module, PackedLinear) for module in model.modules()) and why_not(model) is None


def _plain(config: Any) -> bool:
    """Whether every layer caches keys and values and nothing else."""
    kinds = getattr(config.get_text_config(), "layer_types", None) or ()
    return all(kind in ("full_attention", "sliding_attention", "chunked_attention") for kind in kinds)


class Reader:
    """Calls one model, with the arguments that its `forward` accepts."""

    def __init__(self, model: Any) -> None:
        use_grouped_attention()
        self.model = model
        self.device = model.device
        parameters = inspect.signature(model.forward).parameters
        open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        self._accepted = None if open_ended else set(parameters)

    def __call__(self, tokens: Tensor, **named: Any) -> Any:
        arguments = {"use_cache": True, "logits_to_keep": 1, **named}
        if self._accepted is not None:
            arguments = {name: value for name, value in arguments.items() if name in self._accepted}
        return self.model(input_ids=tokens, **arguments)

    def read(self, prompts: Sequence[Sequence[int]], cache: Any, copies: int = 1) -> tuple[Tensor, Any]:
        """Reads prompts of any lengths, short ones padded on the left, into an empty cache: (logits [N, V], cache),
        with `copies` rows per prompt."""
        longest = max(map(len, prompts))
        tokens = torch.zeros(len(prompts), longest, dtype=torch.long)  # [N, T]
        mask = torch.zeros_like(tokens)
        for row, prompt in enumerate(prompts):
            tokens[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        # by an index: a slice is not contiguous, and in bf16 a CPU then copies the output matrix for every prompt
        named: dict[str, Any] = {"logits_to_keep": torch.tensor([longest - 1], device=self.device)}
        if not bool(mask.all()):
            positions = (mask.cumsum(-1) - 1).clamp_min(0)
            named |= {"attention_mask": mask.to(self.device), "position_ids": positions.to(self.device)}
        out = self(tokens.to(self.device), past_key_values=cache, **named)
        logits, cache = out.logits[:, -1], out.past_key_values
        if copies > 1:
            which = torch.arange(len(prompts), device=self.device).repeat_interleave(copies)
            logits = logits[which]
            cache.batch_select_indices(which)
        return logits, cache


class TorchRows:
    """What the kinds of rows share: no gradients, and logits as numpy arrays, whatever computes them.

    `add` and `extend` are `join` and `step` for callers that stay on the device: tensors in and out. `steady` says that
    many steps will follow in which rows may leave, but none joins and the model does not change: worth a recording."""

    most: int | None = None
    steady = False

    def __init__(self, reader: Reader) -> None:
        self._read = reader

    @torch.inference_mode()
    def join(self, prompts: Sequence[Sequence[int]]) -> Any:
        return self.add(prompts).float().cpu().numpy()

    @torch.inference_mode()
    def step(self, tokens: Sequence[int]) -> Any:
        return self.extend(tokens).float().cpu().numpy()

    @torch.inference_mode()
    def leave(self, rows: Sequence[int]) -> None:
        self._leave(rows)

    def add(self, prompts: Sequence[Sequence[int]], copies: int = 1) -> Tensor:
        """Reads each prompt once and adds `copies` rows of it; the next token's logits, [N, V]."""
        raise NotImplementedError

    def extend(self, tokens: Sequence[int] | Tensor) -> Tensor:
        """Adds one token to every row; the next token's logits, [N, V]."""
        raise NotImplementedError

    def _leave(self, rows: Sequence[int]) -> None:
        raise NotImplementedError


class Extent:
    """Where the rows are; shared by the layers of a buffer."""

    def __init__(self) -> None:
        self.count = 0
        self.start = 0
        self.end = 0
        self.first: list[int] = []  # column of each row's first token
        self.fixed: FixedStep | None = None  # what reads the layers just now, where its shapes do not change

    def shift(self, columns: int) -> None:
        """Called when all rows have been moved to the right."""
        self.start, self.end = self.start + columns, self.end + columns
        self.first = [first + columns for first in self.first]


class BufferLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Keys and values of one layer, [N, H, T, D], written in place."""

    is_sliding = False
    is_compileable = False

    def __init__(self, extent: Extent) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.extent = extent

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys, self.values = blank(key_states, 0, 0), blank(value_states, 0, 0)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Writes the newest column and returns all that is in use (for a fixed step: all columns)."""
        place, fixed = self.extent, self.extent.fixed
        in_use: list[Tensor] = []
        for buffer, new in ((self.keys, key_states), (self.values, value_states)):
            assert buffer is not None
            if fixed is not None:
                in_use.append(buffer[: fixed.rows].index_copy_(2, fixed.column, new.to(buffer.dtype)))
                continue
            buffer[: place.count, :, place.end] = new[:, :, 0]
            in_use.append(buffer[: place.count, :, place.start : place.end + 1])
        return in_use[0], in_use[1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        return self.extent.end - self.extent.start

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # its name before transformers 5.20

    def set_down(self, layer: DynamicLayer) -> None:
        """Copies the rows of a fresh cache behind the last row, so that they end in the column before `end`."""
        place = self.extent
        for buffer, new in ((self.keys, layer.keys), (self.values, layer.values)):
            assert buffer is not None
            assert new is not None
            rows, columns = new.shape[0], new.shape[2]
            buffer[place.count : place.count + rows, :, place.end - columns : place.end] = new

    def resize(self, rows: int, columns: int, to: int) -> None:
        """Moves what is in use into a new buffer, where `start` becomes column `to`."""
        place = self.extent
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = blank(old, rows, columns)
            used = old[: place.count, :, place.start : place.end]
            new[: place.count, :, to : to + used.shape[2]] = used
            setattr(self, name, new)

    def copy_rows(self, sources: Tensor, targets: Tensor) -> None:
        in_use = slice(self.extent.start, self.extent.end)
        for buffer in (self.keys, self.values):
            assert buffer is not None
            buffer[targets, :, in_use] = buffer[sources, :, in_use]


def blank(like: Tensor, rows: int, columns: int) -> Tensor:
    """Under autocast in the type that attention computes in: else every step would convert all that is there."""
    kind = like.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else like.dtype
    return like.new_zeros(rows, like.shape[1], columns, like.shape[3], dtype=dtype)


class BufferRows(TorchRows):
    """Rows for any model that uses the plain cache of transformers."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        self.extent = Extent()
        self._layers: list[BufferLayer] = []
        self._cache: Any = None
        self._cell: int | None = None
        self._fixed: FixedStep | None = None
        self._records = reader.device.type == "cuda" and can_be_fixed(reader.model)

    @property
    def count(self) -> int:
        return self.extent.count

    def add(self, prompts: Sequence[Sequence[int]], copies: int = 1) -> Tensor:
        logits, fresh = self._read.read(prompts, DynamicCache(), copies)
        if self._cache is None:
            self._layers = [BufferLayer(self.extent) for _ in fresh.layers]
            for mine, theirs in zip(self._layers, fresh.layers, strict=True):
                mine.lazy_initialization(theirs.keys, theirs.values)
            self._cache = Cache(layers=list(self._layers))
        place, longest = self.extent, max(map(len, prompts))
        rows = len(prompts) * copies
        self._make_room(place.count + rows, longest)
        for mine, theirs in zip(self._layers, fresh.layers, strict=True):
            mine.set_down(theirs)
        place.first += [place.end - len(prompt) for prompt in prompts for _ in range(copies)]
        place.count += rows
        place.start = min(place.first)
        self._fixed = None
        return logits

    def _make_room(self, rows: int, longest: int) -> None:
        """Makes room for this many rows, for a row of that length with the same end, and for one more step."""
        place = self.extent
        held = place.end - place.start
        needed = max(held, longest)
        capacity_rows, capacity = self._capacity()
        if rows <= capacity_rows and longest <= place.end < capacity:
            return
        columns = capacity if needed + STRIDE // 2 < capacity else needed + max(STRIDE, needed // 2)
        to = needed - held
        for layer in self._layers:
            layer.resize(max(rows, min(2 * capacity_rows, rows + 8)), columns, to)
        place.shift(to - place.start)
        self._fixed = None

    def _capacity(self) -> tuple[int, int]:
        keys = self._layers[0].keys
        assert keys is not None
        return keys.shape[0], keys.shape[2]

    def extend(self, tokens: Sequence[int] | Tensor) -> Tensor:
        place, device = self.extent, self._read.device
        if self.steady and self._records:
            return self.extend_fixed(torch.as_tensor(tokens))
        self._make_room(place.count, 0)
        first = torch.tensor(place.first)
        columns = torch.arange(place.start, place.end + 1)
        mask = columns[None] >= first[:, None]
        out = self._read(
            torch.as_tensor(tokens).unsqueeze(1).to(device),
            past_key_values=self._cache,
            attention_mask=mask.long().to(device),
            position_ids=(place.end - first).unsqueeze(1).to(device),
        )
        place.end += 1
        logits: Tensor = out.logits[:, -1]
        return logits

    def extend_fixed(self, tokens: Tensor) -> Tensor:
        """`extend` by a step with fixed shapes."""
        self._make_room(self.extent.count, 0)
        place = self.extent
        capacity, columns = self._capacity()
        rows = min(1 << (place.count - 1).bit_length(), capacity)
        if self._fixed is None or self._fixed.rows != rows:
            self._fixed = FixedStep(self._read, self._cache, rows, columns)
            self._fixed.place(place.first, place.end)
        place.fixed = self._fixed
        try:
            return self._fixed(tokens)
        finally:
            place.fixed = None
            place.end += 1

    def _leave(self, rows: Sequence[int]) -> None:
        place = self.extent
        order = list(range(place.count))
        without(order, rows)
        moved = [(source, target) for target, source in enumerate(order) if source != target]
        if moved:
            sources, targets = torch.tensor(moved, device=self._read.device).T
            for layer in self._layers:
                layer.copy_rows(sources, targets)
        place.first = [place.first[source] for source in order]
        place.count = len(order)
        place.start = min(place.first, default=place.end)
        if not place.count:  # an idle server holds no memory for buffers
            self._layers, self._cache, self._fixed, self.extent = [], None, None, Extent()
        elif self._fixed is not None:
            self._fixed.place(place.first, place.end)

    def cells(self, rows: int, length: int) -> int:
        if self._cell is None:
            self._cell = cell_of(self._read.model)
        held = self.extent.end - self.extent.start
        return rows * max(length, held) * self._cell


def cell_of(model: Any) -> int:
    """Bytes that one token takes in the cache, from the configuration."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * int(config.num_hidden_layers) * int(heads) * int(width) * int(model.dtype.itemsize)


class CompiledRows(TorchRows):
    """Rows of a plain model in the compiled decoder. Raises UsageError for a model that it does not run."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        self._batch = DecoderBatch(from_torch(reader.model))
        self.cells = self._batch.cells

    @property
    def count(self) -> int:
        return self._batch.count

    def add(self, prompts: Sequence[Sequence[int]], copies: int = 1) -> Tensor:
        return torch.from_numpy(self._batch.join(prompts, copies))

    def extend(self, tokens: Sequence[int] | Tensor) -> Tensor:
        return torch.from_numpy(self._batch.step(torch.as_tensor(tokens).tolist()))

    def _leave(self, rows: Sequence[int]) -> None:
        self._batch.leave(rows)


class LoneRow(TorchRows):
    """One row at a time, in the model's own cache, for models with an unknown kind of state."""

    most: int | None = 1

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        self._state: dict[str, Any] = {}
        self.count = 0

    def add(self, prompts: Sequence[Sequence[int]], copies: int = 1) -> Tensor:
        assert self.count == 0
        assert len(prompts) * copies == 1
        out = self._read(torch.tensor([list(prompts[0])], device=self._read.device))
        return self._after(out)

    def extend(self, tokens: Sequence[int] | Tensor) -> Tensor:
        column = torch.as_tensor(tokens).reshape(1, 1).to(self._read.device)
        return self._after(self._read(column, **self._state))

    def _after(self, out: Any) -> Tensor:
        name = "past_key_values" if getattr(out, "past_key_values", None) is not None else "cache_params"
        self._state = {name: getattr(out, name)}
        self.count = 1
        logits: Tensor = out.logits[:, -1]
        return logits

    def _leave(self, rows: Sequence[int]) -> None:
        if len(rows):
            self._state, self.count = {}, 0

    def cells(self, rows: int, length: int) -> int:
        return 0
