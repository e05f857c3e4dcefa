"""The domains of a model: families and levels where it is right sometimes, found by a self-test."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from agent_forge.errors import SandboxError, UsageError
from agent_forge.forge.experts.settings import Discovery
from agent_forge.forge.practice.respondent import TESTING, Respondent
from agent_forge.forge.progress import Tell, silent, track
from agent_forge.tasks import Exercise, families, family


@dataclass(frozen=True)
class Domain:
    """Exercises of one family and level, and the share that the base answers right."""

    name: str  # of the family
    level: float
    success: float
    stderr: float

    def exercises(self, count: int, first: int, *, held_out: bool = False) -> list[Exercise]:
        """The exercises from number `first` on."""
        kind = family(self.name)
        return [kind.make(first + number, self.level, held_out=held_out) for number in range(count)]


def discover(
    respondent: Respondent, settings: Discovery, seed: int, tell: Tell = silent, text: Sequence[str] = ()
) -> list[Domain]:
    """Every family and level that was tested, with the success of the sampled answers: those that training sees.

    The families of `text` come last, or alone where the settings name none. A level whose reference solutions are
    longer than an answer may be, or whose programs this machine cannot run, is left out.
    """
    names = (*(settings.families or (() if text else tuple(families()))), *text)
    tested = []
    for name, level in track([(name, level) for name in names for level in settings.levels], "self-test", tell):
        domain = Domain(name, level, math.nan, math.nan)
        try:
            exercises = domain.exercises(settings.discovery_samples, TESTING)
            if not _answerable(respondent, exercises[:4]):
                continue
            right = respondent.right(exercises, temperature=respondent.settings.temperature, seed=seed)
        except SandboxError:
            continue
        tested.append(Domain(name, level, float(right.mean()), float(right.std(ddof=1) / math.sqrt(len(right)))))
    return tested


def _answerable(respondent: Respondent, exercises: Sequence[Exercise]) -> bool:
    for exercise in exercises:
        try:
            solution = exercise.solution()
        except UsageError:  # no solver: it may be
            return True
        text = solution if isinstance(solution, str) else json.dumps(solution)
        if len(respondent.tokenizer(text)["input_ids"]) <= respondent.settings.max_tokens:
            return True
    return False


def choose_domains(tested: Sequence[Domain], settings: Discovery) -> list[Domain]:
    """Of each family the level nearest to 50 % success, within the limits; the best `max_experts`, in order of name."""
    nearest: dict[str, Domain] = {}
    for one in tested:
        if settings.lowest <= one.success <= settings.highest:
            other = nearest.get(one.name)
            if other is None or abs(one.success - 0.5) < abs(other.success - 0.5):
                nearest[one.name] = one
    best = sorted(nearest.values(), key=lambda one: (abs(one.success - 0.5), one.name))[: settings.max_experts]
    return sorted(best, key=lambda one: one.name)
