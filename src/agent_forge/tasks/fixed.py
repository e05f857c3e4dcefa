"""The fixed scenarios: 18 held-out exercises per agent in YAML files, and files of one's own in the same form.

    exercises:
      - family: finance
        seed: 0
        level: 0.2
        prompt: …
        expected: {…}

`agent` may stand beside `family`; by default it has the same name. `scripts/fixed_scenarios.py` writes the bundled
files. Held-out exercises never come out of `Family.make` for training, whatever the seed.
"""

from __future__ import annotations

import json
import os
from importlib.resources import files
from typing import Any

import yaml

from agent_forge.errors import ConfigError, UsageError
from agent_forge.tasks.family import LEVELS, Exercise, Family, family

PER_AGENT = 18
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where libyaml is built in


def fixed_exercises(name: str) -> list[Exercise]:
    """The bundled exercises of a family, a third per level. Raises UsageError if it has none."""
    path = files("agent_forge.tasks").joinpath(f"scenarios/{name}.yaml")
    if not path.is_file():
        raise UsageError(f"there are no fixed scenarios for {name!r}", fix="Draw fresh ones: --seed N")
    return [exercise for _, exercise in _read(path.read_text(encoding="utf-8"), str(path))]


def draw_fixed(tasks: Family) -> list[Exercise]:
    """What the bundled file of a family must contain."""
    return held_out(tasks, PER_AGENT, seed=0)


def held_out(tasks: Family, count: int, seed: int) -> list[Exercise]:
    """Different held-out exercises, spread over the levels in turn; others for another seed."""
    levels = list(LEVELS.values())
    exercises: dict[str, Exercise] = {}
    number = 0
    while len(exercises) < count:
        exercise = tasks.make(1_000_000 * seed + number, levels[len(exercises) % len(levels)], held_out=True)
        exercises.setdefault(exercise.prompt, exercise)
        number += 1
        if number > 100 * count:
            raise UsageError(f"family {tasks.name!r} has fewer than {count} different held-out exercises")
    return list(exercises.values())


def load_exercises(path: str | os.PathLike[str]) -> list[tuple[str, Exercise]]:
    """The agents and exercises of a file. Raises ConfigError."""
    with open(path, encoding="utf-8") as file:
        return _read(file.read(), os.fspath(path))


def dump_exercises(exercises: list[Exercise]) -> str:
    """The text of a scenario file; what is expected is JSON, which is YAML too."""
    lines = ["exercises:"]
    for exercise in exercises:
        lines.append(f"- family: {exercise.family}")
        lines.append(f"  seed: {exercise.seed}")
        lines.append(f"  level: {exercise.level:g}")
        lines.append(f"  prompt: {json.dumps(exercise.prompt, ensure_ascii=False)}")
        lines.append(f"  expected: {json.dumps(exercise.expected, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def _read(text: str, where: str) -> list[tuple[str, Exercise]]:
    try:
        document: Any = yaml.load(text, Loader=_Loader)  # noqa: S506 -- a safe one
        rows = document["exercises"]
        found = []
        for row in rows:
            unknown = set(row) - {"agent", "family", "seed", "level", "prompt", "expected"}
            if unknown:
                raise ConfigError(f"an exercise has no field {sorted(unknown)[0]!r}", where=where)
            name = row.get("family", row.get("agent"))
            family(name)
            exercise = Exercise(
                name, int(row.get("seed", 0)), float(row.get("level", 0.5)), row["prompt"], row["expected"], True
            )
            found.append((str(row.get("agent", name)), exercise))
    except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"is not a file of exercises: {type(error).__name__}: {error}"
        raise ConfigError(what, where=where, fix="See docs/agents-roster.md") from error
    if not found:
        raise ConfigError("the file has no exercises", where=where)
    return found
