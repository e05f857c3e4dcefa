"""Changes that turn a right answer into a wrong one, to see whether a checker notices.

for mutant in mutants(answer, rng, schema=family.schema): assert not exercise.check(mutant).correct
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

from agent_forge.tasks import Exercise, family
from agent_forge.tasks.answers import number

Place = tuple[str | int, ...]
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def mutants(
    answer: Any,
    rng: random.Random,
    *,
    schema: Mapping[str, Any] | None = None,
    free: Sequence[str] = (),
    unordered: Sequence[str] = (),
) -> Iterator[Any]:
    """Endless copies of a JSON answer, each with one change that matters.

    A number, date, word or enumerated value becomes another; an item of a list is dropped, doubled or swapped with
    another. What is under the keys `free` may be worded freely and stays; lists under `unordered` have no order.
    """
    places = list(_places(answer, (), free))
    while True:
        place = rng.choice(places)
        value = _at(answer, place)
        key = next((step for step in reversed(place) if isinstance(step, str)), "")
        if isinstance(value, list):
            changed = _other_list(value, rng, ordered=key not in unordered)
        else:
            changed = other_value(value, rng, _enum(schema, place))
        if changed != value:
            mutant = copy.deepcopy(answer)
            _at(mutant, place[:-1])[place[-1]] = changed
            yield mutant


def other_value(value: Any, rng: random.Random, choices: Sequence[Any] = ()) -> Any:
    """Another value of the same kind."""
    if choices:
        return rng.choice([each for each in choices if each != value] or [value])
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, str) and _DATE.fullmatch(value):
        return (date.fromisoformat(value) + timedelta(days=rng.choice((-365, -30, -1, 1, 7, 31)))).isoformat()
    amount = number(value)
    if amount is not None and (not isinstance(value, str) or re.fullmatch(r"[-+\d.,]+", value)):
        other = rng.choice((amount + 1, amount - 1, amount * 10, -amount, amount + Decimal("0.01"), amount / 10))
        return str(other) if isinstance(value, str) else int(other) if other == int(other) else float(other)
    return _other_text(str(value), rng)


def _other_text(text: str, rng: random.Random) -> str:
    parts = text.split()
    if len(parts) > 1 and rng.random() < 0.5:
        parts.pop(rng.randrange(len(parts)))
        return " ".join(parts)
    if not parts:
        return "other"
    place = rng.randrange(len(parts))
    parts[place] = rng.choice((f"{parts[place]}x", "other", parts[place][:-1] or "z"))
    return " ".join(parts)


def _other_list(items: list[Any], rng: random.Random, *, ordered: bool) -> list[Any]:
    changed, kind = list(items), rng.choice(("drop", "double", "swap") if ordered else ("drop", "double"))
    if not items:
        return changed
    place, other = rng.randrange(len(items)), rng.randrange(len(items))
    if kind == "drop":
        changed.pop(place)
    elif kind == "double":
        changed.insert(other, items[place])
    else:
        changed[place], changed[other] = items[other], items[place]
    return changed


def _places(value: Any, place: Place, free: Sequence[str]) -> Iterator[Place]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in free:
                yield from _places(inner, (*place, key), free)
    elif isinstance(value, list):
        if value:
            yield place
        for index, inner in enumerate(value):
            yield from _places(inner, (*place, index), free)
    else:
        yield place


def _at(value: Any, place: Place) -> Any:
    for step in place:
        value = value[step]
    return value


def _enum(schema: Mapping[str, Any] | None, place: Place) -> Sequence[Any]:
    """What a schema lets a value at a place be."""
    for step in place:
        schema = (
            (schema or {}).get("items") if isinstance(step, int) else (schema or {}).get("properties", {}).get(step)
        )
    return list((schema or {}).get("enum", ()))


def survivors(
    name: str, mutate: Callable[[Exercise, random.Random], Iterator[Any]], *, count: int = 1000
) -> list[tuple[Exercise, Any]]:
    """Mutants of right answers at all levels that the checker of a family takes for right."""
    alive = []
    for seed in range(count // 20):
        exercise = family(name).make(seed=seed, level=seed % 5 / 4)
        changed = mutate(exercise, random.Random(seed))
        for _ in range(20):
            mutant = next(changed)
            if exercise.check(mutant).correct:
                alive.append((exercise, mutant))
    return alive
