"""JSON read strictly: no repeated keys, no NaN or infinity, no endless digits, no RecursionError."""

from __future__ import annotations

import json
import math
from typing import Any

_DIGITS = 400  # more digits in one number than any double holds


class NotJson(ValueError):
    """Text that is not JSON as we accept it; `line` is where, when that is known."""

    def __init__(self, what: str, line: int | None = None) -> None:
        super().__init__(what)
        self.line = line


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise NotJson(f"the key {repeated!r} occurs twice")
    return table


def _no_constant(name: str) -> Any:
    raise NotJson(f"{name} is not a JSON number")


def _integer(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise NotJson(f"a number has {len(digits)} digits")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise NotJson(f"the number {digits[:40]} is too large")
    return value


# strict=False accepts line breaks inside strings, which models write; it loses nothing.
_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_no_constant, parse_int=_integer, parse_float=_finite, strict=False
)


def read_json(text: str) -> Any:
    """The value of a whole JSON text; raises `NotJson`.

    >>> read_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ...
    agent_forge.plans.json_text.NotJson: the key 'a' occurs twice
    """
    value, end = read_json_at(text, len(text) - len(text.lstrip()))
    if text[end:].strip():
        raise NotJson("there is more text after the end of the JSON value", text.count("\n", 0, end) + 1)
    return value


def read_json_at(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that begins at a position, and where it ends; raises `NotJson`."""
    try:
        return _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise NotJson(f"not JSON: {error.msg}", error.lineno) from None
    except RecursionError:
        raise NotJson("nested too deeply") from None


def json_line(value: Any, avoid: str = "") -> str:
    """JSON on one line with some characters escaped, which must be such as occur only inside strings.

    >>> json_line(["a|b", "é"], avoid="|")
    '["a\\\\u007cb", "é"]'
    """
    text = json.dumps(value, ensure_ascii=False)
    for character in avoid:
        if character in text:
            text = text.replace(character, f"\\u{ord(character):04x}")
    return text
