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

from dataclasses import dataclass
from typing import Any

import numpy as np

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


def pack(values: Any, shape: PackedShape) -> Any:
    """Integers [rows, columns] -> bytes [tiles, chunks, 16, 4].

    >>> shape = PackedShape("1.6bit", 2, 3, 3)
    >>> trits = np.array([[1, 0, -1], [0, 1, 1]])
    >>> pack(trits, shape).shape, bool((unpack(pack(trits, shape), shape) == trits).all())
    ((1, 1, 16, 4), True)
    """
    low, high = LIMITS[shape.kind]
    if tuple(values.shape) != (shape.rows, shape.columns) or ((values < low) | (values > high)).any():
        raise UsageError(f"{shape.kind} packs {shape.rows} x {shape.columns} values from {low} to {high}", where="pack")
    offset, step = OFFSET[shape.kind], STEP[shape.kind]
    codes = np.full((shape.tiles * ROWS, shape.chunks * shape.chunk), offset // step, np.uint8)
    codes[: shape.rows, _places(shape)] = (values.astype(np.int16) + offset) // step
    parts = codes.reshape(shape.tiles, ROWS, shape.chunks, DIGITS[shape.kind], 4).transpose(
        3, 0, 2, 1, 4
    )  # digit first
    return np.ascontiguousarray(_joined(parts, shape.kind))


def _joined(parts: Any, kind: str) -> Any:
    """[digits, ...] codes -> [...] bytes."""
    if kind == "1.6bit":
        value = np.zeros(parts.shape[1:], np.int32)
        for digit in parts:
            value = value * 3 + digit
        # a fixed-point fraction: multiplying by 3 moves the next digit out at the top (as in ggml's TQ1_0)
        return ((value * 256 + 242) // 243).astype(np.uint8)
    bits = 8 // len(parts)
    total = np.zeros(parts.shape[1:], np.uint8)
    for place, digit in enumerate(parts):
        total |= digit << (bits * place)
    return total


def _split(kind: str) -> Any:
    """The codes of every byte, [256, digits]."""
    whole = np.arange(256, dtype=np.int32)
    if kind == "1.6bit":
        return np.stack([whole * 3**digit % 256 * 3 >> 8 for digit in range(5)], axis=1)
    bits = 8 // DIGITS[kind]
    return np.stack([whole >> (bits * place) & (2**bits - 1) for place in range(DIGITS[kind])], axis=1)


def _sound(kind: str) -> Any:
    """Whether `pack` writes the byte, [256]."""
    codes, (low, high) = _split(kind), LIMITS[kind]
    values = STEP[kind] * codes - OFFSET[kind]
    again = _joined(np.moveaxis(codes, 1, 0).astype(np.uint8), kind)
    return (again == np.arange(256)) & ((values >= low) & (values <= high)).all(1)


VALUES = {kind: (STEP[kind] * _split(kind) - OFFSET[kind]).astype(np.int8) for kind in KINDS}  # [256, digits]
SOUND = {kind: _sound(kind) for kind in KINDS}


def _places(shape: PackedShape) -> Any:
    """Where each column lies among the padded ones: every group begins a chunk."""
    if shape.groups == 1:
        return slice(0, shape.columns)
    columns, width = np.arange(shape.columns), -(-shape.group // shape.chunk) * shape.chunk
    return columns // shape.group * width + columns % shape.group


def check_packed(packed: Any, shape: PackedShape) -> None:
    """Raises CheckpointError for bytes of another shape (`packed` may be an array or a tensor)."""
    if tuple(packed.shape) != shape.packed or str(packed.dtype).rpartition(".")[2] != "uint8":
        raise CheckpointError(f"packed weights of shape {tuple(packed.shape)}, expected {shape.packed}", fix=DAMAGED)


def refuse_unsound(sound: Any) -> None:
    """Raises CheckpointError unless every byte is one that `pack` writes."""
    if not bool(sound.all()):
        raise CheckpointError("packed weights hold a byte that encodes no weights", fix=DAMAGED)


def in_rows(values: Any, shape: PackedShape) -> Any:
    """Values of bytes [tiles, chunks, 16, 4, digits] -> [rows, columns]; arrays and tensors alike."""
    lines = values.swapaxes(1, 2).swapaxes(-1, -2)  # tiles, 16, chunks, digits, 4
    return lines.reshape(shape.tiles * ROWS, -1)[: shape.rows][:, _places(shape)]


def lines_in_rows(values: Any, shape: PackedShape) -> Any:
    """Values of single lines [n, chunks, 4, digits] -> [n, columns]."""
    return values.swapaxes(-1, -2).reshape(len(values), -1)[:, _places(shape)]


def unpack(packed: Any, shape: PackedShape) -> Any:
    """Bytes -> int8 [rows, columns]. Raises CheckpointError for bytes that `pack` never writes."""
    check_packed(packed, shape)
    refuse_unsound(SOUND[shape.kind][packed])
    return in_rows(VALUES[shape.kind][packed], shape)


def unpack_rows(packed: Any, shape: PackedShape, rows: Any) -> Any:
    """The values int8 [n, columns] of some rows [n]: an embedding's look-up."""
    return lines_in_rows(VALUES[shape.kind][packed[rows // ROWS, :, rows % ROWS]], shape)
