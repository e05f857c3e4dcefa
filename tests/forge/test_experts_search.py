"""Choosing experts: a search against the known front and random search, CEM against a known optimum, the classifier."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("optuna")
torch = pytest.importorskip("torch")

from agent_forge.errors import MissingExtraError  # noqa: E402
from agent_forge.forge.experts.dispatch import DomainClassifier, search_mixture  # noqa: E402
from agent_forge.forge.experts.search import Design, DesignFigures, coverage, front, search_designs  # noqa: E402
from agent_forge.forge.experts.settings import DesignSearch  # noqa: E402

SETTINGS = DesignSearch(population_size=8, num_generations=6)


def figures(design: Design) -> DesignFigures:
    """A landscape with a known best mixture (1, 0, 0.5): votes help, and cost time and memory."""
    distance = sum((a - b) ** 2 for a, b in zip(design.weights, (1.0, 0.0, 0.5), strict=True))
    accuracy = 0.9 - 0.2 * distance - 0.1 / design.thoughts
    return DesignFigures(accuracy, 0.1 * design.thoughts, 100.0 * design.thoughts + 50 * any(design.weights))


def test_the_front_is_what_no_other_design_beats(tmp_path: Path) -> None:
    outcome = search_designs(3, figures, SETTINGS, 1, tmp_path)
    assert len(outcome.nsga) == len(outcome.random) == 48
    for trials in (outcome.nsga, outcome.random):
        best = front(trials)
        assert best == sorted(best, key=lambda trial: -trial[1].accuracy)
        for _, one in trials:  # brute force: a trial is on the front, or something on the front beats it or equals it
            assert any(other.beats(one) or other == one for _, other in best)
        assert not any(a.beats(b) for _, a in best for _, b in best)
    report = json.loads(json.dumps(outcome.as_dict()))
    assert report["evaluations_each"] == 48
    assert report["random_beaten_by_nsga2"] == coverage(front(outcome.nsga), front(outcome.random))


def test_an_interrupted_search_goes_on_to_the_same_result(tmp_path: Path) -> None:
    def measured(design: Design) -> DesignFigures:
        return figures(Design((*design.weights, 0.5), design.temperature, design.thoughts))

    whole = search_designs(2, measured, SETTINGS, 3, tmp_path)
    calls = 0

    def interrupted(design: Design) -> DesignFigures:
        nonlocal calls
        calls += 1
        if calls == 20:
            raise KeyboardInterrupt
        return measured(design)

    with pytest.raises(KeyboardInterrupt):
        search_designs(2, interrupted, SETTINGS, 3, tmp_path / "again")
    calls = -1000
    with open(tmp_path / "again" / "nsga2.jsonl", "a", encoding="utf-8") as file:
        file.write('{"accuracy": 0.')  # cut off by a crash
    assert search_designs(2, interrupted, SETTINGS, 3, tmp_path / "again") == whole


def test_without_the_library_the_hint_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(MissingExtraError, match=r"search"):
        search_designs(2, figures, SETTINGS, 0, tmp_path)


def test_greedy_designs_have_one_thought() -> None:
    assert Design((0.0, 0.0), 0.0, 1).label == "base"
    assert Design((1.0, 0.25), 0.5, 4).label == "1+0.25 t0.5 ×4"


def test_the_cross_entropy_method_finds_the_mixture() -> None:
    target = np.array([1.0, 0.0, 0.5])

    def fitness(mixtures: np.ndarray) -> np.ndarray:
        assert mixtures.min() >= 0
        return -np.linalg.norm(mixtures - target, axis=1)

    best, value = search_mixture(fitness, 3, population=32, generations=10, seed=0)
    assert np.abs(best - target).max() < 0.1
    assert value == -np.linalg.norm(best - target)
    # of equals the base is taken, and one expert alone is found where only it helps
    assert search_mixture(lambda mixtures: np.zeros(len(mixtures)), 3, generations=2)[0].tolist() == [0, 0, 0]
    alone, _ = search_mixture(lambda mixtures: mixtures[:, 1] - mixtures[:, 0] - mixtures[:, 2], 3, generations=1)
    assert alone.argmax() == 1


def test_the_classifier_separates_what_can_be_separated() -> None:
    generator = torch.Generator().manual_seed(0)
    centres = 4 * torch.eye(3, 6, dtype=torch.float64)
    labels = [n % 3 for n in range(60)]
    states = centres[labels] + torch.randn(60, 6, generator=generator, dtype=torch.float64)
    classifier = DomainClassifier.fit(states[:30], labels[:30])
    hits = [a == b for a, b in zip(classifier.pick(states[30:]), labels[30:], strict=True)]
    assert sum(hits) >= 27
    assert classifier.weight.shape == (3, 6)
