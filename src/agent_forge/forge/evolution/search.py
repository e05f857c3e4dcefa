"""The search: generations of recipes, raced against each other on growing parts of the selection data.

First the eight combinations, then the founders (the parents' average, and each parent alone); the best of all are the
first population. One generation (population 8, elites 2):

    2 elites as they are │ 2 mutants of elites │ 1 merged of three losers │ 3 bred: two parents with probability 0.7

Parents are drawn by tournament on fitness and on being different; elites on fitness alone, so the champion is never
lost. When the population has become alike, in what its models predict and in what its recipes say, newcomers take the
places of the two that would have been bred last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Protocol

import numpy as np

from agent_forge.forge.evolution.fitness import behaviour_distance
from agent_forge.forge.evolution.genome import (
    Genome,
    Space,
    distance,
    first_generation,
    founders,
    random_genome,
    usual_distance,
)
from agent_forge.forge.evolution.operators import cross, merge_losers, mutate
from agent_forge.forge.evolution.settings import Search

NEWCOMERS = 2  # the specification: the bottom two are reseeded


@dataclass
class Member:
    """A recipe that was judged: how far it came in the race, and what it scored there."""

    genome: Genome
    key: str
    rung: int = -1
    fitness: float = 0.0
    excess: float = 0.0  # how much more than the gate allows was lost on single tasks
    probe: tuple[float, ...] = ()

    @property
    def worth(self) -> float:
        """What is selected by: fitness, less what the gate would not forgive."""
        return self.fitness - self.excess

    @property
    def rank(self) -> tuple[int, float]:
        """One that came further is better than one that was stopped: it was better when they were last compared."""
        return self.rung, self.worth


class Judge(Protocol):
    """What the search asks: the same recipe has the same key, and each rung is evaluated once."""

    spread: float  # how far apart the parents' behaviours are

    def key(self, genome: Genome) -> str: ...

    def evaluate(self, members: Sequence[Member], rung: int) -> None:
        """Fills in `rung`, `fitness`, `excess` and `probe` of every member."""


@dataclass(frozen=True)
class Generation:
    """What the report and the dashboard show of a generation."""

    number: int
    champion: float  # its fitness
    worth: float  # and that, less what the gate would not forgive: what never falls
    mean: float
    diversity: float
    behaviours: float
    recipes: float
    reseeded: bool
    evaluations: int
    stage: str = "ga"


@dataclass
class History:
    """All that a search came to."""

    generations: list[Generation] = field(default_factory=list)
    members: dict[str, Member] = field(default_factory=dict)
    ended: str = ""

    @property
    def champion(self) -> Member:
        """The best of those that were judged on all of the selection data."""
        last = max(member.rung for member in self.members.values())
        return max((m for m in self.members.values() if m.rung == last), key=lambda m: m.worth)


class Evolution:
    """A search over a space. `tell` hears of every generation."""

    def __init__(
        self,
        space: Space,
        judge: Judge,
        settings: Search,
        seed: int,
        tell: Callable[[Generation], None] = lambda _: None,
    ) -> None:
        self.space, self.judge, self.settings, self.seed, self.tell = space, judge, settings, seed, tell
        self.history = History()
        self.unit = usual_distance(space)

    def run(self) -> History:
        """Runs generations until the best fitness stands still, or the budget is spent."""
        population = self.race(self.members(first_generation(self.space)))
        if self.settings.generations > 1:
            population = self.with_founders(population)
        self.record(0, population, reseeded=False)
        for number in range(1, self.settings.generations):
            if self.over():
                break
            rng = np.random.default_rng([self.seed, number])
            reseed = self.history.generations[-1].diversity < self.settings.reseed_below
            strategy = STRATEGIES[self.settings.strategy]
            population = self.race(self.fitting(strategy(self, population, rng, reseed)))
            self.record(number, population, reseeded=reseed)
        self.history.ended = self.history.ended or "the last generation"
        return self.history

    def with_founders(self, population: list[Member]) -> list[Member]:
        """The best of the first generation and of the founders, which race among themselves."""
        joined = population + self.race(self.fitting(self.members(founders(self.space))))
        ordered = sorted(joined, key=lambda member: (*(-part for part in member.rank), member.key))
        return ordered[: self.settings.population]

    def over(self) -> bool:
        """Whether the search has converged or spent its evaluations."""
        limit = self.settings.evaluations
        if limit is not None and len(self.history.members) >= limit:
            self.history.ended = "the budget of evaluations"
        elif self.settings.strategy == "ga" and self.converged():
            self.history.ended = "convergence"
        return bool(self.history.ended)

    def converged(self) -> bool:
        """Whether the champion's worth moved less than `converged` over the last `patience` generations."""
        best = [generation.worth for generation in self.history.generations[-self.settings.patience - 1 :]]
        return len(best) > self.settings.patience and max(best) - min(best) < self.settings.converged

    def members(self, genomes: Sequence[Genome]) -> list[Member]:
        """The members for the genomes; a recipe that was judged before comes back as what it was."""
        found: dict[str, Member] = {}
        for genome in genomes:
            key = self.judge.key(genome)
            found[key] = self.history.members.get(key) or Member(genome, key)
        return list(found.values())

    def fitting(self, members: list[Member]) -> list[Member]:
        """As many as the budget of evaluations still allows."""
        if self.settings.evaluations is None:
            return members
        room = self.settings.evaluations - len(self.history.members)
        kept = []
        for member in members:
            new = member.key not in self.history.members
            if not new or room > 0:
                kept.append(member)
                room -= new
        return kept

    def race(self, members: list[Member]) -> list[Member]:
        """Successive halving: the new ones on the first rung, their better half on the next; best first."""
        last = len(self.settings.rungs) - 1
        alive = [member for member in members if member.rung < last]
        for rung in range(last + 1):
            self.judge.evaluate(alive, rung)
            alive.sort(key=lambda member: (-member.worth, member.key))
            if rung < last:
                alive = alive[: (len(alive) + 1) // 2]
        for member in members:
            self.history.members.setdefault(member.key, member)
        return sorted(members, key=lambda member: (*(-part for part in member.rank), member.key))

    def breed(self, population: list[Member], rng: np.random.Generator, reseed: bool) -> list[Member]:
        """The next generation of the genetic algorithm."""
        settings, space = self.settings, self.space
        elites = population[: settings.elites]
        losers = [member.genome for member in population[settings.elites :] or elites]
        makers: list[Callable[[], Genome]] = [
            partial(mutate, elites[number % len(elites)].genome, space, rng, settings.mutation)
            for number in range(settings.elite_mutants)
        ]
        makers += [partial(self.of_losers, losers, rng)] * settings.loser_merges
        places = settings.population - len(elites) - len(makers)
        newcomers = min(NEWCOMERS, places) if reseed else 0
        makers += [partial(self.child, population, rng)] * (places - newcomers)
        makers += [partial(random_genome, space, rng)] * newcomers
        children: list[Genome] = []
        for make in makers:
            children.append(self.unseen(make, children))
        return elites + self.members(children)

    def of_losers(self, losers: list[Genome], rng: np.random.Generator) -> Genome:
        """One recipe made of three that lost."""
        return merge_losers([losers[i] for i in rng.permutation(len(losers))[:3]], self.space, rng)

    def draw(self, population: list[Member], rng: np.random.Generator, reseed: bool) -> list[Member]:
        """The next batch of random search: the control."""
        genomes: list[Genome] = []
        for _ in range(self.settings.population):
            genomes.append(self.unseen(lambda: random_genome(self.space, rng), genomes))
        return self.members(genomes)

    def child(self, population: list[Member], rng: np.random.Generator) -> Genome:
        """A child of two parents, or of one, with its mutations."""
        scores = self.attraction(population)
        one = population[tournament(scores, rng)].genome
        if rng.random() < self.settings.crossover:
            one = cross(one, population[tournament(scores, rng)].genome, self.space, rng)
        return mutate(one, self.space, rng, self.settings.mutation)

    def attraction(self, population: list[Member]) -> np.ndarray:
        """How much each is wanted as a parent: its rank, and how different it is from the rest."""
        count = len(population)
        ranks = np.linspace(1, 0, count)
        novelty = np.array([np.mean([self.apart(a, b) for b in population if b is not a] or [0.0]) for a in population])
        top = novelty.max() or 1.0
        weight = self.settings.diversity
        blended: np.ndarray = (1 - weight) * ranks + weight * novelty / top
        return blended

    def apart(self, one: Member, other: Member) -> float:
        behaviours, recipes = self.distances(one, other)
        return (behaviours + recipes) / 2

    def distances(self, one: Member, other: Member) -> tuple[float, float]:
        """Of behaviours, with the parents' distance from each other as the unit, and of recipes, with that of random
        ones; both 0 to 1."""
        behaviours = behaviour_distance(one.probe, other.probe) / (self.judge.spread or 1.0)
        recipes = distance(one.genome, other.genome, self.space) / self.unit
        return min(1.0, behaviours), min(1.0, recipes)

    def unseen(self, make: Callable[[], Genome], siblings: Sequence[Genome]) -> Genome:
        """A genome whose recipe was not judged yet, if there is one to be had: an evaluation should tell something."""
        known = {self.judge.key(sibling) for sibling in siblings}
        for _ in range(20):
            genome = make()
            key = self.judge.key(genome)
            if key not in known and key not in self.history.members:
                return genome
        return genome

    def record(self, number: int, population: list[Member], *, reseeded: bool, stage: str = "ga") -> None:
        pairs = [self.distances(a, b) for a, b in combinations(population, 2)] or [(0.0, 0.0)]
        behaviours, recipes = (float(np.mean(column)) for column in zip(*pairs, strict=True))
        generation = Generation(
            number=number,
            champion=self.history.champion.fitness,
            worth=self.history.champion.worth,
            mean=float(np.mean([member.fitness for member in population])),
            diversity=(behaviours + recipes) / 2,
            behaviours=behaviours,
            recipes=recipes,
            reseeded=reseeded,
            evaluations=len(self.history.members),
            stage=stage,
        )
        self.history.generations.append(generation)
        self.tell(generation)


def tournament(scores: np.ndarray, rng: np.random.Generator, size: int = 3) -> int:
    """The best of some drawn at random."""
    drawn = rng.integers(len(scores), size=size)
    return int(drawn[np.argmax(scores[drawn])])


STRATEGIES = {"ga": Evolution.breed, "random": Evolution.draw}
