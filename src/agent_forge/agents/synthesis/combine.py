"""Operations on values that earlier tasks found: which is earliest, are they the same, how far apart.

Each answers None where a value is missing or cannot be read: an answer is worked out or it is not given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agent_forge.agents.relations import Combine
from agent_forge.agents.synthesis.values import country_in, parse_date, parse_number, plain


def combine(goal: Combine, values: Sequence[Any]) -> str | None:
    """The result of an operation on the operands' values, in order.

    >>> from agent_forge.agents.relations import parse_goal
    >>> combine(parse_goal("which is earliest of {s1} (Ann), {s2} (Bob)"), ["3 May 1960", "1 May 1960"])
    'Bob'
    """
    if not values or any(value is None or value == "" for value in values):
        return None
    return _OPERATIONS[goal.operation](goal, values)


def _choose(goal: Combine, values: Sequence[Any]) -> str | None:
    labels = goal.labels if len(goal.labels) == len(values) else tuple(map(str, values))
    keys = _comparable([str(value) for value in values])
    if keys is None:
        return None
    best = (min if goal.operation in {"earliest", "smallest"} else max)(keys)
    winners = [label for label, key in zip(labels, keys, strict=True) if key == best]
    return winners[0] if len(winners) == 1 else None


def _comparable(texts: list[str]) -> list[Any] | None:
    """Dates where all are dates, else numbers; None where they cannot be told apart by what is known of them."""
    dates = [parse_date(text) for text in texts]
    if all(dates):
        known = [date for date in dates if date]
        precision = min(3 if d[2] else 2 if d[1] else 1 for d in known)
        return [date[:precision] for date in known]
    numbers = [parse_number(text) for text in texts]
    return numbers if all(number is not None for number in numbers) else None


def _true(goal: Combine, values: Sequence[Any]) -> str | None:
    yes = [label for label, value in zip(goal.labels, values, strict=False) if _is_yes(value)]
    return yes[0] if len(yes) == 1 else None


def _same(goal: Combine, values: Sequence[Any]) -> str:
    return "yes" if len({plain(country_in(str(value)) or str(value)) for value in values}) == 1 else "no"


def _both(goal: Combine, values: Sequence[Any]) -> str:
    return "yes" if all(_is_yes(value) for value in values) else "no"


def _common(goal: Combine, values: Sequence[Any]) -> str | None:
    lists = [[part.strip() for part in str(value).replace(" and ", ",").split(",") if part.strip()] for value in values]
    rest = [{plain(part) for part in parts} for parts in lists[1:]]
    shared = [part for part in lists[0] if all(plain(part) in other for other in rest)]
    return ", ".join(shared) or None


def _difference(goal: Combine, values: Sequence[Any]) -> str | None:
    dates = [parse_date(str(value)) for value in values]
    numbers = [date[0] for date in dates if date] if all(dates) else [parse_number(str(value)) for value in values]
    if len(numbers) != 2 or None in numbers:
        return None
    return f"{abs((numbers[0] or 0) - (numbers[1] or 0)):g}"


def _number(goal: Combine, values: Sequence[Any]) -> str | None:
    value = values[0]
    if isinstance(value, (list, tuple)):
        return str(len(value))
    found = parse_number(str(value))
    return f"{found:g}" if found is not None else None


def _sum(goal: Combine, values: Sequence[Any]) -> str | None:
    parts = values[0] if isinstance(values[0], (list, tuple)) else values
    numbers = [parse_number(str(part)) for part in parts]
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
    "number": _number,
    "sum": _sum,
}
