"""The header of a safetensors file, read and checked without the library: names, types, shapes, offsets."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

from agent_forge.errors import CheckpointError

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
