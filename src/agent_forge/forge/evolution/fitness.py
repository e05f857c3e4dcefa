"""Fitness: what was measured on a model, made comparable, weighed, and given its standard error.

    fitness = sum of w_k term_k / sum of w_k        (perplexity 0.4, accuracy 0.3, speed 0.2, memory 0.1)

Each term is a ratio to the reference model (the base), better being larger, between 0 and 2: the reference scores 1 on
every term, so none dominates by its unit. Perplexity and accuracy are means over the tasks that have them, so neither
does a large task. What was not measured has no term.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from agent_forge.forge.evolution.settings import Weights
from agent_forge.forge.evolution.tasks import ANSWERS, CHOICES, TEXT

LOSS, TOKENS, HITS, TRIES = range(4)  # the columns of a task's scores: one row an item
WITH_PERPLEXITY, WITH_ACCURACY = (TEXT, ANSWERS), (ANSWERS, CHOICES)
MOST = 2.0  # no ratio counts for more
LEAST_ITEMS = 6  # of a task, on the first rung

Scores = Mapping[str, np.ndarray]  # by task, [items, 4]


@dataclass(frozen=True)
class Use:
    """What running a model costs, measured on this machine."""

    tokens_per_s: float
    memory_bytes: float


@dataclass(frozen=True)
class Measured:
    """A model's scores on some items, and what it costs to run."""

    scores: Scores
    use: Use

    def prefix(self, share: float) -> Measured:
        """The same on the first `share` of every task's items."""
        if share >= 1:
            return self
        return Measured({name: rows[: first(len(rows), share)] for name, rows in self.scores.items()}, self.use)


def first(items: int, share: float) -> int:
    """How many items the share of a rung comes to: at least six, or all. On fewer, the wrong ones would be stopped.

    >>> first(40, 0.25), first(10, 0.25), first(3, 0.25)
    (10, 6, 3)
    """
    return min(items, max(LEAST_ITEMS, math.ceil(items * share)))


class Yardstick:
    """Measures fitness against a reference model."""

    def __init__(self, reference: Measured, kinds: Mapping[str, str], weights: Weights) -> None:
        self.reference, self.kinds, self.weights = reference, dict(kinds), weights
        self.with_perplexity = [name for name, kind in self.kinds.items() if kind in WITH_PERPLEXITY]
        self.with_accuracy = [name for name, kind in self.kinds.items() if kind in WITH_ACCURACY]

    def fitness(self, measured: Measured) -> float:
        """The composite. A model with a loss that is not finite scores 0: it predicts nothing."""
        sums = self._sums(measured)
        if not all(np.isfinite(total).all() for total in sums.values()):
            return 0.0
        known = self._sums(self._same_items(measured))
        terms = sum(float(self.contribution(task, sums[task], known[task])) for task in self.kinds)
        return terms + self._running_cost(measured.use)

    def contribution(self, task: str, sums: np.ndarray, known: np.ndarray) -> np.ndarray:
        """What a task adds to the composite, for totals [..., 4] of a model and of the reference."""
        total = self._total_weight()
        added: np.ndarray = np.zeros(sums.shape[:-1])
        if task in self.with_perplexity:
            added = added + self.weights.perplexity / len(self.with_perplexity) * perplexity_ratio(sums, known)
        if task in self.with_accuracy:
            added = added + self.weights.accuracy / len(self.with_accuracy) * accuracy_ratio(sums, known)
        return added / total

    def task_score(self, task: str, measured: Measured) -> float:
        """How good a model is on one task, relative to the reference: the mean of its ratios."""
        sums, known = self._sums(measured)[task], self._sums(self._same_items(measured))[task]
        ratios = []
        if task in self.with_perplexity:
            ratios.append(float(perplexity_ratio(sums, known)))
        if task in self.with_accuracy:
            ratios.append(float(accuracy_ratio(sums, known)))
        return float(np.mean(ratios))

    def difference(self, one: Measured, other: Measured) -> tuple[float, float]:
        """fitness(one) - fitness(other) and its standard error, paired by item.

        The jackknife, task by task: each item is left out once, from both models and the reference, and the variances
        of the tasks add up. Not a number where a task has one item: nothing is known of its spread.
        """
        variance = 0.0
        known = self._same_items(one)
        for task in self.kinds:
            parts = [_left_out(measured.scores[task]) for measured in (one, other, known)]
            items = len(parts[0])
            if items < 2:
                return self.fitness(one) - self.fitness(other), math.nan
            without = self.contribution(task, parts[0], parts[2]) - self.contribution(task, parts[1], parts[2])
            variance += float((items - 1) / items * ((without - without.mean()) ** 2).sum())
        return self.fitness(one) - self.fitness(other), math.sqrt(variance)

    def _sums(self, measured: Measured) -> dict[str, np.ndarray]:
        return {task: measured.scores[task].sum(axis=0) for task in self.kinds}

    def _same_items(self, measured: Measured) -> Measured:
        rows = {task: self.reference.scores[task][: len(measured.scores[task])] for task in self.kinds}
        return Measured(rows, self.reference.use)

    def _total_weight(self) -> float:
        weights = self.weights
        quality = weights.perplexity * bool(self.with_perplexity) + weights.accuracy * bool(self.with_accuracy)
        return quality + weights.speed + weights.memory

    def _running_cost(self, use: Use) -> float:
        speed = min(MOST, use.tokens_per_s / self.reference.use.tokens_per_s)
        memory = min(MOST, self.reference.use.memory_bytes / use.memory_bytes)
        return (self.weights.speed * speed + self.weights.memory * memory) / self._total_weight()


def perplexity_ratio(sums: np.ndarray, known: np.ndarray) -> np.ndarray:
    """The reference's perplexity over the model's: above 1 is better."""
    mine = sums[..., LOSS] / np.maximum(sums[..., TOKENS], 1)
    theirs = known[..., LOSS] / np.maximum(known[..., TOKENS], 1)
    return np.minimum(MOST, np.exp(np.clip(theirs - mine, -700, math.log(MOST))))


def accuracy_ratio(sums: np.ndarray, known: np.ndarray) -> np.ndarray:
    """The model's accuracy over the reference's, with one hit added to both: a reference may have none."""
    ratio = (sums[..., HITS] + 1) / (known[..., HITS] + 1)
    return np.minimum(MOST, ratio)


def _left_out(rows: np.ndarray) -> np.ndarray:
    """The totals without each item in turn."""
    without: np.ndarray = rows.sum(axis=0) - rows
    return without


def perplexity(rows: np.ndarray) -> float | None:
    tokens = rows[:, TOKENS].sum()
    return float(np.exp(min(700.0, rows[:, LOSS].sum() / tokens))) if tokens else None


def accuracy(rows: np.ndarray) -> tuple[float, float]:
    """Hits over tries and the standard error, over items."""
    from agent_forge.forge.training.evaluation import ratio

    return ratio(rows[:, HITS], rows[:, TRIES])


def behaviour_distance(one: Sequence[float], other: Sequence[float]) -> float:
    """How differently two models predict the probe: the mean difference of the probabilities of its tokens, 0 to 1."""
    return float(np.abs(np.asarray(one) - np.asarray(other)).mean())
