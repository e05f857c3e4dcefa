"""The batch of a sampler that writes several answers to each prompt: a prompt's keys and values are held once.

A step of an answer reads the keys and values of its whole prompt, and with sixteen answers to a prompt a batch with a
row for each would hold and read sixteen copies of them. Here the answers to a prompt are several queries to one copy,
which is one matrix product; what each answer has written so far it keeps for itself.

The rows are a grid of P prompts with C places for answers. A row that leaves frees its place; when the rows that are
left fit into half of the grid, they move into a smaller one.

Shapes: P prompts, C places per prompt, N = P C rows, T columns of prompts, L columns of answers, V vocabulary,
H key/value heads, G query heads for each of them, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from agent_forge.inference import grouped_attention
from agent_forge.inference.graph_step import FixedStep, can_be_fixed
from agent_forge.inference.rows import without
from agent_forge.inference.torch_rows import BufferRows, Reader, TorchRows, blank, cell_of

AT_ONCE = 64  # prompts that are read together, those of like length
COLUMNS = 64  # by which the buffers of answers grow


def can_share(model: Any, rows: Any) -> bool:
    """Whether the rows of a model, for which `rows` is the plain batch, may share prompts: its attention is ours, and
    masks are all that it depends on."""
    if not isinstance(rows, BufferRows):
        return False
    capped = getattr(model.config.get_text_config(), "attn_logit_softcapping", None)
    return not capped and bool(getattr(model, "_supports_attention_backend", False)) and can_be_fixed(model)


class SharedLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Keys and values of one layer: of the prompts [P, H, T, D], and of the answers [N, H, L, D]."""

    is_sliding = False
    is_compileable = False

    def __init__(self, like: Any, prompts: int, columns: int, rows: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.prompt_keys, self.prompt_values = (blank(each, prompts, columns) for each in (like.keys, like.values))
        self.keys, self.values = (blank(each, rows, COLUMNS) for each in (like.keys, like.values))
        self.column: Tensor | None = None  # where the newest token is written
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Everything is there from the start."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        assert self.column is not None
        assert self.keys is not None
        assert self.values is not None
        for buffer, new in ((self.keys, key_states), (self.values, value_states)):
            buffer.index_copy_(2, self.column, new.to(buffer.dtype))
        return self.keys, self.values

    def set_down(self, layer: Any, where: Tensor) -> None:
        """Notes the keys and values of some prompts, all of which end in the last column."""
        for mine, theirs in ((self.prompt_keys, layer.keys), (self.prompt_values, layer.values)):
            mine[where, :, mine.shape[2] - theirs.shape[2] :] = theirs.to(mine.dtype)

    def move(self, prompts: Tensor | None, rows: Tensor | None, columns: int) -> None:
        """Keeps some prompts and rows (None: all of them), with buffers of so many columns."""
        for name in ("keys", "values"):
            if prompts is not None:
                setattr(self, f"prompt_{name}", getattr(self, f"prompt_{name}")[prompts])
            old = getattr(self, name)
            used = old if rows is None else old[rows]
            new = blank(old, len(used), columns)
            new[:, :, : used.shape[2]] = used
            setattr(self, name, new)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        assert self.keys is not None
        return int(self.keys.shape[2])

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # its name before transformers 5.20


class SharedStep(FixedStep):
    """The next token of every row of the grid."""

    def __init__(self, read: Any, cache: Cache, lengths_N: Tensor, columns: int, mask_PT: Tensor) -> None:
        super().__init__(read, cache, len(lengths_N), columns)
        self.lengths, self.prompts = lengths_N[:, None], mask_PT[:, None, None]

    def at(self, written: int) -> None:
        """All rows have written so many tokens."""
        self.mask.copy_((torch.arange(self.mask.shape[-1], device=self.mask.device) < written).expand_as(self.mask))
        self.positions.copy_(self.lengths + written)
        self.column.fill_(written)
        for layer in self.cache.layers:
            layer.column = self.column

    def _compute(self) -> Tensor:
        with grouped_attention.shared_prompts(self.cache.layers, self.prompts):
            return super()._compute()


class SharedRows(TorchRows):
    """Rows of several answers to each of some prompts, all added at once. See `can_share`."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        self._layers: list[SharedLayer] = []
        self._places: list[int] = []  # where in the grid each row is
        self._copies, self._written = 0, 0
        self._lengths = torch.zeros(0, dtype=torch.long, device=reader.device)  # [P], tokens of each prompt
        self._mask = torch.zeros(0, 0, dtype=torch.bool, device=reader.device)  # [P, T], real tokens of the prompts
        self._step: SharedStep | None = None

    @property
    def count(self) -> int:
        return len(self._places)

    def add(self, prompts: Sequence[Sequence[int]], copies: int = 1) -> Tensor:
        assert not self._places
        device, longest = self._read.device, max(map(len, prompts))
        order = sorted(range(len(prompts)), key=lambda place: len(prompts[place]))
        logits: list[Tensor] = []
        for start in range(0, len(prompts), AT_ONCE):
            some = order[start : start + AT_ONCE]
            part, cache = self._read.read([prompts[place] for place in some], DynamicCache())
            logits.append(part)
            where = torch.tensor(some, device=device)
            if not self._layers:
                size = len(prompts), longest, len(prompts) * copies
                self._layers = [SharedLayer(layer, *size) for layer in cache.layers]
            for mine, theirs in zip(self._layers, cache.layers, strict=True):
                mine.set_down(theirs, where)
        self._lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        self._mask = torch.arange(longest, device=device) >= longest - self._lengths[:, None]
        self._places, self._copies, self._written = list(range(len(prompts) * copies)), copies, 0
        back = torch.tensor(order, device=device).argsort()
        return torch.cat(logits)[back].repeat_interleave(copies, 0)

    def _move(self, prompts: Tensor | None, rows: Tensor | None, columns: int) -> None:
        """A grid of some prompts and rows, and of so many columns."""
        for layer in self._layers:
            layer.move(prompts, rows, columns)
        if prompts is not None:
            self._lengths, self._mask = self._lengths[prompts], self._mask[prompts]
        self._step = None

    def extend(self, tokens: Sequence[int] | Tensor) -> Tensor:
        device = self._read.device
        held = self._layers[0].get_seq_length()
        if self._written == held:
            self._move(None, None, held + max(COLUMNS, held // 2))
        if self._step is None:
            lengths = self._lengths.repeat_interleave(self._copies)
            cache = Cache(layers=list(self._layers))
            self._step = SharedStep(self._read, cache, lengths, self._layers[0].get_seq_length(), self._mask)
            self._step.at(self._written)
        places = torch.tensor(self._places, device=device)
        grid = torch.zeros(len(self._step.tokens), dtype=torch.long, device=device)
        grid[places] = torch.as_tensor(tokens).to(device)
        self._written += 1
        return self._step(grid)[places]

    def _leave(self, rows: Sequence[int]) -> None:
        without(self._places, rows)
        if not self._places:
            self._layers, self._step = [], None
            return
        of_prompt: dict[int, list[int]] = {}
        for place in sorted(self._places):
            of_prompt.setdefault(place // self._copies, []).append(place)
        copies = max(map(len, of_prompt.values()))
        if 2 * len(of_prompt) * copies > len(self._lengths) * self._copies:
            return
        device = self._read.device
        grid = [[*places, *places[:1] * (copies - len(places))] for places in of_prompt.values()]  # free ones: any row
        target = {
            place: number * copies + at
            for number, places in enumerate(of_prompt.values())
            for at, place in enumerate(places)
        }
        staying, sources = torch.tensor(list(of_prompt), device=device), torch.tensor(grid, device=device).flatten()
        self._places, self._copies = [target[place] for place in self._places], copies
        self._move(staying, sources, self._layers[0].get_seq_length())

    def cells(self, rows: int, length: int) -> int:
        """With a copy of the prompt for each row, which is more than it takes."""
        return rows * length * cell_of(self._read.model)
