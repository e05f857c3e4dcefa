"""Operations on earlier results: which is earliest, are they the same, how far apart.

A result is None if a value is missing or cannot be read: an answer is computed or not given at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agent_forge.agents.actions import Combine
from agent_forge.agents.synthesis.values import country_in, parse_date, parse_number, plain


def combine(operation: Combine) -> str | None:
    """The result of an operation on the values of its operands.

    >>> combine(Combine("earliest", ("3 May 1960", "1 May 1960"), ("Ann", "Bob")))
    'Bob'
    """
    values = operation.operands
    if operation.operation in ("number", "sum") and len(values) == 1 and isinstance(values[0], list):
        values = tuple(values[0])  # the items of one list
        if operation.operation == "number" and all(map(_is_plain, values)):
            return str(len(values))
    if not operation.operands or not all(map(_is_plain, values)):
        return None  # unknown, or something with a structure that nobody has read yet, such as passages
    return _OPERATIONS[operation.operation](operation, values)


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and value != ""


def _choose(operation: Combine, values: Sequence[Any]) -> str | None:
    texts = [str(value) for value in values]
    keys = _comparable(texts)
    if keys is None:
        return None
    best = (min if operation.operation in {"earliest", "smallest"} else max)(keys)
    winners = [label for label, key in zip(operation.labels or texts, keys, strict=True) if key == best]
    return winners[0] if len(winners) == 1 else None


def _comparable(texts: list[str]) -> list[Any] | None:
    """Dates if all are dates, cut to the precision that they share; else numbers; None if neither."""
    dates = [date for date in map(parse_date, texts) if date]
    if len(dates) == len(texts):
        precision = min(3 if day else 2 if month else 1 for _, month, day in dates)
        return [date[:precision] for date in dates]
    numbers = [parse_number(text) for text in texts]
    return None if None in numbers else numbers


def _true(operation: Combine, values: Sequence[Any]) -> str | None:
    yes = [label for label, value in zip(operation.labels, values, strict=False) if _is_yes(value)]
    return yes[0] if len(yes) == 1 else None


def _same(operation: Combine, values: Sequence[Any]) -> str:
    return "yes" if len({plain(country_in(str(value)) or str(value)) for value in values}) == 1 else "no"


def _both(operation: Combine, values: Sequence[Any]) -> str:
    return "yes" if all(_is_yes(value) for value in values) else "no"


def _common(operation: Combine, values: Sequence[Any]) -> str | None:
    lists = [[part.strip() for part in str(value).replace(" and ", ",").split(",") if part.strip()] for value in values]
    others = [{plain(part) for part in parts} for parts in lists[1:]]
    shared = [part for part in lists[0] if all(plain(part) in other for other in others)]
    return ", ".join(shared) or None


def _difference(operation: Combine, values: Sequence[Any]) -> str | None:
    dates = [parse_date(str(value)) for value in values]
    numbers = [date[0] for date in dates if date] if all(dates) else [parse_number(str(value)) for value in values]
    if len(numbers) != 2 or None in numbers:
        return None
    return f"{abs((numbers[0] or 0) - (numbers[1] or 0)):g}"


def _sum(operation: Combine, values: Sequence[Any]) -> str | None:
    """Also the number of something, where a text says it ("12 bridges")."""
    numbers = [parse_number(str(value)) for value in values]
    return None if None in numbers else f"{sum(number or 0 for number in numbers):g}"


def _is_yes(value: Any) -> bool:
    return value is True or plain(str(value)) in {"yes", "true"}


_OPERATIONS: dict[str, Callable[[Combine, Sequence[Any]], str | None]] = {
    **dict.fromkeys(("earliest", "latest", "largest", "smallest"), _choose),
    "true": _true,
    "same": _same,
    "both": _both,
    "common": _common,
    "difference": _difference,
    "number": _sum,
    "sum": _sum,
}
