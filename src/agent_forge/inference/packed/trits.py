"""Ternary weights as tensors, and their packed form (see `layout`, which packs and describes the bytes)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from agent_forge.errors import UsageError
from agent_forge.inference.packed import layout
from agent_forge.inference.packed.layout import ROWS, PackedShape


@dataclass(frozen=True)
class TernaryWeight:
    """A weight matrix as trits and scales: weight[o, i] = trits[o, i] * scales[o, i // group].

    `trits` is int8 [out, in] of -1, 0, 1; `scales` float [out, groups], or [out], or one row or
    number for all rows. `group` is the number of columns that share a scale; by default it follows
    from the number of scales (128 if that fits, else equal parts). The last group may be shorter.
    With `sub_norm` the layer divides its input by its root mean square first. Four levels without a
    zero are written -3, -1, 1, 3 (the scale is then half a step).

    >>> weight = TernaryWeight(torch.tensor([[1, 0, -1], [0, 1, 1]]), torch.tensor([0.5, 2.0]))
    >>> weight.dense()
    tensor([[ 0.5000,  0.0000, -0.5000],
            [ 0.0000,  2.0000,  2.0000]])
    """

    trits: Tensor
    scales: Tensor
    group: int | None = None
    sub_norm: bool = False

    def __post_init__(self) -> None:
        rows, columns = self.trits.shape
        scales, trits = self.scales.detach(), self.trits.detach()
        if scales.numel() == 1:
            scales = scales.reshape(1, 1)
        if scales.dim() == 2 and scales.shape[0] == 1:
            scales = scales.expand(rows, -1)
        scales = scales.reshape(rows, -1)
        if scales.dtype not in (torch.float32, torch.float16):
            scales = scales.float()
        if not bool((_is_ternary(trits) | _is_four_level(trits)).item()):
            raise UsageError("a ternary weight may hold only -1, 0 and 1", where="TernaryWeight")
        object.__setattr__(self, "trits", trits.to(torch.int8))
        object.__setattr__(self, "scales", scales.contiguous())
        object.__setattr__(self, "group", _group(self.group, columns, scales.shape[1]))

    @property
    def is_ternary(self) -> bool:
        """False for four levels."""
        return bool(_is_ternary(self.trits))

    def dense(self) -> Tensor:
        """The weights as float32."""
        return scaled(self.trits, self.scales.float(), self.columns_per_scale)

    @property
    def columns_per_scale(self) -> int:
        assert self.group is not None  # __post_init__ fills it in
        return self.group


def _is_ternary(values: Tensor) -> Tensor:
    return ((values == 0) | (values == 1) | (values == -1)).all()


def _is_four_level(values: Tensor) -> Tensor:
    return ((values.abs() == 1) | (values.abs() == 3)).all()


def _group(group: int | None, columns: int, groups: int) -> int:
    """The columns of a group; by default from the number of scales."""
    if group is None:
        group = columns if groups == 1 else 128
        if math.ceil(columns / group) != groups and columns % groups == 0:
            group = columns // groups
    if group < 1 or math.ceil(columns / group) != groups:
        raise UsageError(
            f"{groups} scales per row do not fit {columns} columns in groups of {group}", where="TernaryWeight"
        )
    return min(group, columns)


def scaled(values: Tensor, scales: Tensor, group: int) -> Tensor:
    """Integers [out, in] times their scales [out, groups], in the scales' type."""
    columns = values.shape[1]
    return values.to(scales.dtype) * scales.repeat_interleave(group, dim=1)[:, :columns]


def pack(values: Tensor, shape: PackedShape) -> Tensor:
    """Integers [rows, columns] -> bytes [tiles, chunks, 16, 4].

    >>> shape = PackedShape("1.6bit", 2, 3, 3)
    >>> trits = torch.tensor([[1, 0, -1], [0, 1, 1]])
    >>> pack(trits, shape).shape, bool((unpack(pack(trits, shape), shape) == trits).all())
    (torch.Size([1, 1, 16, 4]), True)
    """
    return torch.from_numpy(layout.pack(values.detach().cpu().numpy(), shape)).to(values.device)


def unpack(packed: Tensor, shape: PackedShape) -> Tensor:
    """Bytes -> int8 [rows, columns]. Raises CheckpointError for bytes that `pack` never writes."""
    layout.check_packed(packed, shape)
    places = packed.int()
    layout.refuse_unsound(torch.from_numpy(layout.SOUND[shape.kind]).to(packed.device)[places])
    return layout.in_rows(_values(shape.kind, packed.device)[places], shape)


def unpack_rows(packed: Tensor, shape: PackedShape, rows: Tensor) -> Tensor:
    """The values int8 [n, columns] of some rows [n]: an embedding's look-up."""
    lines = packed[rows // ROWS, :, rows % ROWS].int()
    return layout.lines_in_rows(_values(shape.kind, packed.device)[lines], shape)


def _values(kind: str, device: torch.device) -> Tensor:
    return torch.from_numpy(layout.VALUES[kind]).to(device)
