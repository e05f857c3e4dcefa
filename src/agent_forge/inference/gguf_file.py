"""A reader for GGUF files: settings, vocabulary, tensors.

It reads the container only (ggml's gguf.md, versions 2 and 3); the `gguf` package undoes the quantisation. That
package's own reader builds an object for each of the 100,000 strings of a vocabulary, which takes seconds; this one
takes a fraction of a second. Every length is checked against the size of the file before it is used.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_forge.errors import MissingExtraError, ModelError

# value type: (struct code, bytes); 8 is a string, 9 an array
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
MOST_ENTRIES = 10_000_000
MOST_ALIGNMENT = 1 << 20


@dataclass(frozen=True, slots=True)
class TensorEntry:
    name: str
    shape: tuple[int, ...]  # in ggml's order: the fastest dimension first
    kind: int
    offset: int


class GgufFile:
    """A GGUF file: `settings` are its key-value pairs, `tensor(name)` returns a float32 array.

    Raises ModelError for any other file, and for a truncated one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelError(f"the file cannot be read: {error}", where=str(path)) from error
        self._at = 0
        try:
            self._read_header()
        except (struct.error, IndexError, ValueError, KeyError, TypeError) as error:
            raise ModelError(f"it is not a complete GGUF file: {error!r}", where=str(path)) from error

    def _read_header(self) -> None:
        if self._data[:4] != b"GGUF":
            raise ModelError("it is not a GGUF file", where=str(self.path))
        self._at = 4
        version, tensors, settings = self._number("I"), self._number("Q"), self._number("Q")
        if version not in (2, 3):
            raise ModelError(f"GGUF version {version} is not supported", where=str(self.path))
        pairs = [(self._string(), self._value(self._number("I"))) for _ in self._many(settings)]
        entries = [self._entry() for _ in self._many(tensors)]
        self.settings: dict[str, Any] = dict(pairs)
        self.tensors = {entry.name: entry for entry in entries}
        if len(self.settings) < len(pairs) or len(self.tensors) < len(entries):
            raise ValueError("a setting or a tensor occurs twice")
        alignment = int(self.settings.get("general.alignment", 32))
        if not 0 < alignment <= MOST_ALIGNMENT:
            raise ValueError(f"the alignment is {alignment}")
        self._start = -(-self._at // alignment) * alignment

    def _many(self, count: int) -> Iterator[int]:
        if count > MOST_ENTRIES:
            raise ModelError(f"the header announces {count:,} entries", where=str(self.path))
        return iter(range(count))

    def _number(self, code: str) -> Any:
        size = struct.calcsize(code)
        (value,) = struct.unpack_from(f"<{code}", self._data, self._at)
        self._at += size
        return value

    def _string(self) -> str:
        length = self._number("Q")
        if length > len(self._data) - self._at:
            raise IndexError("a string goes beyond the end of the file")
        self._at += length
        return self._data[self._at - length : self._at].decode("utf-8")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._number(_SCALARS[kind])
        item, count = self._number("I"), self._number("Q")
        if item == _STRING:
            return [self._string() for _ in self._many(count)]
        self._many(count)
        code = f"<{count}{_SCALARS[item]}"  # a KeyError for arrays of arrays, which no model has
        values = list(struct.unpack_from(code, self._data, self._at))
        self._at += struct.calcsize(code)
        return values

    def _entry(self) -> TensorEntry:
        name, dimensions = self._string(), self._number("I")
        if not 1 <= dimensions <= 8:
            raise ValueError(f"a tensor with {dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(dimensions))
        if not all(shape):
            raise ValueError(f"the tensor {name[:100]!r} has a dimension of 0")
        return TensorEntry(name, shape, self._number("I"), self._number("Q"))

    def tensor(self, name: str) -> Any:
        """A tensor as a float32 array, the slowest dimension first. Raises ModelError."""
        try:
            import numpy
            from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
        except ImportError as error:
            raise MissingExtraError("a GGUF model", "local") from error
        entry, where = self.tensors[name], str(self.path)
        try:
            kind = GGMLQuantizationType(entry.kind)
        except ValueError as error:
            raise ModelError(f"the tensor {name!r} has the unknown type {entry.kind}", where=where) from error
        block, block_bytes = GGML_QUANT_SIZES[kind]
        if entry.shape[0] % block:
            raise ModelError(f"a row of {name!r} is not a whole number of blocks of {block}", where=where)
        count = math.prod(entry.shape)
        start = self._start + entry.offset
        length = count // block * block_bytes
        if start + length > len(self._data):
            raise ModelError(f"the tensor {name!r} goes beyond the end of the file", where=where)
        raw = numpy.frombuffer(self._data, dtype=numpy.uint8, count=length, offset=start)
        shape = entry.shape[::-1]
        rows = raw.reshape(*shape[:-1], shape[-1] // block * block_bytes)
        return numpy.array(dequantize(rows, kind), dtype=numpy.float32).reshape(shape)
