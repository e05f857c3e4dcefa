"""A task family: a seeded generator with a difficulty dial, a checker that executes, and a solver where one exists.

from agent_forge.tasks import Draft, Verdict, family, task_family

exercise = family("finance").make(seed=1, level=0.5)
print(exercise.prompt)
print(exercise.check(exercise.solution()).correct)

One's own family is a function that draws an exercise and one that checks an answer:

    def check_sum(answer, expected):
        return Verdict.of(answer == expected["sum"], f"{answer} is not the sum")

    @task_family("sums", check=check_sum, solve=lambda expected: expected["sum"])
    def sums(rng, level):
        a, b = rng.randrange(10), rng.randrange(10)
        return Draft(f"What is {a} + {b}?", {"sum": a + b})
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from agent_forge.config import nearest
from agent_forge.errors import UsageError
from agent_forge.tasks.answers import read_answer

LEVELS = {"easy": 0.2, "medium": 0.5, "hard": 0.8}
_HELD_OUT = 8  # one exercise in so many is held out, by the digest of its prompt
_DRAWS = 1_000


@dataclass(frozen=True, slots=True)
class Draft:
    """What a generator draws: the prompt, and, as JSON, all that the checker needs to judge an answer to it."""

    prompt: str
    expected: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an answer was judged: `score` from 0 to 1, `correct` if nothing is wrong, and `why` not.

    `readable` is False for an answer that is not of the family's form, whose score is 0.
    """

    score: float
    why: str = ""
    readable: bool = True

    @property
    def correct(self) -> bool:
        """Whether nothing is wrong."""
        return self.score >= 1.0

    @classmethod
    def of(cls, right: bool, why: str) -> Verdict:
        """All or nothing.

        >>> Verdict.of(2 + 2 == 5, "2 + 2 is 4")
        Verdict(score=0.0, why='2 + 2 is 4', readable=True)
        """
        return cls(1.0) if right else cls(0.0, why)

    @classmethod
    def parts(cls, faults: Mapping[str, str | None]) -> Verdict:
        """Several things that are checked alike: name, and what is wrong with it or None.

        >>> Verdict.parts({"total": None, "tax": "19 instead of 20"})
        Verdict(score=0.5, why='tax: 19 instead of 20', readable=True)
        """
        wrong = [f"{name}: {fault}" for name, fault in faults.items() if fault is not None]
        return cls(1.0 - len(wrong) / len(faults), "; ".join(wrong))


Generator = Callable[[random.Random, float], Draft]
Checker = Callable[[Any, Mapping[str, Any]], Verdict]
Solver = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Family:
    """Tasks of one kind. `schema` is the JSON Schema of their answers; without one an answer is text."""

    name: str
    draw: Generator
    checker: Checker
    solver: Solver | None = None
    schema: Mapping[str, Any] | None = None
    version: int = 1  # to be raised when the same seed gives another exercise
    worked: Solver | None = None

    def make(self, seed: int, level: float | str = 0.5, *, held_out: bool = False) -> Exercise:
        """The exercise of a seed and a level: 0 is easiest, 1 hardest, or a name of `LEVELS`.

        No exercise is both held out and not: which it is depends on the digest of its prompt.
        """
        dial = LEVELS.get(level) if isinstance(level, str) else float(level)
        if dial is None or not 0 <= dial <= 1:
            raise UsageError(f"{level!r} is not a level", fix=f"0 to 1, or one of {', '.join(LEVELS)}")
        rng = random.Random(f"{self.name}/{self.version}/{seed}/{dial!r}/{held_out}")
        for _ in range(_DRAWS):
            draft = self.draw(rng, dial)
            if is_held_out(draft.prompt) == held_out:
                return Exercise(self.name, seed, dial, draft.prompt, draft.expected, held_out)
        raise UsageError(f"family {self.name!r} draws too few different exercises at level {dial:g}")

    def check(self, answer: Any, expected: Mapping[str, Any]) -> Verdict:
        """Judges an answer: text, or what the text says as JSON where the family has a schema."""
        read, fault = read_answer(answer, self.schema)
        return self.checker(read, expected) if fault is None else Verdict(0.0, fault, readable=False)

    def solve(self, expected: Mapping[str, Any]) -> Any:
        """A right answer. Raises UsageError if the family has no solver."""
        if self.solver is None:
            raise UsageError(f"family {self.name!r} has no reference solver")
        return self.solver(expected)

    def demonstrate(self, expected: Mapping[str, Any]) -> Any:
        """A right answer to learn from: where answers are computed, with how. Raises UsageError without a solver."""
        return self.solve(expected) if self.worked is None else self.worked(expected)


@dataclass(frozen=True, slots=True)
class Exercise:
    """One task of a family, to be given to whoever practises or is judged."""

    family: str
    seed: int
    level: float
    prompt: str
    expected: Mapping[str, Any]
    held_out: bool = False

    def check(self, answer: Any) -> Verdict:
        """Judges an answer to it."""
        return family(self.family).check(answer, self.expected)

    def solution(self) -> Any:
        """A right answer. Raises UsageError if the family has no solver."""
        return family(self.family).solve(self.expected)

    def to_dict(self) -> dict[str, Any]:
        """As JSON; `Exercise(**document)` reads it."""
        return asdict(self)


def is_held_out(prompt: str) -> bool:
    """Whether an exercise with this prompt is held out: never trained on.

    >>> is_held_out("What is 1 + 1?")
    False
    """
    return hashlib.sha256(prompt.encode()).digest()[0] % _HELD_OUT == 0


_own: dict[str, Family] = {}


def task_family(
    name: str,
    *,
    check: Checker,
    solve: Solver | None = None,
    schema: Mapping[str, Any] | None = None,
    version: int = 1,
    worked: Solver | None = None,
) -> Callable[[Generator], Family]:
    """Makes a family of a generator, known by its name from then on.

    `solve` gives a right answer, `worked` one with the working that leads to it, for models to learn from.
    """

    def decorate(draw: Generator) -> Family:
        _own[name] = Family(name, draw, check, solve, schema, version, worked)
        return _own[name]

    return decorate


def family(name: str) -> Family:
    """A family by name; `FILE.py:NAME` is one of one's own, in a file. Raises UsageError."""
    path, _, own = name.rpartition(":")
    if path.endswith(".py"):
        _execute(Path(path).resolve())
        name = own
    known = _bundled() | _own
    if name not in known:
        closest = nearest(name, known)
        fix = f"Did you mean {closest!r}?" if closest else f"Choose one of {', '.join(sorted(known))}"
        raise UsageError(f"there is no task family {name!r}", fix=fix)
    return known[name]


def families() -> dict[str, Family]:
    """All families that are known, by name."""
    return dict(sorted((_bundled() | _own).items()))


@cache
def _bundled() -> dict[str, Family]:
    """The families in the modules of `agent_forge.tasks.families`."""
    package = import_module("agent_forge.tasks.families")
    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    return {name: each for name, each in _own.items() if each.draw.__module__.startswith(f"{package.__name__}.")}


@cache
def _execute(path: Path) -> None:
    spec = importlib.util.spec_from_file_location(f"agent_forge_families_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"there is no file {path}")
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def digest(exercise: Exercise) -> str:
    """A name for an exercise that is the same on every machine."""
    return hashlib.sha256(json.dumps(exercise.to_dict(), sort_keys=True).encode()).hexdigest()[:16]
