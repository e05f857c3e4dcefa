"""Fitness: measurements made comparable, weighted, and given a standard error; and the verdict on the champion.

    fitness = sum of w_k term_k / sum of w_k        (perplexity 0.4, accuracy 0.3, speed 0.2, memory 0.1)

Each term is a ratio to the reference model (the base), larger being better, between 0 and 2: the reference scores 1 on
every term, so none dominates by its unit. Perplexity and accuracy are means over the tasks that have them, so no task
dominates by its size. What was not measured has no term.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from agent_forge.forge.evolution.settings import FitnessWeights
from agent_forge.forge.evolution.tasks import ANSWERS, CHOICES, TEXT
from agent_forge.forge.gates import NO_GAIN, GateResult, judge
from agent_forge.forge.training.evaluation import ratio

LOSS, TOKENS, HITS, TRIES = range(4)  # the columns of a task's scores
WITH_PERPLEXITY, WITH_ACCURACY = (TEXT, ANSWERS), (ANSWERS, CHOICES)
CAP = 2.0  # no ratio counts for more
METRIC = "fitness on held-out data"
LEAST_GAIN = 0.001  # as the search's convergence; less may be rounding, whose standard error is small too

Scores = Mapping[str, np.ndarray]  # by task: [items, 4]


@dataclass(frozen=True)
class RunningCost:
    """What running a model costs on this machine."""

    tokens_per_s: float
    memory_bytes: float


@dataclass(frozen=True)
class ModelScores:
    """A model's scores on a set of items, and its running cost."""

    scores: Scores
    cost: RunningCost


class Yardstick:
    """Measures fitness against a reference model, on the same items."""

    def __init__(self, reference: ModelScores, kinds: Mapping[str, str], weights: FitnessWeights) -> None:
        self.reference, self.kinds, self.weights = reference, dict(kinds), weights
        self.with_perplexity = [name for name, kind in self.kinds.items() if kind in WITH_PERPLEXITY]
        self.with_accuracy = [name for name, kind in self.kinds.items() if kind in WITH_ACCURACY]
        quality = weights.perplexity * bool(self.with_perplexity) + weights.accuracy * bool(self.with_accuracy)
        self.total_weight = quality + weights.speed + weights.memory

    def fitness(self, model: ModelScores) -> float:
        """The composite. A model with a loss that is not finite predicts nothing and scores 0."""
        terms = 0.0
        for task in self.kinds:
            sums = model.scores[task].sum(axis=0)
            if not np.isfinite(sums).all():
                return 0.0
            terms += float(self.contribution(task, sums, self.reference.scores[task].sum(axis=0)))
        ours, base = model.cost, self.reference.cost
        speed = self.weights.speed * min(CAP, ours.tokens_per_s / base.tokens_per_s)
        memory = self.weights.memory * min(CAP, base.memory_bytes / ours.memory_bytes)
        return terms + (speed + memory) / self.total_weight

    def contribution(self, task: str, sums: np.ndarray, base: np.ndarray) -> np.ndarray:
        """What a task adds to the composite, from the sums of scores [..., 4] of a model and of the reference."""
        added: np.ndarray = np.zeros(sums.shape[:-1])
        if task in self.with_perplexity:
            added = added + self.weights.perplexity / len(self.with_perplexity) * perplexity_ratio(sums, base)
        if task in self.with_accuracy:
            added = added + self.weights.accuracy / len(self.with_accuracy) * accuracy_ratio(sums, base)
        return added / self.total_weight

    def task_score(self, task: str, model: ModelScores) -> float:
        """How good a model is on one task, relative to the reference: the mean of its ratios."""
        sums, base = model.scores[task].sum(axis=0), self.reference.scores[task].sum(axis=0)
        ratios = [perplexity_ratio(sums, base)] if task in self.with_perplexity else []
        ratios += [accuracy_ratio(sums, base)] if task in self.with_accuracy else []
        return float(np.mean(ratios))

    def changes(self, model: ModelScores, parent: ModelScores) -> dict[str, float]:
        """By task: how much better a model scores than a parent, as a share."""
        scores = {task: (self.task_score(task, model), self.task_score(task, parent)) for task in self.kinds}
        return {task: ours / max(1e-9, theirs) - 1 for task, (ours, theirs) in scores.items()}

    def difference(self, one: ModelScores, other: ModelScores) -> tuple[float, float]:
        """fitness(one) - fitness(other) and its standard error, paired by item.

        The jackknife, task by task: each item is left out once, from both models and the reference, and the variances
        of the tasks add up. NaN where a task has a single item, which says nothing about the spread.
        """
        gain, variance = self.fitness(one) - self.fitness(other), 0.0
        for task in self.kinds:
            rows = [model.scores[task] for model in (one, other, self.reference)]
            ours, theirs, base = (part.sum(axis=0) - part for part in rows)  # [items, 4]: the sums without each item
            items = len(base)
            if items < 2:
                return gain, math.nan
            without = self.contribution(task, ours, base) - self.contribution(task, theirs, base)
            variance += float((items - 1) / items * ((without - without.mean()) ** 2).sum())
        return gain, math.sqrt(variance)


def perplexity_ratio(sums: np.ndarray, base: np.ndarray) -> np.ndarray:
    """The reference's perplexity over the model's: above 1 is better."""
    ours = sums[..., LOSS] / np.maximum(sums[..., TOKENS], 1)
    theirs = base[..., LOSS] / np.maximum(base[..., TOKENS], 1)
    return np.minimum(CAP, np.exp(np.clip(theirs - ours, -700, math.log(CAP))))


def accuracy_ratio(sums: np.ndarray, base: np.ndarray) -> np.ndarray:
    """The model's hits over the reference's, with one added to both because a reference may have none."""
    return np.minimum(CAP, (sums[..., HITS] + 1) / (base[..., HITS] + 1))


def perplexity(rows: np.ndarray) -> float | None:
    """The perplexity of a task's rows [items, 4]; None without tokens."""
    tokens = rows[:, TOKENS].sum()
    return float(np.exp(min(700.0, rows[:, LOSS].sum() / tokens))) if tokens else None


def accuracy(rows: np.ndarray) -> tuple[float, float]:
    """Hits over tries of a task's rows [items, 4], and the standard error over items."""
    return ratio(rows[:, HITS], rows[:, TRIES])


# --- the verdict -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GateVerdict:
    """The gate, the parent to beat, and the task on which the champion lost most."""

    gate: GateResult
    best_parent: str
    worst_task: str
    worst_change: float  # of the champion's score on that task, as a share of the best parent's

    @property
    def passed(self) -> bool:
        return self.gate.passed

    def as_dict(self) -> dict[str, Any]:
        return {
            "champion": self.gate.after,
            "best_parent": self.gate.before,
            "stderr": self.gate.stderr,
            "best_parent_name": self.best_parent,
            "worst_task": {"name": self.worst_task, "change": self.worst_change},
        }


def reach_verdict(
    yardstick: Yardstick, champion: ModelScores, parents: Mapping[str, ModelScores], worst_loss: float
) -> GateVerdict:
    """Whether the champion beats the best parent on data that selected neither.

    The best parent is the best on the held-out data itself, which favours the parents. The champion passes if its
    fitness is higher by more than a thousandth and two standard errors, paired by item, and if it lost no more than
    `worst_loss` on any task.
    """
    best = max(parents, key=lambda name: yardstick.fitness(parents[name]))
    _, error = yardstick.difference(champion, parents[best])
    before, after = yardstick.fitness(parents[best]), yardstick.fitness(champion)
    gate = judge(METRIC, before, after, error, lower_is_better=False, sigmas=2.0, least_gain=LEAST_GAIN)
    changes = yardstick.changes(champion, parents[best])
    worst = min(changes, key=changes.__getitem__)
    if gate.passed and changes[worst] < -worst_loss:
        gate = replace(gate, verdict=NO_GAIN)
    return GateVerdict(gate, best, worst, changes[worst])
