"""Genomes: merge recipes, not weights. What a recipe may vary, and how new recipes come from old ones.

A genome is a technique with its numbers: weights per group of layers and parent, and densities where the technique has
them. It compiles to mergekit's form, so `agent-forge merge` makes its model again, bit for bit.

| technique | what it makes |
|---|---|
| linear | the weighted average of the parents |
| slerp | the same along great circles: the first two parents, then that with the third, and so on |
| dare | the base plus the weighted sum of the parents' task vectors, sparsified at random (arXiv:2311.03099) |
| ties | the base plus the mean of the parents' largest changes where their signs agree (arXiv:2306.01708) |
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
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
    """What there is to recombine: the parents of a base, and which of its layers share their weights.

    Besides the groups of layers there is one more row of weights, for the tensors outside: embedding, norm and head.
    """

    parents: tuple[str, ...]
    base: str
    groups: tuple[tuple[int, ...], ...]  # layers
    layer_prefix: str = "model.layers."
    techniques: tuple[str, ...] = TECHNIQUES

    def shape(self, gene: str) -> tuple[int, ...]:
        """The shape of a continuous gene: weights [groups + 1, parents], density [parents]."""
        parents = len(self.parents)
        return (parents,) if gene == "density" else (len(self.groups) + 1, parents)


def group_layers(depth: int, groups: int) -> tuple[tuple[int, ...], ...]:
    """The layers in `groups` groups of neighbours, at most one group per layer.

    >>> group_layers(5, 2)
    ((0, 1, 2), (3, 4))
    """
    parts = np.array_split(np.arange(depth), min(groups, depth))
    return tuple(tuple(map(int, part)) for part in parts)


@dataclass(frozen=True)
class Genome:
    """One recipe."""

    technique: str
    weights: tuple[tuple[float, ...], ...]  # [groups + 1, parents]
    density: tuple[float, ...]  # [parents]: the share of each task vector that stays
    seed: int = 0  # of DARE's masks

    def as_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(json.dumps(asdict(self)))  # tuples become lists
        return document


def legal(genome: Genome) -> Genome:
    """The genome with its numbers rounded and within bounds."""
    genes: dict[str, Any] = {}
    for name, (low, high) in BOUNDS.items():
        values = np.clip(np.array(getattr(genome, name), dtype=float), low, high).round(DIGITS).tolist()
        genes[name] = tuple(tuple(row) if isinstance(row, list) else row for row in values)
    return replace(genome, **genes)


# --- where recipes come from -----------------------------------------------------------------------------------------


def start_genome(space: Space, technique: str) -> Genome:
    """A technique with the specification's numbers: uniform weights, and its density. Linear is the plain average."""
    # TIES takes a mean of task vectors and scales it, so its weights are 1; the others add up
    weight = 1.0 if technique == "ties" else 1 / len(space.parents)
    density = START_DENSITY.get(technique, 1.0)
    genes: Any = np.full(space.shape("weights"), weight), np.full(space.shape("density"), density)
    return legal(Genome(technique, *genes))


def random_genome(space: Space, rng: np.random.Generator) -> Genome:
    """A genome drawn from the whole space: what random search evaluates."""
    genes: dict[str, Any] = {name: rng.uniform(*bounds, space.shape(name)) for name, bounds in BOUNDS.items()}
    return legal(Genome(str(rng.choice(space.techniques)), **genes, seed=int(rng.integers(1 << 16))))


def mutate(genome: Genome, space: Space, rng: np.random.Generator, rate: float = 0.1) -> Genome:
    """Each gene mutates with probability `rate`; at least one does, so a mutant is never its parent."""
    for _ in range(100):
        changes: dict[str, Any] = {}
        for name, (low, high) in BOUNDS.items():
            values, width = np.array(getattr(genome, name)), STEP * (high - low)
            moved = values + rng.normal(0, width, values.shape) * (rng.random(values.shape) < rate)
            if values.ndim == 2:  # also a parent's weight in all groups at once: one group alone changes little
                moved += rng.normal(0, width, values.shape[1]) * (rng.random(values.shape[1]) < rate)
            changes[name] = moved
        if rng.random() < rate:
            changes["technique"] = str(rng.choice(space.techniques))
        if rng.random() < rate:
            changes["seed"] = int(rng.integers(1 << 16))
        mutant = legal(replace(genome, **changes))
        if mutant != genome:
            return mutant
    return replace(genome, seed=genome.seed + 1)


def cross(one: Genome, other: Genome, rng: np.random.Generator) -> Genome:
    """Uniform crossover: a coin decides for the technique, the seed, each row of weights and each density.

    The weights of one group of layers stay together: they were good for each other.
    """

    def pick(first: Any, second: Any) -> Any:
        return first if rng.random() < 0.5 else second

    genes = {name: pick(getattr(one, name), getattr(other, name)) for name in ("technique", "seed")}
    for name in BOUNDS:
        genes[name] = tuple(map(pick, getattr(one, name), getattr(other, name)))
    return replace(one, **genes)


def distance(one: Genome, other: Genome) -> float:
    """How far apart two recipes are, from 0 to 1: the mean over technique, weights and densities."""
    parts = [float(one.technique != other.technique)]
    for name, (low, high) in BOUNDS.items():
        apart = np.abs(np.array(getattr(one, name)) - np.array(getattr(other, name)))
        parts.append(float(apart.mean() / (high - low)))
    return float(np.mean(parts))


# --- what they compile to --------------------------------------------------------------------------------------------


def compile_recipe(
    genome: Genome, space: Space, dtype: str, paths: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """The documents of a recipe, the last being the output. Models go by the names of the space, or by `paths`."""
    models = [(paths or {}).get(name, name) for name in space.parents]
    shares = _shares(genome)
    if genome.technique == "linear":
        columns = zip(*shares, strict=True)
        weights = [{"weight": _by_layer(space, column)} for column in columns]
        inputs = [{"model": model, "parameters": own} for model, own in zip(models, weights, strict=True)]
        return [{"merge_method": "linear", "models": inputs, "dtype": dtype}]
    if genome.technique != "slerp":
        return [_task_vectors(genome, space, models, (paths or {}).get(space.base, space.base), dtype)]
    stages: list[dict[str, Any]] = []
    result = models[0]
    for number, model in enumerate(models[1:], 1):  # t is the share of the newcomer
        t = [round(row[number] / max(FLOOR, sum(row[: number + 1])), 6) for row in shares]
        stage = {"name": f"slerp-{number}", "merge_method": "slerp", "base_model": result, "dtype": "float32"}
        stages.append(
            stage | {"models": [{"model": result}, {"model": model}], "parameters": {"t": _by_layer(space, t)}}
        )
        result = f"slerp-{number}"
    stages[-1] |= {"dtype": dtype}
    del stages[-1]["name"]
    return stages


def _shares(genome: Genome) -> list[list[float]]:
    """[groups + 1, parents]: the parents' shares of an average."""
    return [[round((w + FLOOR) / (sum(row) + len(row) * FLOOR), 6) for w in row] for row in genome.weights]


def _task_vectors(genome: Genome, space: Space, models: Sequence[str], base: str, dtype: str) -> dict[str, Any]:
    """DARE adds the task vectors up, each times its weight. TIES takes their weighted mean where the signs agree, and
    scales it by the mean weight of the group."""
    ties = genome.technique == "ties"
    shared: dict[str, Any] = {"normalize": ties}
    if ties:
        shared["lambda"] = _by_layer(space, [round(sum(row) / len(row), 6) for row in genome.weights])
    else:
        shared |= {"rescale_by": "probability", "seed": genome.seed}
    inputs = []
    for number, (name, model) in enumerate(zip(space.parents, models, strict=True)):
        if name != space.base:  # whose task vector is zero
            weights = [max(FLOOR, row[number]) if ties else row[number] for row in genome.weights]
            own = {"weight": _by_layer(space, weights), "density": genome.density[number]}
            inputs.append({"model": model, "parameters": own})
    method = "ties" if ties else "dare_linear"
    return {"merge_method": method, "base_model": base, "models": inputs, "parameters": shared, "dtype": dtype}


def _by_layer(space: Space, values: Sequence[float]) -> Any:
    """One number per group in mergekit's form: a filter per layer, and the value outside the layers for the rest."""
    *grouped, rest = values
    filters = [
        {"filter": f"{space.layer_prefix}{layer}.", "value": float(value)}
        for value, group in zip(grouped, space.groups, strict=True)
        for layer in group
        if value != rest
    ]
    return [*filters, {"value": float(rest)}] if filters else float(rest)


def name_of(document: Any) -> str:
    """A short name derived from the content of a JSON document."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]
