"""A search over designs: which mixture of experts answers, at which temperature, and how many answers vote.

ADAS (2408.08435) lets a strong model write agents. A small model cannot, so that the grammar is fixed here, and NSGA-II
(Optuna) looks for the designs that no other beats in accuracy, latency and memory at once. Random search with as many
evaluations is the control.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent_forge.errors import MissingExtraError
from agent_forge.files import atomic_write
from agent_forge.forge.experts.settings import DesignSearch

STEP = 0.25  # between the weights that a mixture may have


@dataclass(frozen=True)
class Design:
    """A way of answering. Greedy answers are all the same, so that one is enough."""

    weights: tuple[float, ...]  # of the experts
    temperature: float
    thoughts: int

    @property
    def label(self) -> str:
        weights = "+".join(f"{weight:g}" for weight in self.weights) if any(self.weights) else "base"
        return weights + (f" t{self.temperature:g} ×{self.thoughts}" if self.temperature else "")


@dataclass(frozen=True)
class DesignFigures:
    """What a design was measured at: share of right answers, seconds per answer, bytes beyond the weights."""

    accuracy: float
    latency: float
    memory: float

    def beats(self, other: DesignFigures) -> bool:
        """No worse in anything, and better in something (Pareto dominance)."""
        mine = (-self.accuracy, self.latency, self.memory)
        theirs = (-other.accuracy, other.latency, other.memory)
        return mine != theirs and all(a <= b for a, b in zip(mine, theirs, strict=True))


Trial = tuple[Design, DesignFigures]
Measure = Callable[[Design], DesignFigures]


@dataclass(frozen=True)
class SearchOutcome:
    """All designs that each method tried, in order."""

    nsga: tuple[Trial, ...]
    random: tuple[Trial, ...]

    def as_dict(self) -> dict[str, Any]:
        fronts = {"nsga2": front(self.nsga), "random": front(self.random)}
        rows = {
            name: [{**asdict(design), **asdict(figures)} for design, figures in trials]
            for name, trials in fronts.items()
        }
        shares = {
            "random_beaten_by_nsga2": coverage(fronts["nsga2"], fronts["random"]),
            "nsga2_beaten_by_random": coverage(fronts["random"], fronts["nsga2"]),
        }
        return {"evaluations_each": len(self.nsga), "fronts": rows, **shares}


def front(trials: Sequence[Trial]) -> list[Trial]:
    """The distinct designs that no other beats, most accurate first."""
    distinct = list(dict(trials).items())
    best = [trial for trial in distinct if not any(other.beats(trial[1]) for _, other in distinct)]
    return sorted(best, key=lambda trial: (-trial[1].accuracy, trial[1].latency))


def coverage(ours: Sequence[Trial], theirs: Sequence[Trial]) -> float:
    """The share of their designs that one of ours beats (Zitzler's C)."""
    return sum(any(a.beats(b) for _, a in ours) for _, b in theirs) / len(theirs) if theirs else 0.0


def search_designs(experts: int, measure: Measure, settings: DesignSearch, seed: int, folder: Path) -> SearchOutcome:
    """Both searches, each with population × generations evaluations, and their trials kept in `folder`.

    A search that was interrupted goes on after its last trial, with the same result. Raises MissingExtraError.
    """
    try:
        import optuna
    except ImportError as error:
        raise MissingExtraError("the search over designs", "search") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    nsga = optuna.samplers.NSGAIISampler(
        population_size=settings.population_size,
        mutation_prob=settings.mutation_rate,
        crossover_prob=settings.crossover_rate,
        seed=seed,
    )
    random = optuna.samplers.RandomSampler(seed=seed)
    results = []
    for name, sampler in (("nsga2", nsga), ("random", random)):
        study = optuna.create_study(directions=["maximize", "minimize", "minimize"], sampler=sampler)
        results.append(_tried(study, experts, measure, settings, folder / f"{name}.jsonl"))
    return SearchOutcome(*results)


def _tried(study: Any, experts: int, measure: Measure, settings: DesignSearch, file: Path) -> tuple[Trial, ...]:
    """The sampler is seeded, so that with the earlier figures it proposes the earlier designs again."""
    earlier = _whole_rows(file)
    trials: list[Trial] = []
    figures: dict[Design, DesignFigures] = {}
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as handle:  # without a row that a crash cut off
        handle.writelines(json.dumps(row) + "\n" for row in earlier)
    with open(file, "a", encoding="utf-8") as handle:
        for number in range(settings.population_size * settings.num_generations):
            proposal = study.ask()
            design = _proposed(proposal, experts, settings)
            if number < len(earlier):
                figures[design] = DesignFigures(**earlier[number])
            elif design not in figures:
                figures[design] = measure(design)
            row = asdict(figures[design])
            trials.append((design, figures[design]))
            study.tell(proposal, list(row.values()))
            if number >= len(earlier):
                handle.write(json.dumps(row) + "\n")
                handle.flush()
    return tuple(trials)


def _whole_rows(file: Path) -> list[dict[str, float]]:
    """The rows of a JSON Lines file up to one that a crash cut off."""
    rows = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def _proposed(proposal: Any, experts: int, settings: DesignSearch) -> Design:
    weights = [proposal.suggest_float(f"weight {k}", 0, settings.most_weight, step=STEP) for k in range(experts)]
    temperature = proposal.suggest_categorical("temperature", list(settings.temperatures))
    thoughts = proposal.suggest_categorical("thoughts", list(settings.thoughts))
    return Design(tuple(weights), temperature, thoughts if temperature else 1)
