"""Small integers packed into bytes, in the order in which the products read them.

A matrix is cut into tiles of 16 rows. Within a tile the bytes follow the columns: 4 bytes of row 0, 4 bytes of row 1,
... 4 bytes of row 15, then the next columns of all sixteen rows. A 64-byte line thus holds the same few columns of 16
rows: a row is a lane of the vector unit, no sum across lanes is ever needed, and a product reads memory from the first
byte to the last. How many columns four bytes hold depends on the kind:

| kind | values | a byte | columns in a chunk of 4 bytes | code of value v |
|---|---|---|---|---|
| 2bit | -1, 0, 1 | four codes | 16 | v + 1 |
| 1.6bit | -1, 0, 1 | five base-3 digits | 20 | v + 1 |
| int4 | -8 .. 7 | two codes | 8 | v + 8 |
| int8 | -127 .. 127 | one code | 4 | v + 128 |
| 4level | -3, -1, 1, 3 | four codes | 16 | (v + 3) / 2 |

Digit d of byte b in a chunk is column 4 d + b of the chunk. Columns may be split into groups, each
with its own scales; every group starts a new chunk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from agent_forge.errors import CheckpointError, UsageError

ROWS = 16  # rows of a tile
DAMAGED = "The file is damaged: copy it again, or pack the model again"
MOST_COLUMNS = 65_536  # up to here |sum of code * x| <= 255 * 127 * columns fits in int32
DIGITS = {"2bit": 4, "1.6bit": 5, "int4": 2, "int8": 1, "4level": 4}
OFFSET = {"2bit": 1, "1.6bit": 1, "int4": 8, "int8": 128, "4level": 3}  # value = STEP * code - OFFSET
STEP = {"2bit": 1, "1.6bit": 1, "int4": 1, "int8": 1, "4level": 2}
LIMITS = {"2bit": (-1, 1), "1.6bit": (-1, 1), "int4": (-8, 7), "int8": (-127, 127), "4level": (-3, 3)}
KINDS = tuple(DIGITS)  # in the order of products.c


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


@dataclass(frozen=True)
class PackedShape:
    """The layout of a matrix of one kind in memory."""

    kind: str
    rows: int
    columns: int
    group: int

    def __post_init__(self) -> None:
        if self.kind not in DIGITS:
            raise UsageError(f"there is no packed kind {self.kind!r}", fix=f"The kinds are {', '.join(KINDS)}")
        if not (self.rows >= 1 and 1 <= self.columns <= MOST_COLUMNS and 1 <= self.group <= self.columns):
            raise UsageError(
                f"a matrix of {self.rows} x {self.columns} in groups of {self.group} cannot be packed",
                fix=f"It needs 1 to {MOST_COLUMNS:,} columns",
            )

    @property
    def tiles(self) -> int:
        return -(-self.rows // ROWS)

    @property
    def groups(self) -> int:
        return -(-self.columns // self.group)

    @property
    def chunk(self) -> int:
        """Columns in four bytes."""
        return 4 * DIGITS[self.kind]

    @property
    def chunks_of_groups(self) -> list[int]:
        last = self.columns - (self.groups - 1) * self.group
        return [-(-self.group // self.chunk)] * (self.groups - 1) + [-(-last // self.chunk)]

    @property
    def chunks(self) -> int:
        return sum(self.chunks_of_groups)

    @property
    def packed(self) -> tuple[int, int, int, int]:
        """The shape of the packed bytes: tiles, chunks, rows of a tile, bytes of a chunk."""
        return self.tiles, self.chunks, ROWS, 4


def spread(values: Tensor, shape: PackedShape, fill: int = 0) -> Tensor:
    """[rows, columns] -> [rows, chunks * chunk]: every group begins a chunk, the gaps are filled."""
    rows, chunk = values.shape[0], shape.chunk
    out = values.new_full((rows, shape.chunks * chunk), fill)
    whole, width = shape.groups - 1, -(-shape.group // chunk) * chunk
    if whole:
        grouped = values[:, : whole * shape.group].reshape(rows, whole, shape.group)
        out[:, : whole * width].view(rows, whole, width)[:, :, : shape.group] = grouped
    last = shape.columns - whole * shape.group
    out[:, whole * width : whole * width + last] = values[:, whole * shape.group :]
    return out


def gather(values: Tensor, shape: PackedShape) -> Tensor:
    """The inverse of `spread`."""
    rows, chunk = values.shape[0], shape.chunk
    whole, width = shape.groups - 1, -(-shape.group // chunk) * chunk
    grouped = values[:, : whole * width].reshape(rows, whole, width)[:, :, : shape.group].reshape(rows, -1)
    last = shape.columns - whole * shape.group
    return torch.cat([grouped, values[:, whole * width : whole * width + last]], dim=1)


def pack(values: Tensor, shape: PackedShape) -> Tensor:
    """Integers [rows, columns] -> bytes [tiles, chunks, 16, 4].

    >>> shape = PackedShape("1.6bit", 2, 3, 3)
    >>> trits = torch.tensor([[1, 0, -1], [0, 1, 1]])
    >>> pack(trits, shape).shape, bool((unpack(pack(trits, shape), shape) == trits).all())
    (torch.Size([1, 1, 16, 4]), True)
    """
    low, high = LIMITS[shape.kind]
    if tuple(values.shape) != (shape.rows, shape.columns) or bool((values < low).any() | (values > high).any()):
        raise UsageError(f"{shape.kind} packs {shape.rows} x {shape.columns} values from {low} to {high}", where="pack")
    offset, step, digits = OFFSET[shape.kind], STEP[shape.kind], DIGITS[shape.kind]
    codes = spread(((values.to(torch.int16) + offset) // step).to(torch.uint8), shape, offset // step)
    missing = shape.tiles * ROWS - shape.rows
    if missing:
        codes = torch.cat([codes, codes.new_full((missing, codes.shape[1]), offset // step)])
    parts = codes.view(shape.tiles, ROWS, shape.chunks, digits, 4).permute(3, 0, 2, 1, 4)  # digit first
    return _joined(parts, shape.kind).contiguous()


def _joined(parts: Tensor, kind: str) -> Tensor:
    """[digits, ...] codes -> [...] bytes."""
    if kind == "1.6bit":
        value = torch.zeros_like(parts[0], dtype=torch.int32)
        for digit in parts:
            value = value * 3 + digit
        # a fixed-point fraction: multiplying by 3 moves the next digit out at the top (as in ggml's
        # TQ1_0)
        return ((value * 256 + 242) // 243).to(torch.uint8)
    bits = 8 // len(parts)
    total = torch.zeros_like(parts[0])
    for place, digit in enumerate(parts):
        total |= digit << (bits * place)
    return total


def unpack(packed: Tensor, shape: PackedShape) -> Tensor:
    """Bytes -> int8 [rows, columns]. Raises CheckpointError for bytes that `pack` never writes."""
    if tuple(packed.shape) != shape.packed or packed.dtype != torch.uint8:
        raise CheckpointError(
            f"packed weights of shape {tuple(packed.shape)}, expected {shape.packed}",
            fix=DAMAGED,
        )
    parts = split_digits(packed, shape.kind)
    if shape.kind == "1.6bit" and not torch.equal(_joined(torch.stack(parts), shape.kind), packed):
        raise CheckpointError(
            "packed weights hold a byte that does not encode five trits",
            fix=DAMAGED,
        )
    codes = torch.stack(parts, dim=-2)  # tiles, chunks, 16, digits, 4
    rows = codes.permute(0, 2, 1, 3, 4).reshape(shape.tiles * ROWS, -1)[: shape.rows]
    values = value_of(gather(rows, shape), shape.kind)
    low, high = LIMITS[shape.kind]
    if bool((values < low).any() | (values > high).any()):
        raise CheckpointError(
            "packed weights hold a code without a value",
            fix=DAMAGED,
        )
    return values


def value_of(codes: Tensor, kind: str) -> Tensor:
    return (STEP[kind] * codes.to(torch.int16) - OFFSET[kind]).to(torch.int8)


def unpack_rows(packed: Tensor, shape: PackedShape, rows: Tensor) -> Tensor:
    """The values int8 [n, columns] of some rows [n]: an embedding's look-up."""
    lines = packed[rows // ROWS, :, rows % ROWS]  # n, chunks, 4
    codes = torch.stack(split_digits(lines, shape.kind), dim=-2).flatten(1)
    return value_of(gather(codes, shape), shape.kind)


def split_digits(packed: Tensor, kind: str) -> list[Tensor]:
    """[...] bytes -> the digits' codes, each [...]."""
    if kind == "1.6bit":
        codes, rest = [], packed.to(torch.int16)
        for _ in range(5):
            rest = rest * 3
            codes.append((rest >> 8).to(torch.uint8))
            rest = rest & 255
        return codes
    digits = DIGITS[kind]
    bits = 8 // digits
    return [(packed >> (bits * place)) & (2**bits - 1) for place in range(digits)]
