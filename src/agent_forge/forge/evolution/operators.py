"""What makes new recipes from old ones. All of it acts on genomes; nothing here touches a weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from agent_forge.forge.evolution.genome import BITS, BOUNDS, Genome, Space, tidy

STEP = 0.3  # the standard deviation of a mutation, as a share of the gene's range


def mutate(genome: Genome, space: Space, rng: np.random.Generator, rate: float = 0.1) -> Genome:
    """Each gene changes with probability `rate`; at least one does, so a mutant is never its parent."""
    for _ in range(100):
        mutant = _mutated(genome, space, rng, rate)
        if mutant != genome:
            return mutant
    return replace(genome, seed=genome.seed + 1)


def _mutated(genome: Genome, space: Space, rng: np.random.Generator, rate: float) -> Genome:
    changes: dict[str, object] = {}
    for name, choices in BITS.items():
        if rng.random() < rate:
            changes[name] = next(choice for choice in choices if choice != getattr(genome, name))
    for name in space.sizes():
        values = np.array(getattr(genome, name))
        if name in ("mix", "strength"):
            values = _with_columns_moved(values, len(space.parents), BOUNDS[name], rng, rate)
        changes[name] = _moved(values, BOUNDS[name], rng, rate)
    changes["path"] = tuple(
        _step(space, place, rng) if rng.random() < rate else step for place, step in enumerate(genome.path)
    )
    if rng.random() < rate:
        changes["outside"] = str(rng.choice(space.donors))
    if rng.random() < rate:
        changes["seed"] = int(rng.integers(1 << 16))
    return tidy(replace(genome, **changes), space)  # type: ignore[arg-type]


def _with_columns_moved(
    values: np.ndarray, parents: int, bounds: tuple[float, float], rng: np.random.Generator, rate: float
) -> np.ndarray:
    """Now and then a parent counts for more, or for less, in all groups at once: one group alone changes little."""
    chosen, steps = rng.random(parents) < rate, rng.normal(0, STEP * (bounds[1] - bounds[0]), parents)
    moved: np.ndarray = values + np.tile(steps * chosen, len(values) // parents)
    return moved


def _moved(values: np.ndarray, bounds: tuple[float, float], rng: np.random.Generator, rate: float) -> tuple[float, ...]:
    width = STEP * (bounds[1] - bounds[0])
    chosen, steps = rng.random(len(values)) < rate, rng.normal(0, width, len(values))
    return tuple(float(value + step * hit) for value, step, hit in zip(values, steps, chosen, strict=True))


def _step(space: Space, place: int, rng: np.random.Generator) -> tuple[str, int]:
    return str(rng.choice(space.donors)), int(rng.choice(space.alike(place)))


def cross(one: Genome, other: Genome, space: Space, rng: np.random.Generator) -> Genome:
    """Uniform crossover: each bit, group of numbers and step of the path from one or the other, by a coin.

    The numbers of one group of layers stay together: they were good for each other.
    """

    def pick(first: object, second: object) -> object:
        return first if rng.random() < 0.5 else second

    changes: dict[str, object] = {
        name: pick(getattr(one, name), getattr(other, name)) for name in (*BITS, "outside", "seed")
    }
    for name, size in space.sizes().items():
        width = len(space.parents) if name in ("mix", "strength") else 1
        first, second = getattr(one, name), getattr(other, name)
        parts = [pick(first[at : at + width], second[at : at + width]) for at in range(0, size, width)]
        changes[name] = tuple(number for part in parts for number in part)  # type: ignore[attr-defined]
    changes["path"] = tuple(pick(a, b) for a, b in zip(one.path, other.path, strict=True))
    return tidy(replace(one, **changes), space)  # type: ignore[arg-type]


def merge_losers(losers: Sequence[Genome], space: Space, rng: np.random.Generator) -> Genome:
    """One recipe from several that lost: their numbers averaged, random bits, the steps of the path drawn from them."""
    changes: dict[str, object] = {name: str(rng.choice(choices)) for name, choices in BITS.items()}
    for name in space.sizes():
        changes[name] = tuple(np.mean([getattr(loser, name) for loser in losers], axis=0))
    changes["path"] = tuple(losers[int(rng.integers(len(losers)))].path[place] for place in range(space.layers))
    changes["outside"] = losers[int(rng.integers(len(losers)))].outside
    changes["seed"] = int(rng.integers(1 << 16))
    return tidy(replace(losers[0], **changes), space)  # type: ignore[arg-type]
