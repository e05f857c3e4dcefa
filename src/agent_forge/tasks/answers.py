"""Reads what a model answered: text as it is, or JSON that fits a schema, also inside a fenced block or a sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

_FENCE = re.compile(r"```[a-zA-Z]*\s*\n(.*?)```", re.DOTALL)
_NUMBER = re.compile(  # thousands are grouped by threes: 1,20 is no number
    r"[-+]?(?:(?:\d{1,3}(?:[,' ]\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
)


def read_answer(answer: Any, schema: Mapping[str, Any] | None) -> tuple[Any, str | None]:
    """The answer as a value, and what is wrong with its form or None. Without a schema an answer is text.

    >>> read_answer('Here it is: {"total": 3}', {"type": "object", "required": ["total"]})
    ({'total': 3}, None)
    >>> read_answer("three", {"type": "object"})
    (None, 'the answer is not JSON')
    """
    if schema is None:
        return (answer, None) if isinstance(answer, str) else (None, "the answer is not text")
    if isinstance(answer, str):
        answer = _json_in(answer)
        if answer is _NOTHING:
            return None, "the answer is not JSON"
    from jsonschema import Draft202012Validator  # a tenth of a second, not needed to list families

    fault = next(iter(Draft202012Validator(dict(schema)).iter_errors(answer)), None)
    if fault is not None:
        return None, f"the answer does not fit its schema: {fault.json_path}: {fault.message}"
    return answer, None


_NOTHING = object()


def _json_in(text: str) -> Any:
    """The one JSON value in a text: the text itself, a fenced block, or the first object or list in it."""
    candidates = [text.strip(), *(block.strip() for block in _FENCE.findall(text))]
    starts = [place for place in (text.find("{"), text.find("[")) if place >= 0]
    for candidate in candidates:
        try:
            return json.loads(candidate)
        except ValueError:
            continue
    if starts:
        try:
            return json.JSONDecoder().raw_decode(text[min(starts) :])[0]
        except ValueError:
            pass
    return _NOTHING


def number(value: Any) -> Decimal | None:
    """A number however it is written, exactly, or None.

    >>> number("1,234.50 EUR"), number(3), number("none")
    (Decimal('1234.50'), Decimal('3'), None)
    """
    if isinstance(value, bool) or value is None:
        return None
    found = _NUMBER.findall(value) if isinstance(value, str) else [repr(value)]
    if len(found) != 1:
        return None
    try:
        return Decimal(re.sub(r"[,' ]", "", found[0]))
    except InvalidOperation:
        return None
