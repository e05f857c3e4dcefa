"""Genomes: merge recipes, not weights. What a recipe may vary, and how new recipes come from old ones.

A genome is a technique with a weight and a density per parent. It compiles to mergekit's form, so `agent-forge merge`
makes its model again, bit for bit.

| technique | what it makes |
|---|---|
| linear | the weighted average of the parents |
| slerp | the same along great circles: the first two parents, then the result with the third, and so on |
| dare | the base plus the weighted sum of the parents' task vectors, sparsified at random (arXiv:2311.03099) |
| ties | the base plus the mean of the parents' largest changes where their signs agree (arXiv:2306.01708) |
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from agent_forge.forge.evolution.settings import TECHNIQUES

BOUNDS = {"weights": (0.0, 1.5), "density": (0.05, 1.0)}  # of the continuous genes
START_DENSITY = {"dare": 0.1, "ties": 0.2}  # the specification: DARE drops 0.9, TIES keeps 20 %
STEP = 0.3  # standard deviation of a mutation, as a share of a gene's range
DIGITS = 4  # genes are rounded, so that the text of a recipe is all of it
FLOOR = 1e-4  # the least weight of an average: it cannot be taken where all weights are zero


@dataclass(frozen=True)
class Space:
    """What there is to recombine."""

    parents: tuple[str, ...]
    base: str
    techniques: tuple[str, ...] = TECHNIQUES


@dataclass(frozen=True)
class Genome:
    """One recipe. Its numbers are rounded and within bounds."""

    technique: str
    weights: tuple[float, ...]  # [parents]
    density: tuple[float, ...]  # [parents]: the share of each task vector that stays
    seed: int = 0  # of DARE's masks

    def __post_init__(self) -> None:
        for name, bounds in BOUNDS.items():
            values = np.clip(np.array(getattr(self, name), dtype=float), *bounds).round(DIGITS)
            object.__setattr__(self, name, tuple(values.tolist()))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def start_genome(space: Space, technique: str) -> Genome:
    """A technique with the specification's numbers: uniform weights, and its density. Linear is the plain average."""
    count = len(space.parents)
    # TIES takes a mean of task vectors and scales it, so its weights are 1; those of the others add up to 1
    weight = 1.0 if technique == "ties" else 1 / count
    return Genome(technique, (weight,) * count, (START_DENSITY.get(technique, 1.0),) * count)


def random_genome(space: Space, rng: np.random.Generator) -> Genome:
    """A genome drawn from the whole space: what random search evaluates."""
    genes: dict[str, Any] = {name: rng.uniform(*bounds, len(space.parents)) for name, bounds in BOUNDS.items()}
    return Genome(str(rng.choice(space.techniques)), **genes, seed=int(rng.integers(1 << 16)))


def mutate(genome: Genome, space: Space, rng: np.random.Generator, rate: float = 0.1) -> Genome:
    """Each gene mutates with probability `rate`; at least one does, so a mutant is never its parent."""
    for _ in range(100):
        changes: dict[str, Any] = {}
        for name, (low, high) in BOUNDS.items():
            values = np.array(getattr(genome, name))
            steps = rng.normal(0, STEP * (high - low), len(values))
            changes[name] = values + steps * (rng.random(len(values)) < rate)
        if rng.random() < rate:
            changes["technique"] = str(rng.choice(space.techniques))
        if rng.random() < rate:
            changes["seed"] = int(rng.integers(1 << 16))
        mutant = replace(genome, **changes)
        if mutant != genome:
            return mutant
    return replace(genome, seed=genome.seed + 1)


def cross(one: Genome, other: Genome, rng: np.random.Generator) -> Genome:
    """Uniform crossover: a coin decides for each gene."""

    def pick(first: Any, second: Any) -> Any:
        return first if rng.random() < 0.5 else second

    genes = {name: pick(getattr(one, name), getattr(other, name)) for name in ("technique", "seed")}
    for name in BOUNDS:
        genes[name] = tuple(map(pick, getattr(one, name), getattr(other, name)))
    return Genome(**genes)


def distance(one: Genome, other: Genome) -> float:
    """How far apart two recipes are, from 0 to 1: the mean over technique, weights and densities."""
    parts = [float(one.technique != other.technique)]
    for name, (low, high) in BOUNDS.items():
        apart = np.abs(np.array(getattr(one, name)) - np.array(getattr(other, name)))
        parts.append(float(apart.mean() / (high - low)))
    return float(np.mean(parts))


def compile_recipe(
    genome: Genome, space: Space, dtype: str, paths: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """The documents of a recipe, the last being the output. Models go by the names of the space, or by `paths`."""
    paths = paths or {}
    models = [paths.get(name, name) for name in space.parents]
    whole = sum(genome.weights) + len(models) * FLOOR
    shares = [round((weight + FLOOR) / whole, 6) for weight in genome.weights]  # of an average
    if genome.technique == "linear":
        inputs = [_input(model, weight=share) for model, share in zip(models, shares, strict=True)]
        return [{"merge_method": "linear", "models": inputs, "dtype": dtype}]
    if genome.technique == "slerp":
        stages: list[dict[str, Any]] = []
        for number, model in enumerate(models[1:], 1):
            before = stages[-1]["name"] if stages else models[0]
            t = round(shares[number] / sum(shares[: number + 1]), 6)  # the share of the newcomer
            stage = {"name": f"slerp-{number}", "merge_method": "slerp", "base_model": before, "dtype": "float32"}
            stages.append(stage | {"models": [{"model": before}, {"model": model}], "parameters": {"t": t}})
        del stages[-1]["name"]
        return [*stages[:-1], stages[-1] | {"dtype": dtype}]
    # DARE adds the task vectors up, each times its weight. TIES takes their weighted mean where the signs agree, and
    # scales it by the mean weight.
    ties = genome.technique == "ties"
    inputs = [
        _input(model, weight=max(FLOOR, weight) if ties else weight, density=density)
        for name, model, weight, density in zip(space.parents, models, genome.weights, genome.density, strict=True)
        if name != space.base  # whose task vector is zero
    ]
    mean = round(sum(genome.weights) / len(models), 6)
    own = {"lambda": mean} if ties else {"rescale_by": "probability", "seed": genome.seed}
    document = {"merge_method": "ties" if ties else "dare_linear", "base_model": paths.get(space.base, space.base)}
    return [document | {"models": inputs, "parameters": {"normalize": ties, **own}, "dtype": dtype}]


def _input(model: str, **parameters: float) -> dict[str, Any]:
    return {"model": model, "parameters": parameters}


def name_of(document: Any) -> str:
    """A short name derived from the content of a JSON document."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]
