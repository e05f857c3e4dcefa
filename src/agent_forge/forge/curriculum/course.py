"""The course of one family: which exercises come next, what counts as mastered, and where the wall is. No torch.

Everything that a course knows is JSON, so that a training checkpoint can hold it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from agent_forge.forge.curriculum.settings import CurriculumSettings
from agent_forge.tasks import Exercise, family

PROBES = 6  # halvings of the assessment
LONGEST_HINT = 200  # characters
RUNNING, FINISHED, WALL = "running", "finished", "wall"


@dataclass(frozen=True)
class Assessment:
    """The level to begin at, the success there, and every level that was tried."""

    level: float
    success: float
    tried: dict[float, float]


def assess(success: Callable[[float], float], wanted: float, highest: float) -> Assessment:
    """Finds the level where success is about `wanted` by bisection: of all that were tried, the nearest.

    Level 0 is the answer where even that is too hard, and `highest` where that is easy enough.

    >>> assess(lambda level: 1 - level, 0.75, 1.0).level
    0.25
    """
    tried = {0.0: success(0.0)}
    if tried[0.0] > wanted:
        tried[highest] = success(highest)
        low, high = 0.0, highest
        for _ in range(PROBES if tried[highest] < wanted else 0):
            level = (low + high) / 2
            tried[level] = success(level)
            low, high = (level, high) if tried[level] >= wanted else (low, level)
    level = min(tried, key=lambda one: (abs(tried[one] - wanted), -one))
    if tried.get(highest, 0.0) >= wanted:
        level = highest
    return Assessment(level, tried[level], tried)


def ladder(start: float, target: float, levels: int) -> list[float]:
    """Levels at equal distances, with both ends.

    >>> ladder(0.5, 1.0, 3)
    [0.5, 0.75, 1.0]
    """
    return [start + (target - start) * number / (levels - 1) for number in range(levels - 1)] + [target]


def learnability(successes: int, attempts: int) -> float:
    """p(1 - p): the variance of success, and highest where an exercise is neither solved nor hopeless.

    >>> [learnability(right, 8) for right in (0, 2, 4, 8)]
    [0.0, 0.1875, 0.25, 0.0]
    """
    share = successes / attempts
    return share * (1 - share)


def hinted(exercise: Exercise, hints: Sequence[str]) -> Exercise:
    """The exercise with what its checker said about earlier answers in front; the check stays the same."""
    notes = "".join(f"(An earlier answer was wrong: {hint})\n" for hint in hints)
    return replace(exercise, prompt=notes + exercise.prompt)


def hint_from(message: str) -> str:
    """A hint from a checker's message: one line, not too long."""
    text = " ".join(message.split()) or "no reason was given"
    return text if len(text) <= LONGEST_HINT else text[: LONGEST_HINT - 1] + "…"


@dataclass
class OpenExercise:
    """An exercise that is being worked on: its number, and what became of the attempts so far."""

    number: int
    level: float
    hints: list[str] = field(default_factory=list)
    attempts: int = 0
    answers: list[str] = field(default_factory=list)  # that were right

    @property
    def weight(self) -> float:
        """Its learnability over all attempts, those with hints too."""
        return learnability(len(self.answers), self.attempts)


@dataclass
class Course:
    """A family's way from level to level. `uniform` is the control: levels drawn at random, no mastery, no wall."""

    family: str
    levels: list[float]
    first: int  # number of its first exercise
    uniform: bool = False
    place: int = 0  # on the ladder
    rounds: int = 0  # at this level
    drawn: int = 0  # exercises so far
    recent: list[float] = field(default_factory=list)  # success at the first attempts at new exercises, at this level
    open: list[OpenExercise] = field(default_factory=list)
    status: str = RUNNING
    history: list[dict[str, Any]] = field(default_factory=list)  # the levels that ended, and how

    @classmethod
    def from_notes(cls, notes: dict[str, Any]) -> Course:
        return cls(**{**notes, "open": [OpenExercise(**one) for one in notes["open"]]})

    def notes(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    def exercise(self, one: OpenExercise) -> Exercise:
        return family(self.family).make(one.number, one.level)

    def work(self, count: int) -> list[OpenExercise]:
        """The exercises of a round: the open ones, then new ones up to `count`."""
        while len(self.open) < count:
            number = self.first + self.drawn
            level = self.levels[self.place]
            if self.uniform:
                level = random.Random(f"{self.family}/{number}").choice(self.levels)
            self.open.append(OpenExercise(number, level))
            self.drawn += 1
        return self.open[:count]

    def note(
        self, one: OpenExercise, right: Sequence[str], attempts: int, message: str, settings: CurriculumSettings
    ) -> None:
        """What became of an exercise in a round: its right answers, and the checker's message about a wrong one.

        Solved, it makes room for a variant: the same family and level, another number. Unsolved, it comes again with a
        hint, until there are too many.
        """
        if not one.attempts:  # new: the only attempts that say whether the level is mastered
            self.recent = [*self.recent, len(right) / attempts][-settings.recent :]
        one.attempts += attempts
        one.answers += right
        hint = hint_from(message)
        if right or hint in one.hints or len(one.hints) >= settings.hints:
            self.open.remove(one)
        else:
            one.hints.append(hint)

    @property
    def success(self) -> float:
        return sum(self.recent) / len(self.recent) if self.recent else 0.0

    def end_round(self, settings: CurriculumSettings) -> None:
        """Goes on to the next level, or ends at the target or at the wall."""
        self.rounds += 1
        if self.uniform:
            return
        mastered = len(self.recent) >= settings.recent and self.success >= settings.mastery
        if not mastered and self.rounds < settings.rounds:
            return
        how = "mastered" if mastered else WALL if self.success < settings.wall else "not mastered"
        level = {"level": self.levels[self.place], "rounds": self.rounds, "success": self.success, "how": how}
        self.history.append(level)
        last = self.place == len(self.levels) - 1
        self.status = WALL if how == WALL else FINISHED if last else RUNNING
        if self.status == RUNNING:
            self.place += 1
            self.rounds, self.recent, self.open = 0, [], []


def choose(weights: Sequence[float], count: int, seed: str) -> list[int]:
    """`count` places, each drawn with a chance proportional to its weight; none where no weight is above 0."""
    if not any(weight > 0 for weight in weights):
        return []
    return random.Random(seed).choices(range(len(weights)), weights, k=count)
