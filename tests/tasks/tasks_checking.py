"""What the tests of task families share: changes of an answer that change its meaning."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

from agent_forge.tasks import Exercise, family

LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)


def exercises(name: str, count: int) -> Iterator[Exercise]:
    """So many exercises of a family, over all levels."""
    for place in range(count):
        yield family(name).make(place, LEVELS[place % len(LEVELS)])


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of everything in a JSON value that is not a list or an object."""
    if isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key))
    else:
        yield path


def changed(answer: Any, rng: random.Random) -> Any:
    """A JSON value with one thing in it changed: a number, a text, or an element of a list gone or twice there."""
    answer = copy.deepcopy(answer)
    paths = list(leaves(answer))
    if not paths:
        return {**answer, "unknown": 1}
    path = rng.choice(paths)
    inside = answer
    for key in path[:-1]:
        inside = inside[key]
    if isinstance(inside, list) and rng.random() < 0.3:
        inside.pop(path[-1]) if rng.random() < 0.5 else inside.insert(path[-1], inside[path[-1]])
        return answer
    value = inside[path[-1]]
    if isinstance(value, str):
        texts = [text for text in _texts(answer) if text != value] or [value + "x"]
        inside[path[-1]] = rng.choice([*texts, value + "1", *([value[:-1]] if value else [])])
    else:
        inside[path[-1]] = value + rng.choice((-100, -1, 1, 2, 10))
    return answer


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for each in inner for text in _texts(each)]


def missed(name: str, change: Callable[[Any, random.Random], Any] = changed, count: int = 1000) -> list[Any]:
    """Of so many changed answers, those that the checker still calls right."""
    rng = random.Random(name)
    pool = [(exercise, exercise.solution()) for exercise in exercises(name, 50)]
    result = []
    for _ in range(count):
        exercise, solution = rng.choice(pool)
        answer = change(solution, rng)
        if exercise.check(answer).correct:
            result.append((exercise.seed, exercise.level, answer))
    return result
