"""The search on landscapes whose optimum is known: nothing is merged here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from agent_forge.errors import ConfigError
from agent_forge.forge.evolution.cma_search import polish
from agent_forge.forge.evolution.genome import Genome, first_generation, name_of, space_of, vector
from agent_forge.forge.evolution.search import Evolution, Generation, History, Member
from agent_forge.forge.evolution.settings import Evolve, Search, TaskSource

SPACE = space_of(["a", "b"], ["x", "x", "x"], groups=3)


class Hill:
    """A landscape: the nearer the numbers are to a summit, the better; 111 is worth a little more than other bits."""

    spread = 0.1

    def __init__(self, flat: bool = False) -> None:
        self.summit = np.random.default_rng(99).uniform(0, 1, sum(SPACE.sizes().values()))
        self.flat, self.evaluated = flat, Counter[int]()
        self.seen: list[tuple[str, int]] = []

    def key(self, genome: Genome) -> str:
        return name_of(genome.as_dict())

    def evaluate(self, members: Sequence[Member], rung: int) -> None:
        for member in members:
            self.seen.append((member.key, rung))
            self.evaluated[rung] += 1
            numbers = vector(member.genome, SPACE)
            member.rung = rung
            member.fitness = 1.0 if self.flat else self.height(member.genome)
            member.probe = (0.5, 0.5) if self.flat else tuple(numbers[:4])

    def height(self, genome: Genome) -> float:
        return 2 - float(np.abs(vector(genome, SPACE) - self.summit).mean()) + 0.02 * genome.bits.count("1")


def run(settings: Search, seed: int = 0, hill: Hill | None = None) -> tuple[History, Hill, list[Generation]]:
    hill, told = hill or Hill(), []
    return Evolution(SPACE, hill, settings, seed, told.append).run(), hill, told


def test_the_same_seed_gives_the_same_search_and_another_seed_another() -> None:
    settings = Search(generations=6)
    one, other, third = (run(settings, seed)[0] for seed in (3, 3, 4))
    assert one.generations == other.generations
    assert one.champion.genome == other.champion.genome
    assert one.generations != third.generations


def test_it_climbs_and_the_champion_is_never_lost() -> None:
    history, _, told = run(Search(generations=25, converged=0.0, patience=100))
    worths = [generation.worth for generation in told]
    assert worths == sorted(worths)
    assert worths[-1] > worths[0] + 0.05
    assert told == history.generations
    assert history.ended == "the last generation"


def test_evolution_beats_random_search_with_the_same_number_of_recipes() -> None:
    settings = Search(generations=1000, evaluations=100, converged=0.0, patience=1000)
    for seed in range(3):
        evolved, _, _ = run(settings, seed)
        drawn, _, _ = run(replace(settings, strategy="random"), seed)
        assert len(evolved.members) == len(drawn.members) == 100
        assert evolved.ended == drawn.ended == "the budget of evaluations"
        assert evolved.champion.fitness > drawn.champion.fitness


def test_a_generation_has_the_parts_of_the_specification() -> None:
    hill = Hill()
    evolution = Evolution(SPACE, hill, Search(), 0)
    population = evolution.race(evolution.members(first_generation(SPACE)))
    evolution.record(0, population, reseeded=False)
    rng = np.random.default_rng(1)
    following = evolution.breed(population, rng, reseed=False)
    assert len(following) == 8
    assert following[:2] == population[:2]  # the elites as they are
    known = {member.key for member in population}
    assert all(member.key not in known for member in following[2:])


def test_halving_evaluates_fewer_and_fewer_and_each_rung_once() -> None:
    _, hill, _ = run(Search(generations=1))
    assert hill.evaluated == {0: 8, 1: 4, 2: 2}
    _, hill, _ = run(Search(generations=4, converged=0.0))
    assert len(set(hill.seen)) == len(hill.seen)
    _, whole, _ = run(Search(generations=1, halving=False))
    assert whole.evaluated == {0: 8}


def test_it_stops_when_the_best_stands_still() -> None:
    history, _, _ = run(Search(generations=50), hill=Hill(flat=True))
    assert history.ended == "convergence"
    assert len(history.generations) == 6  # five generations after the first, none of which moved


def test_newcomers_come_when_the_population_is_alike() -> None:
    told: list[Generation] = []
    settings = Search(generations=8, converged=0.0, patience=50, mutation=0.01, reseed_below=0.9, diversity=0.0)
    Evolution(SPACE, Hill(), settings, 0, told.append).run()
    assert any(generation.reseeded for generation in told)
    after = [later.diversity for later in told if later.reseeded]
    assert after
    told.clear()
    Evolution(SPACE, Hill(), replace(settings, reseed_below=0.0), 0, told.append).run()
    assert not any(generation.reseeded for generation in told)
    assert told[-1].diversity < np.mean(after)  # left alone, it stays alike


def test_diversity_is_of_behaviours_and_of_recipes() -> None:
    _, _, told = run(Search(generations=1))
    assert told[0].diversity == pytest.approx((told[0].behaviours + told[0].recipes) / 2)
    _, _, flat = run(Search(generations=1), hill=Hill(flat=True))
    assert flat[0].behaviours == 0  # models that predict the same, whatever their recipes say
    assert flat[0].recipes == pytest.approx(told[0].recipes)


def test_what_the_gate_would_not_forgive_counts_against_a_recipe() -> None:
    class Unforgiving(Hill):
        def evaluate(self, members: Sequence[Member], rung: int) -> None:
            super().evaluate(members, rung)
            for member in members:
                member.excess = 1.0 if member.genome.deltas == "ties" else 0.0

    history, _, _ = run(Search(generations=5), hill=Unforgiving())
    assert history.champion.genome.deltas == "dare"


def test_cma_moves_the_numbers_and_leaves_the_choices() -> None:
    hill = Hill()
    evolution = Evolution(SPACE, hill, Search(generations=2, converged=0.0), 0)
    history = evolution.run()
    before = history.champion
    polish(evolution, 400)
    after = history.champion
    assert after.fitness > before.fitness + 0.01
    assert (after.genome.bits, after.genome.path) == (before.genome.bits, before.genome.path)
    assert {generation.stage for generation in history.generations} == {"ga", "cma"}
    again = Evolution(SPACE, Hill(), Search(generations=2, converged=0.0), 0)
    again.run()
    polish(again, 400)
    assert again.history.champion.genome == after.genome


def test_more_children_than_places_are_refused() -> None:
    with pytest.raises(ConfigError, match="more than the 2 children"):
        Search(population=4, elites=2, elite_mutants=2, loser_merges=1)


def test_a_parent_that_is_named_twice_is_refused_before_any_work() -> None:
    with pytest.raises(ConfigError, match="'models/one' is named twice"):
        Evolve(parents=("models/one", "two", "./models/one"), data={"rows": TaskSource("rows.jsonl")})
