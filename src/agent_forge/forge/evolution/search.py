"""The search: generations of recipes, by a genetic algorithm or at random.

The first generation has the uniform average, each technique with the specification's numbers, and random recipes. A
later one keeps the elites and fills up with children: of two parents with the probability `crossover`, else of one, and
mutated. Parents win a tournament on rank and novelty; elites are chosen by rank alone, so the champion is never lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Protocol

import numpy as np

from agent_forge.forge.evolution.genome import Genome, Space, cross, distance, mutate, random_genome, start_genome
from agent_forge.forge.evolution.settings import Search

TOURNAMENT = 3


@dataclass
class Member:
    """A recipe and what it scores on the selection data."""

    genome: Genome
    key: str
    fitness: float = 0.0
    excess: float = 0.0  # what it loses on single tasks beyond what the gate allows

    @property
    def worth(self) -> float:
        """What selection looks at: the fitness, less what would fail the gate."""
        return self.fitness - self.excess


class Judge(Protocol):
    """What the search asks."""

    def key(self, genome: Genome) -> str:
        """Equal for genomes with the same recipe."""
        ...

    def evaluate(self, members: Sequence[Member]) -> None:
        """Sets `fitness` and `excess` of every member."""
        ...


@dataclass(frozen=True)
class Generation:
    """The figures of a generation, for the report and the dashboard."""

    number: int
    champion: float  # fitness of the best recipe so far
    worth: float  # its fitness less what would fail the gate; never falls
    mean: float  # fitness of the population
    diversity: float  # mean distance of its recipes; that of random recipes is 1
    evaluations: int  # recipes so far


@dataclass
class SearchHistory:
    """Everything that was evaluated, and what became of it."""

    members: dict[str, Member] = field(default_factory=dict)
    generations: list[Generation] = field(default_factory=list)
    ended: str = ""

    @property
    def champion(self) -> Member:
        return max(self.members.values(), key=lambda member: member.worth)


class Evolution:
    """A search over a space. `tell` is called with every generation.

    It depends on its seed and on what the judge answers, and on nothing else.
    """

    def __init__(
        self,
        space: Space,
        judge: Judge,
        settings: Search,
        seed: int,
        tell: Callable[[Generation], None] = lambda _: None,
    ) -> None:
        self.space, self.judge, self.settings, self.seed, self.tell = space, judge, settings, seed, tell
        self.history = SearchHistory()
        rng = np.random.default_rng(0)
        genomes = [random_genome(space, rng) for _ in range(16)]
        self.unit = float(np.mean([distance(a, b) for a, b in combinations(genomes, 2)]))

    def run(self) -> SearchHistory:
        """Runs generations until the best fitness stands still, or the budget is spent."""
        starts = [start_genome(self.space, technique) for technique in ("linear", *self.space.techniques)]
        population: list[Member] = []
        for number in range(self.settings.generations):
            if self._is_over():
                break
            rng = np.random.default_rng([self.seed, number])
            if number == 0 or self.settings.strategy == "random":
                genomes = self._fill_up(starts if number == 0 else [], partial(random_genome, self.space, rng))
            else:
                elites = [member.genome for member in population[: self.settings.elites]]
                child = partial(self._child, population, self._attraction(population), rng)
                genomes = self._fill_up(elites, child)
            population = self._evaluate(number, genomes)
        self.history.ended = self.history.ended or "the last generation"
        return self.history

    def _child(self, population: Sequence[Member], scores: np.ndarray, rng: np.random.Generator) -> Genome:
        """A mutated child of two parents, or of one, that won a tournament on `scores`."""

        def parent() -> Genome:
            drawn = rng.integers(len(population), size=TOURNAMENT)
            return population[int(drawn[np.argmax(scores[drawn])])].genome

        genome = parent()
        if rng.random() < self.settings.crossover:
            genome = cross(genome, parent(), rng)
        return mutate(genome, self.space, rng, self.settings.mutation)

    def _attraction(self, population: Sequence[Member]) -> np.ndarray:
        """How attractive each member is as a parent: its rank (best first) and its novelty, both 0 to 1."""
        apart = np.array([[distance(a.genome, b.genome) for b in population] for a in population])
        novelty = apart.sum(axis=1)
        weight = self.settings.diversity
        scores: np.ndarray = (1 - weight) * np.linspace(1, 0, len(population)) + weight * novelty / (novelty.max() or 1)
        return scores

    def _fill_up(self, genomes: list[Genome], make: Callable[[], Genome]) -> list[Genome]:
        """Adds new genomes up to the size of a population, as far as the budget of evaluations allows.

        A recipe that was judged before is drawn again, up to 20 times: an evaluation should tell something.
        """
        unique = {self.judge.key(genome): genome for genome in genomes}
        room = self.settings.population - len(unique)
        if self.settings.evaluations is not None:
            room = min(room, self.settings.evaluations - len(unique.keys() | self.history.members.keys()))
        for _ in range(room):
            for _ in range(20):
                genome = make()
                key = self.judge.key(genome)
                if key not in unique and key not in self.history.members:
                    break
            unique[key] = genome
        return list(unique.values())

    def _evaluate(self, number: int, genomes: Sequence[Genome]) -> list[Member]:
        """The population of a generation, best first."""
        population: dict[str, Member] = {}
        for genome in genomes:
            key = self.judge.key(genome)
            population[key] = self.history.members.get(key) or Member(genome, key)
        self.judge.evaluate([member for key, member in population.items() if key not in self.history.members])
        self.history.members |= population
        ranked = sorted(population.values(), key=lambda member: (-member.worth, member.key))
        apart = [distance(a.genome, b.genome) for a, b in combinations(ranked, 2)] or [0.0]
        champion = self.history.champion
        generation = Generation(
            number=number,
            champion=champion.fitness,
            worth=champion.worth,
            mean=float(np.mean([member.fitness for member in ranked])),
            diversity=min(1.0, float(np.mean(apart)) / self.unit),
            evaluations=len(self.history.members),
        )
        self.history.generations.append(generation)
        self.tell(generation)
        return ranked

    def _is_over(self) -> bool:
        settings, worths = self.settings, [generation.worth for generation in self.history.generations]
        if settings.evaluations is not None and len(self.history.members) >= settings.evaluations:
            self.history.ended = "the budget of evaluations"
        elif settings.strategy == "ga" and len(worths) > settings.patience:
            gain = worths[-1] - worths[-1 - settings.patience]
            self.history.ended = "convergence" if gain < settings.converged else ""
        return bool(self.history.ended)
