"""safetensors files, read and checked without the library: the header, the digest, and the tensors as arrays."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agent_forge.errors import CheckpointError
from agent_forge.files import file_digest

MAX_HEADER = 100 << 20  # the limit of the safetensors library itself
BYTES_OF = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


def read_header(file: Path) -> dict[str, dict[str, Any]]:
    """The tensors of a safetensors file, checked against its size: {name: {dtype, shape, data_offsets}}.

    Raises CheckpointError for a header that is too long, ambiguous, or does not fit the bytes.
    """
    size = file.stat().st_size
    try:
        with open(file, "rb") as handle:
            (length,) = struct.unpack("<Q", handle.read(8))
            if length > min(MAX_HEADER, size - 8):
                raise ValueError("the header is longer than the file")
            header: dict[str, dict[str, Any]] = json.loads(handle.read(length), object_pairs_hook=_unique)
        header.pop("__metadata__", None)
        _check_offsets(header, size - 8 - length)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"not a sound safetensors file: {error}", where=str(file)) from error
    return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(mapping := dict(pairs)) != len(pairs):
        raise ValueError("the header contains a name twice")
    return mapping


def _check_offsets(header: dict[str, dict[str, Any]], room: int) -> None:
    end = 0
    for name, tensor in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        start, stop = tensor["data_offsets"]
        numbers = (start, stop, *tensor["shape"])
        if len(numbers) > 66 or not all(isinstance(number, int) and 0 <= number < 1 << 63 for number in numbers):
            raise ValueError(f"the offsets or the shape of {name!r} are not valid sizes")
        if start != end or stop < start:
            raise ValueError(f"the bytes of {name!r} overlap or leave a gap")
        width = BYTES_OF.get(tensor["dtype"])
        if width is not None and stop - start != width * elements(tensor):
            raise ValueError(f"{name!r} has {stop - start} bytes, but its shape needs {width * elements(tensor)}")
        end = stop
    if end != room:
        raise ValueError(f"the tensors take {end} bytes, the file holds {room}")


def elements(tensor: dict[str, Any]) -> int:
    return math.prod(tensor["shape"])


NUMPY_TYPES = {"F64": "f8", "F32": "f4", "F16": "f2", "BF16": "u2", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1"}
NUMPY_TYPES |= {"U8": "u1", "BOOL": "?"}


def read_arrays(file: Path) -> dict[str, Any]:
    """The tensors as numpy arrays: views of the mapped file, which is read where they are used. bfloat16, which numpy
    does not have, becomes float32. Raises CheckpointError."""
    import numpy as np

    header = read_header(file)
    unknown = {tensor["dtype"] for tensor in header.values()} - set(NUMPY_TYPES)
    if unknown:
        raise CheckpointError(f"tensors of type {', '.join(sorted(unknown))} cannot be read", where=str(file))
    size = sum(tensor["data_offsets"][1] - tensor["data_offsets"][0] for tensor in header.values())
    first = file.stat().st_size - size
    whole = np.memmap(file, np.uint8, "r") if size else np.empty(0, np.uint8)
    arrays = {}
    for name, tensor in header.items():
        start, stop = (first + offset for offset in tensor["data_offsets"])
        part = whole[start:stop]
        kind = np.dtype(NUMPY_TYPES[tensor["dtype"]]).newbyteorder("<")
        # A header may leave the data at an odd address, and C wants whole numbers: those are copied.
        part = np.frombuffer(part.tobytes(), kind) if start % kind.itemsize else np.asarray(part).view(kind)
        if tensor["dtype"] == "BF16":
            part = (part.astype(np.uint32) << 16).view(np.float32)
        arrays[name] = part.reshape(tensor["shape"])
    return arrays


def check_files(files: Iterable[Path], digests: Mapping[str, str]) -> None:
    """Raises CheckpointError unless each file is, byte for byte, the one that was written."""
    for file in map(Path, files):
        if not file.is_file():
            raise CheckpointError("the file is missing", where=str(file))
        read_header(file)
        if digests.get(file.name) != file_digest(file):
            raise CheckpointError(
                "the bytes are not those that were written",
                where=str(file),
                fix="The file was changed or damaged: copy it again, or pack the model again",
            )
