"""The container of one compressed tensor: what a codec made of it, as bytes that carry their own checksum.

    b"AFC1" | digest of the rest (8 bytes) | length of the head | head (JSON) | parts

The head names the codec, its settings, the shape and the parts. Every byte that decoding needs is
in here, so the length of the container is the full size of the tensor. Parts of unsigned integers
go through the entropy coder, a part called `plain` is stored as bits of a fixed width, other parts
as they are. Where `row_class` and `column_class` are among the parts, the entries of `codes` are
coded in the context of their row's and column's usual magnitude.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agent_forge.errors import CheckpointError
from agent_forge.forge.compression.entropy import pack_symbols, unpack_symbols

MAGIC = b"AFC1"
DIGEST = 8
TYPES = {"u1": np.uint8, "u2": np.uint16, "i1": np.int8, "f2": np.float16, "f4": np.float32}
NAMES = {np.dtype(kind): name for name, kind in TYPES.items()}
CLASSES = 16


@dataclass(frozen=True)
class Encoded:
    """A tensor as a codec left it: arrays, and the settings that say how to read them."""

    codec: str
    shape: tuple[int, ...]
    parts: Mapping[str, np.ndarray]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def size(self) -> int:
        """Bytes of the container, head and checksum included."""
        return len(pack(self))


def pack(encoded: Encoded) -> bytes:
    """The container. `unpack` restores exactly the same arrays."""
    entries, data = [], []
    for name, array in encoded.parts.items():
        if array.dtype in (np.uint8, np.uint16):
            contexts = context_of(encoded.parts) if name == "codes" else None
            part = pack_symbols(array, contexts, fixed=name == "plain")
        else:
            part = array.astype(array.dtype.newbyteorder("<")).tobytes()
        entries.append([name, NAMES[array.dtype], list(array.shape), len(part)])
        data.append(part)
    fields = [encoded.codec, list(encoded.shape), dict(encoded.settings), entries]
    head = json.dumps(fields, separators=(",", ":"), allow_nan=False).encode()
    body = struct.pack("<I", len(head)) + head + b"".join(data)
    return MAGIC + hashlib.blake2b(body, digest_size=DIGEST).digest() + body


def unpack(data: bytes, where: str | None = None) -> Encoded:
    """Raises CheckpointError if a byte is missing or differs from what was written."""
    body = data[len(MAGIC) + DIGEST :]
    if data[: len(MAGIC)] != MAGIC:
        raise CheckpointError("this is not a compressed tensor", where=where)
    if hashlib.blake2b(body, digest_size=DIGEST).digest() != data[len(MAGIC) : len(MAGIC) + DIGEST]:
        fix = "The file was truncated or changed: copy it again, or compress the model again"
        raise CheckpointError("the checksum of a compressed tensor does not match", where=where, fix=fix)
    try:
        (length,) = struct.unpack_from("<I", body)
        codec, shape, settings, entries = json.loads(body[4 : 4 + length])
        parts: dict[str, np.ndarray] = {}
        at = 4 + length
        for name, kind, sizes, size in entries:
            part, dtype = body[at : at + size], np.dtype(TYPES[kind])
            if dtype.kind == "u":
                array = unpack_symbols(part, context_of(parts) if name == "codes" else None)
            else:
                array = np.frombuffer(part, dtype.newbyteorder("<"))
            parts[name] = array.astype(dtype).reshape(sizes)
            at += size
        if at != len(body):
            raise ValueError("its length is not that of its parts")
        return Encoded(codec, tuple(shape), parts, settings)
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"a compressed tensor cannot be read: {error}", where=where) from error


def weights_of(data: bytes) -> int:
    """How many weights a container holds, from its first bytes.

    >>> weights_of(pack(Encoded("raw", (3, 5), {})))
    15
    """
    try:
        if data[: len(MAGIC)] != MAGIC:
            raise ValueError("this is not a compressed tensor")
        at = len(MAGIC) + DIGEST
        (length,) = struct.unpack_from("<I", data, at)
        shape = json.loads(data[at + 4 : at + 4 + length])[1]
        return math.prod(int(size) for size in shape)
    except (struct.error, ValueError, IndexError, TypeError) as error:
        raise CheckpointError(f"a compressed tensor cannot be read: {error}") from error


def magnitude_classes(codes: np.ndarray) -> dict[str, np.ndarray]:
    """The parts `row_class` and `column_class` of integers around zero: their usual size, in half octaves."""
    size = np.abs(codes).astype(np.float64)
    mean = max(float(size.mean()), 1e-9)
    classes = {}
    for name, axis in (("row_class", 1), ("column_class", 0)):
        ratio = np.maximum(size.mean(axis) / mean, 1e-9)
        classes[name] = np.clip(np.round(2 * np.log2(ratio)) + CLASSES // 2, 0, CLASSES - 1).astype(np.uint8)
    return classes


def context_of(parts: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """The context of every entry of `codes` [R, C], which the reader can compute before it reads them."""
    if "row_class" not in parts:
        return None
    rows, columns = parts["row_class"].astype(np.int16), parts["column_class"].astype(np.int16)
    return np.clip(rows[:, None] + columns[None, :] - CLASSES // 2, 0, CLASSES - 1).astype(np.uint8)
