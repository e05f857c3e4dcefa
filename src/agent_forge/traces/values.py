"""Recorded values of any type as JSON text, and back."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any

DEPTH = 64  # how deep a recorded value may nest before it is cut


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_decode = json.JSONDecoder().decode


def to_json(value: Any) -> str:
    """JSON text of any value: what JSON cannot express is written as the nearest thing it can.

    >>> to_json({"x": float("nan"), "when": {1, 2}})
    '{"x":{"$double":"NaN"},"when":[1,2]}'
    """
    try:
        return _codec()[0](value)
    except (ValueError, TypeError, RecursionError):
        return _standard_json(plain(value))


def parse(data: bytes) -> Any:
    """The JSON document of a request, with orjson where it is installed. Raises ValueError.

    Integers beyond 64 bits may come out as floats: use `from_json` where they matter.
    """
    try:
        return _codec()[1](data)
    except RecursionError as error:
        raise ValueError("it nests too deep") from error


@cache
def _codec() -> tuple[Callable[[Any], str], Callable[[bytes], Any]]:
    """How JSON is written and read: with orjson, several times as fast, and by the standard library otherwise.

    orjson is loaded when it is first needed: this room imports with the standard library alone.
    """
    try:
        import orjson
    except ImportError:
        return _standard_json, json.loads
    dumps, loads = orjson.dumps, orjson.loads
    options = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME

    def write(value: Any) -> str:
        try:
            data = dumps(value, None, options)
        except TypeError:  # large integers, keys that are not text, lone surrogates
            return _standard_json(value)
        # orjson writes NaN and infinity as null too; the standard library refuses them.
        return _standard_json(value) if b"null" in data else data.decode()

    def read(data: bytes) -> Any:
        try:
            return loads(data)
        except ValueError:  # NaN, a byte order mark, lone surrogates: the standard library takes them
            return json.loads(data)

    return write, read


def _standard_json(value: Any) -> str:
    text = _ENCODER.encode(value)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()  # lone surrogates cannot be stored


def from_json(text: str | None) -> Any:
    """The inverse of `to_json`; None for None."""
    if text is None:
        return None
    value = _decode(text)
    return restore(value) if '"$' in text else value


def plain(value: Any, depth: int = DEPTH) -> Any:
    """`value` in JSON's own types, cut where it nests too deep (which also ends cycles)."""
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool):
        return value
    for basic in (int, str):  # subclasses (bool is one of int) as the type itself
        if isinstance(value, basic):
            return basic(value)
    if isinstance(value, float):
        special = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return float(value) if math.isfinite(value) else {"$double": special}
    if depth == 0:
        return "…"
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): plain(item, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
        return [plain(item, depth - 1) for item in items]
    return _foreign(value, depth)


def _foreign(value: Any, depth: int) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"$bytes": base64.b64encode(bytes(value)).decode()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: plain(getattr(value, field.name, None), depth - 1) for field in fields}
    for method in ("tolist", "isoformat", "model_dump"):  # numpy and torch, dates, pydantic
        convert = getattr(value, method, None)
        if callable(convert) and not isinstance(value, type):
            try:
                return plain(convert(), depth - 1)
            except Exception:  # noqa: S112 (someone else's object must not break the record)
                continue
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"


def restore(value: Any) -> Any:
    """Undoes `plain` for the numbers and bytes that JSON has no form for."""
    if isinstance(value, list):
        return [restore(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        if isinstance(number := value.get("$double"), str):
            return float(number)
        if isinstance(data := value.get("$bytes"), str):
            return base64.b64decode(data)
    return {key: restore(item) for key, item in value.items()}


def storable(value: str) -> str:
    """Text that both databases take: PostgreSQL has no NUL, and neither stores lone surrogates."""
    if value.isascii() and "\0" not in value:
        return value
    return value.replace("\0", "�").encode("utf-8", "replace").decode()


def finite(value: float | None) -> float | None:
    """A number that can be added up: one NaN or infinity would spoil the sum, so it counts as not measured."""
    return value if value is None or -1e300 < value < 1e300 else None


MOST_COUNTED = 2**40  # tokens per span; sums of a million such spans still fit a database's integers


def countable(value: int | None) -> int | None:
    """A count that can be added up: more tokens than any model can have used count as not measured. What no database
    takes stays as it is, to be refused there.

    >>> countable(7), countable(2**50)
    (7, None)
    """
    if value is None or -MOST_COUNTED < value < MOST_COUNTED:
        return value
    return None if -(2**63) <= value < 2**63 else value
