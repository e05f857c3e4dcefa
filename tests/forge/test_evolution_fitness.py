"""Fitness: weights, bounds, standard errors against a simulation, and the verdict on noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from agent_forge.errors import ConfigError
from agent_forge.forge.evolution.fitness import (
    ModelScores,
    RunningCost,
    Yardstick,
    accuracy,
    perplexity,
    reach_verdict,
)
from agent_forge.forge.evolution.settings import FitnessWeights

COST = RunningCost(1000.0, 1e6)
KINDS = {"tales": "text", "sums": "answers", "quiz": "choices"}


def measured(losses: dict[str, np.ndarray], hits: dict[str, np.ndarray], cost: RunningCost = COST) -> ModelScores:
    """Items of ten tokens with these losses per token; a quiz has one try per item."""
    scores = {}
    for task, kind in KINDS.items():
        count = len(losses[task])
        tries = np.ones(count) if kind == "choices" else np.full(count, 10.0)
        scores[task] = np.stack([10 * losses[task], np.full(count, 10.0), hits[task] * tries, tries], axis=1)
    return ModelScores(scores, cost)


def like(loss: float, share: float, count: int = 20, cost: RunningCost = COST) -> ModelScores:
    return measured(
        {task: np.full(count, loss) for task in KINDS}, {task: np.full(count, share) for task in KINDS}, cost
    )


def test_the_reference_scores_one_and_the_weights_are_those_of_the_specification() -> None:
    reference = like(2.0, 0.5)
    yardstick = Yardstick(reference, KINDS, FitnessWeights())
    assert yardstick.fitness(reference) == pytest.approx(1.0)
    better_text = yardstick.fitness(like(2.0 - math.log(1.1), 0.5))  # perplexity 10 % lower
    assert better_text == pytest.approx(1 + 0.4 * 0.1)
    hits = 20 * 10 * 0.5
    more_hits = yardstick.fitness(like(2.0, 0.55))
    sums = (hits * 1.1 + 1) / (hits + 1)
    quiz = (20 * 0.55 + 1) / (20 * 0.5 + 1)
    assert more_hits == pytest.approx(1 + 0.3 * ((sums + quiz) / 2 - 1))
    assert yardstick.fitness(like(2.0, 0.5, cost=RunningCost(1500.0, 1e6))) == pytest.approx(1 + 0.2 * 0.5)
    assert yardstick.fitness(like(2.0, 0.5, cost=RunningCost(1000.0, 0.5e6))) == pytest.approx(1 + 0.1 * 1.0)


def test_no_term_counts_for_more_than_twice_the_reference() -> None:
    yardstick = Yardstick(like(2.0, 0.5), KINDS, FitnessWeights())
    assert yardstick.fitness(like(0.0, 1.0, cost=RunningCost(1e9, 1.0))) <= 2.0
    fast_and_broken = like(9.0, 0.0, cost=RunningCost(1e9, 1.0))
    assert yardstick.fitness(fast_and_broken) < 1.0  # speed and memory cannot buy what was forgotten


def test_what_is_not_finite_scores_nothing() -> None:
    yardstick = Yardstick(like(2.0, 0.5), KINDS, FitnessWeights())
    assert yardstick.fitness(like(math.nan, 0.5)) == 0.0
    assert yardstick.fitness(like(math.inf, 0.5)) == 0.0


def test_a_term_that_was_not_measured_has_no_weight() -> None:
    only_text = {"tales": "text"}
    reference, better = like(2.0, 0.5), like(2.0 - math.log(1.1), 0.5)
    yardstick = Yardstick(reference, only_text, FitnessWeights())
    assert yardstick.fitness(reference) == pytest.approx(1.0)
    assert yardstick.fitness(better) == pytest.approx(1 + 0.4 / 0.7 * 0.1)
    with pytest.raises(ConfigError, match="cannot both have the weight 0"):
        FitnessWeights(perplexity=0, accuracy=0)


def test_the_standard_error_is_that_of_repeated_draws() -> None:
    """The jackknife against the spread of the difference over many independent sets of items."""
    rng = np.random.default_rng(0)

    def draw() -> tuple[ModelScores, ModelScores, ModelScores]:
        hard = {task: rng.normal(2.0, 0.4, 30) for task in KINDS}  # how hard an item is, for every model alike
        share = {task: rng.uniform(0.3, 0.7, 30) for task in KINDS}
        return tuple(  # type: ignore[return-value]
            measured(
                {task: hard[task] - gain + rng.normal(0, 0.1, 30) for task in KINDS},
                {task: np.clip(share[task] + rng.normal(0, 0.1, 30), 0, 1) for task in KINDS},
            )
            for gain in (0.0, 0.05, 0.1)
        )

    differences, errors = [], []
    for _ in range(300):
        base, parent, champion = draw()
        difference, error = Yardstick(base, KINDS, FitnessWeights()).difference(champion, parent)
        differences.append(difference)
        errors.append(error)
    assert np.mean(errors) == pytest.approx(np.std(differences), rel=0.12)


def test_one_item_has_no_standard_error_and_passes_no_gate() -> None:
    base, better = like(2.0, 0.5, count=1), like(1.0, 1.0, count=1)
    yardstick = Yardstick(base, KINDS, FitnessWeights())
    assert math.isnan(yardstick.difference(better, base)[1])
    assert reach_verdict(yardstick, better, {"base": base}, 0.05).gate.verdict == "not measured"


def noisy(rng: np.random.Generator, hard: dict[str, np.ndarray], gain: float = 0.0) -> ModelScores:
    return measured(
        {task: rows - gain + rng.normal(0, 0.2, len(rows)) for task, rows in hard.items()},
        {task: np.full(len(rows), 0.5) for task, rows in hard.items()},
    )


def test_a_champion_that_was_selected_on_noise_does_not_pass() -> None:
    """Fifty models that are equally good; the best on the selection data is judged on other items."""
    rng = np.random.default_rng(1)
    passed = 0
    for _ in range(200):
        hard = {task: rng.normal(2.0, 0.4, 20) for task in KINDS}
        parents = {name: noisy(rng, hard) for name in ("base", "one", "two")}
        champion = noisy(rng, hard)  # the winner's luck stays on the selection data: here it is one like the others
        passed += reach_verdict(Yardstick(parents["base"], KINDS, FitnessWeights()), champion, parents, 0.2).passed
    assert passed / 200 <= 0.03  # two standard errors against one parent would be 0.023; the best of three is harder


def test_a_champion_that_is_better_passes_unless_it_lost_a_task() -> None:
    rng = np.random.default_rng(2)
    hard = {task: rng.normal(2.0, 0.4, 40) for task in KINDS}
    parents = {name: noisy(rng, hard) for name in ("base", "one")}
    yardstick = Yardstick(parents["base"], KINDS, FitnessWeights())
    better = noisy(rng, hard, gain=0.3)
    assert reach_verdict(yardstick, better, parents, 0.05).passed
    lost = ModelScores({**better.scores, "quiz": better.scores["quiz"] * [1, 1, 0.8, 1]}, COST)
    verdict = reach_verdict(yardstick, lost, parents, 0.05)
    assert verdict.gate.verdict == "no gain"
    assert verdict.worst_task == "quiz"
    assert verdict.worst_change < -0.05
    assert reach_verdict(yardstick, lost, parents, 0.5).passed


def test_a_champion_that_is_a_parent_is_no_gain() -> None:
    rng = np.random.default_rng(3)
    hard = {task: rng.normal(2.0, 0.4, 10) for task in KINDS}
    parents = {"base": noisy(rng, hard), "one": noisy(rng, hard, gain=0.5)}
    verdict = reach_verdict(Yardstick(parents["base"], KINDS, FitnessWeights()), parents["one"], parents, 0.05)
    assert (verdict.best_parent, verdict.gate.verdict, verdict.gate.stderr) == ("one", "no gain", 0.0)


def test_figures_of_a_table() -> None:
    rows = like(2.0, 0.5).scores["sums"]
    assert perplexity(rows) == pytest.approx(math.exp(2))
    assert accuracy(rows) == (pytest.approx(0.5), pytest.approx(0.0))
    assert perplexity(np.zeros((2, 4))) is None
