"""Genomes: merge recipes, not weights. What a recipe may vary, and what two recipes have in common.

A genome has three bits and the numbers that go with them. Bit by bit, from the left:

| bit | 0 | 1 | what it makes |
|---|---|---|---|
| interpolation | linear | SLERP | the model `interp`: the parents averaged, with weights for each group of layers |
| deltas | DARE | TIES | the model `deltas`: the base plus the parents' sparsified task vectors |
| selection | franken | DFS | the output: every place filled with a layer of `interp`, of `deltas` or of a parent |

With franken the layers keep their places. DFS (data-flow space, 2403.13187) follows a path on which a layer may stand
anywhere that a layer of its kind can stand, and scales the stream where the path goes from one model to another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

INTERPOLATIONS = ("linear", "slerp")
DELTAS = ("dare", "ties")
SELECTIONS = ("franken", "dfs")
BITS = {"interpolation": INTERPOLATIONS, "deltas": DELTAS, "selection": SELECTIONS}
# the continuous genes, each with its bounds
BOUNDS = {"mix": (0.0, 1.0), "strength": (0.0, 1.5), "density": (0.05, 1.0), "scale": (0.7, 1.4), "noise": (0.0, 0.05)}
START_DENSITY = {"dare": 0.1, "ties": 0.2}  # the specification: DARE drops 0.9, TIES keeps 20 %
DIGITS = 4  # a gene is rounded, so that a recipe's text says all of it
INTERP, DELTA = "interp", "deltas"


@dataclass(frozen=True)
class Space:
    """What there is to recombine: parents, the kind of each layer, and which layers share their parameters.

    Layers of one kind have the same tensors, so one may stand in the other's place. The last group of parameters is for
    what is outside the layers: embedding and head.
    """

    parents: tuple[str, ...]
    kinds: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    weight_noise: bool = False

    @property
    def layers(self) -> int:
        return len(self.kinds)

    @property
    def donors(self) -> tuple[str, ...]:
        """Where a layer may come from."""
        return (INTERP, DELTA, *self.parents)

    def sizes(self) -> dict[str, int]:
        """How many numbers each continuous gene holds."""
        parts, parents = len(self.groups) + 1, len(self.parents)
        sizes = {"mix": parts * parents, "strength": parts * parents, "density": parents, "scale": self.layers}
        return {**sizes, "noise": 1} if self.weight_noise else sizes

    def alike(self, place: int) -> list[int]:
        """The layers that may stand in a place."""
        return [layer for layer, kind in enumerate(self.kinds) if kind == self.kinds[place]]


def space_of(parents: Sequence[str], kinds: Sequence[str], groups: int, weight_noise: bool = False) -> Space:
    """A space with the layers in so many groups of neighbours (at most one group a layer)."""
    parts = np.array_split(np.arange(len(kinds)), min(groups, len(kinds)))
    return Space(tuple(parents), tuple(kinds), tuple(tuple(map(int, part)) for part in parts), weight_noise)


@dataclass(frozen=True)
class Genome:
    """One recipe. The continuous genes are flat: `mix` and `strength` by group, then by parent."""

    interpolation: str
    deltas: str
    selection: str
    mix: tuple[float, ...]
    strength: tuple[float, ...]
    density: tuple[float, ...]
    scale: tuple[float, ...]
    path: tuple[tuple[str, int], ...]  # for each place: donor and layer
    outside: str  # the donor of embedding and head
    seed: int = 0  # of DARE's masks and of the weights that mutate
    noise: tuple[float, ...] = ()  # the share of weights that mutate, with `weight_noise`

    def as_dict(self) -> dict[str, Any]:
        document = asdict(self)
        return {name: _plain(value) for name, value in document.items()}

    @property
    def bits(self) -> str:
        """The combination, as the specification writes it: bit 0 is the leftmost.

        >>> first_generation(space_of(["a", "b"], ["x", "x"], groups=2))[1].bits
        '001'
        """
        return "".join(str(choices.index(getattr(self, name))) for name, choices in BITS.items())


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def first_generation(space: Space) -> list[Genome]:
    """The eight binary combinations, 000 to 111. Each uses all three of its choices, so no two are one model.

    (With a single layer there is nothing to stack: the franken ones are then `interp` alone.)
    """
    return [
        combination(space, interpolation, deltas, selection)
        for interpolation in INTERPOLATIONS
        for deltas in DELTAS
        for selection in SELECTIONS
    ]


def combination(space: Space, interpolation: str, deltas: str, selection: str) -> Genome:
    """A combination with the specification's numbers: uniform weights, and as sparse as it says."""
    sizes, share = space.sizes(), 1 / len(space.parents)
    strength = share if deltas == "dare" else 1.0  # DARE adds task vectors up; TIES takes their mean
    numbers = {"mix": share, "strength": strength, "density": START_DENSITY[deltas], "scale": 1.0, "noise": 0.0}
    genes: dict[str, Any] = {name: (number,) * sizes.get(name, 0) for name, number in numbers.items()}
    path, outside = start_path(space.layers, selection)
    return tidy(Genome(interpolation, deltas, selection, path=path, outside=outside, **genes), space)


def founders(space: Space) -> list[Genome]:
    """The plain average of the parents, and one genome for each parent in which it alone counts, in the average and in
    the sum of task vectors. They join the first generation: its recipes all stand near the parents' middle, and none
    is the average itself."""
    count = len(space.parents)
    shares = [(1 / count,) * count, *(tuple(float(i == place) for i in range(count)) for place in range(count))]
    path = tuple((INTERP, layer) for layer in range(space.layers))
    start = combination(space, "linear", "dare", "franken")
    found = []
    for share in shares:
        numbers: dict[str, Any] = {name: share * (len(space.groups) + 1) for name in ("mix", "strength")}
        found.append(tidy(replace(start, **numbers, density=(1.0,) * count, path=path, outside=INTERP), space))
    return found


def start_path(layers: int, selection: str) -> tuple[tuple[tuple[str, int], ...], str]:
    """Franken: the first half from `interp`, the rest from `deltas`. DFS: the two by turns, `deltas` first."""
    if selection == "franken":
        half = (layers + 1) // 2
        donors = [INTERP if place < half else DELTA for place in range(layers)]
    else:
        donors = [(DELTA, INTERP)[place % 2] for place in range(layers)]
    return tuple((donor, place) for place, donor in enumerate(donors)), INTERP


def random_genome(space: Space, rng: np.random.Generator) -> Genome:
    """A genome drawn from everything that the space holds: what random search evaluates."""
    bits: dict[str, Any] = {name: str(rng.choice(choices)) for name, choices in BITS.items()}
    genes: dict[str, Any] = {
        name: tuple(map(float, rng.uniform(*BOUNDS[name], size))) for name, size in space.sizes().items()
    }
    path = tuple((str(rng.choice(space.donors)), int(rng.choice(space.alike(place)))) for place in range(space.layers))
    outside = str(rng.choice(space.donors))
    return tidy(Genome(**bits, **genes, path=path, outside=outside, seed=int(rng.integers(1 << 16))), space)


def tidy(genome: Genome, space: Space) -> Genome:
    """The genome with its numbers within bounds and rounded, and its path one that its selection can walk."""
    genes: dict[str, Any] = {
        name: tuple(_bounded(value, *BOUNDS[name]) for value in getattr(genome, name)) for name in space.sizes()
    }
    franken = genome.selection == "franken"
    path = tuple(
        (donor, place if franken or layer not in space.alike(place) else layer)
        for place, (donor, layer) in enumerate(genome.path)
    )
    outside = path[0][0] if franken else genome.outside  # stacked layers bring the embedding of the first
    return replace(genome, path=path, outside=outside, **genes)


def _bounded(value: float, low: float, high: float) -> float:
    return round(float(min(max(value, low), high)), DIGITS)


def vector(genome: Genome, space: Space) -> np.ndarray:
    """The continuous genes as numbers from 0 to 1."""
    parts = []
    for name in space.sizes():
        low, high = BOUNDS[name]
        parts.append((np.array(getattr(genome, name), dtype=float) - low) / (high - low))
    return np.concatenate(parts)


def with_vector(genome: Genome, space: Space, numbers: np.ndarray) -> Genome:
    """The genome with its continuous genes set from numbers between 0 and 1."""
    genes: dict[str, Any] = {}
    at = 0
    for name, size in space.sizes().items():
        low, high = BOUNDS[name]
        genes[name] = tuple(low + (high - low) * numbers[at : at + size])
        at += size
    return tidy(replace(genome, **genes), space)


def distance(one: Genome, other: Genome, space: Space) -> float:
    """How far apart two recipes are, from 0 to 1: the mean over bits, numbers and path.

    >>> space = space_of(["a", "b"], ["x", "x"], groups=2)
    >>> first = first_generation(space)
    >>> distance(first[0], first[0], space), distance(first[0], first[7], space) > 0.4
    (0.0, True)
    """
    parts = [float(getattr(one, name) != getattr(other, name)) for name in BITS]
    for name in space.sizes():
        low, high = BOUNDS[name]
        pairs = zip(getattr(one, name), getattr(other, name), strict=True)
        parts.append(float(np.mean([abs(a - b) / (high - low) for a, b in pairs])))
    steps = [*zip(one.path, other.path, strict=True), (one.outside, other.outside)]
    parts.append(float(np.mean([a != b for a, b in steps])))
    return float(np.mean(parts))


def usual_distance(space: Space, pairs: int = 64) -> float:
    """The mean distance of two random genomes: the unit in which a population's recipes are apart."""
    rng = np.random.default_rng(0)
    return float(np.mean([distance(random_genome(space, rng), random_genome(space, rng), space) for _ in range(pairs)]))


def name_of(document: Any) -> str:
    """A short name that belongs to the content of a JSON document."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]
