"""CMA-ES over the numbers of one recipe (Hansen's `cma`, Cov. matrix adaptation, 1604.00772).

The genetic algorithm is good at choices and slow at numbers; CMA-ES is the reverse. So at the end it takes the
champion's combination and path as they are and moves the numbers that have an effect.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from agent_forge.errors import MissingExtraError
from agent_forge.forge.evolution.genome import DELTA, INTERP, Genome, Space, vector, with_vector
from agent_forge.forge.evolution.recipe import joint_scales
from agent_forge.forge.evolution.search import Evolution, Member

SIGMA = 0.1  # of a range from 0 to 1: a step of the size of a mutation


def polish(evolution: Evolution, evaluations: int) -> None:
    """Spends so many evaluations on the champion's numbers; what it finds goes into the search's history."""
    champion = evolution.history.champion
    active = active_numbers(champion.genome, evolution.space)
    if evaluations < 4 or not active.any():
        return
    start = vector(champion.genome, evolution.space)
    strategy = _strategy(start[active], evolution.settings.population, evolution.seed + 1)
    left, number = evaluations, len(evolution.history.generations)
    last = len(evolution.settings.rungs) - 1
    while left >= min(evaluations, evolution.settings.population) and not strategy.stop():
        asked = strategy.ask()
        members = [_member(evolution, champion.genome, start, active, numbers) for numbers in asked]
        known = len(evolution.history.members)
        for rung in range(last + 1):
            evolution.judge.evaluate([member for member in members if member.rung < rung], rung)
        for member in members:
            evolution.history.members.setdefault(member.key, member)
        strategy.tell(asked, [-member.worth for member in members])
        ordered = sorted(members, key=lambda member: -member.worth)
        evolution.record(number, ordered, reseeded=False, stage="cma")
        number += 1
        left -= max(1, len(evolution.history.members) - known)


def _member(evolution: Evolution, genome: Genome, start: np.ndarray, active: np.ndarray, numbers: Any) -> Member:
    moved = start.copy()
    moved[active] = np.clip(numbers, 0, 1)
    return evolution.members([with_vector(genome, evolution.space, moved)])[0]


def _strategy(start: np.ndarray, population: int, seed: int) -> Any:
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that it cannot plot
            import cma  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise MissingExtraError("CMA-ES", "forge") from error
    options = {"bounds": [0, 1], "popsize": population, "seed": seed, "verbose": -9}
    return cma.CMAEvolutionStrategy(start, SIGMA, options)


def active_numbers(genome: Genome, space: Space) -> np.ndarray:
    """Which of the continuous genes have an effect, given the genome's bits and path."""
    used = {donor for donor, _ in genome.path} | {genome.outside}
    changes = np.array([scale != 1 for scale in joint_scales(_doubled(genome))])
    on = {
        "mix": np.full(len(genome.mix), INTERP in used),
        "strength": np.full(len(genome.strength), DELTA in used),
        "density": np.full(len(genome.density), DELTA in used),
        "scale": changes & (genome.selection == "dfs"),
        "noise": np.full(len(genome.noise), True),
    }
    return np.concatenate([on[name] for name in space.sizes()])


def _doubled(genome: Genome) -> Genome:
    from dataclasses import replace

    return replace(genome, scale=(2.0,) * len(genome.scale))
