"""A score with its standard error and its chance level, and what is left of it after a change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agent_forge.errors import UsageError
from agent_forge.forge.training.evaluation import ratio


@dataclass(frozen=True)
class TaskScore:
    """A model's result on a task, item by item (each between 0 and 1). `chance` is what guessing gets.

    For multiple choice, `points` compare likelihoods per character, and `plain` the likelihoods as they are: `acc_norm`
    and `acc` of EleutherAI's harness.
    """

    task: str
    points: tuple[float, ...]
    chance: float = 0.0
    how: str = ""
    plain: tuple[float, ...] | None = None
    is_accuracy: bool = True  # every item is right or wrong; otherwise it is a share, such as F1

    def __post_init__(self) -> None:
        if not self.points:
            raise UsageError("there is nothing to score", where=self.task)

    @property
    def n(self) -> int:
        return len(self.points)

    @property
    def value(self) -> float:
        return float(np.mean(self.points))

    @property
    def stderr(self) -> float | None:
        """Of the mean, over items; None for a single one."""
        return float(np.std(self.points, ddof=1) / math.sqrt(self.n)) if self.n > 1 else None

    def accuracies(self) -> dict[str, Any]:
        """The row of this task in `agent-forge evaluate --json`; the standard error is that of `accuracy`.

        >>> TaskScore("choices", (1, 1), plain=(1, 0)).accuracies()
        {'accuracy': 0.5, 'accuracy_norm': 1.0, 'stderr': 0.5, 'n': 2}
        """
        plain = self if self.plain is None else TaskScore(self.task, self.plain)
        return {
            "accuracy": plain.value if self.is_accuracy else None,
            "accuracy_norm": None if self.plain is None else self.value,
            "stderr": plain.stderr if self.is_accuracy else None,
            "n": self.n,
        }

    @property
    def above_chance(self) -> float:
        """0 is guessing, 1 is perfect.

        >>> TaskScore("two choices", (1, 1, 1, 0), chance=0.5).above_chance
        0.5
        """
        return (self.value - self.chance) / (1 - self.chance)

    @property
    def clear(self) -> bool:
        """Whether it is at least three standard errors above chance, so that a share of it means something."""
        return self.stderr is not None and self.value - self.chance >= 3 * max(self.stderr, 1e-9)

    def as_dict(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "value": self.value,
            "stderr": self.stderr,
            "n": self.n,
            "chance": self.chance,
            "above_chance": self.above_chance,
            "how": self.how,
        }


@dataclass(frozen=True)
class Retention:
    """The share of a model's ability above chance that is left, over all tasks where it had any."""

    share: float
    stderr: float | None
    tasks: tuple[str, ...]


def retention(before: Sequence[TaskScore], after: Sequence[TaskScore]) -> Retention | None:
    """What is left of `before`: sum(after - chance) / sum(before - chance), item by item on the same items.

    Tasks on which the model was not clearly above chance say nothing and are left out; None if none
    remains.

    >>> before = [TaskScore("t", (1, 1, 1, 1, 1, 0), chance=0.25)]
    >>> round(retention(before, [TaskScore("t", (1, 1, 1, 1, 0, 0), chance=0.25)]).share, 3)
    0.714
    """
    later = {score.task: score for score in after}
    pairs = [(score, later[score.task]) for score in before if score.clear and score.task in later]
    if not pairs:
        return None
    for one, two in pairs:
        if one.n != two.n or one.chance != two.chance:
            raise UsageError("the items before and after are not the same", where=one.task)
    first = np.concatenate([np.array(one.points) - one.chance for one, _ in pairs])
    second = np.concatenate([np.array(two.points) - two.chance for _, two in pairs])
    share, error = ratio(second, first)
    return Retention(share, error if math.isfinite(error) else None, tuple(one.task for one, _ in pairs))
