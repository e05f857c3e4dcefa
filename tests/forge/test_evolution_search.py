"""The search on landscapes whose optimum is known: nothing is merged here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from agent_forge.errors import ConfigError
from agent_forge.forge.evolution.genome import BOUNDS, Genome, Space, name_of, start_genome
from agent_forge.forge.evolution.search import Evolution, Generation, Member, SearchHistory
from agent_forge.forge.evolution.settings import TECHNIQUES, Search

SPACE = Space(tuple("abcdef"), "base")
LONG = {"converged": 0.0, "patience": 1000}


class Hill:
    """A landscape: the nearer the weights are to a summit, the better; TIES is worth a little more."""

    def __init__(self, flat: bool = False) -> None:
        self.summit = np.random.default_rng(99).uniform(*BOUNDS["weights"], len(SPACE.parents))
        self.flat = flat
        self.evaluated: list[str] = []
        self.batches: list[int] = []

    def key(self, genome: Genome) -> str:
        return name_of(genome.as_dict())

    def evaluate(self, members: Sequence[Member]) -> None:
        self.batches.append(len(members))
        for member in members:
            self.evaluated.append(member.key)
            height = 2 - float(np.abs(np.array(member.genome.weights) - self.summit).mean())
            member.fitness = 1.0 if self.flat else height + 0.02 * (member.genome.technique == "ties")


def run(settings: Search, seed: int = 0, hill: Hill | None = None) -> tuple[SearchHistory, Hill, list[Generation]]:
    hill, generations = hill or Hill(), []
    return Evolution(SPACE, hill, settings, seed, generations.append).run(), hill, generations


def test_the_same_seed_gives_the_same_search_and_another_seed_another() -> None:
    one, other, third = (run(Search(generations=6), seed)[0] for seed in (3, 3, 4))
    assert one.generations == other.generations
    assert one.champion.genome == other.champion.genome
    assert one.generations != third.generations


def test_it_climbs_the_champion_is_never_lost_and_no_recipe_is_judged_twice() -> None:
    history, hill, generations = run(Search(generations=25, **LONG))
    worths = [generation.worth for generation in generations]
    assert worths == sorted(worths)
    assert worths[-1] > worths[0] + 0.05
    assert generations == history.generations
    assert history.ended == "the last generation"
    assert len(set(hill.evaluated)) == len(hill.evaluated) == generations[-1].evaluations


def test_evolution_beats_random_search_with_the_same_number_of_recipes() -> None:
    settings = Search(generations=1000, evaluations=100, **LONG)
    for seed in range(3):
        evolved, _, _ = run(settings, seed)
        drawn, _, _ = run(replace(settings, strategy="random"), seed)
        assert len(evolved.members) == len(drawn.members) == 100
        assert evolved.ended == drawn.ended == "the budget of evaluations"
        assert evolved.champion.fitness > drawn.champion.fitness


def test_the_first_generation_has_the_average_every_technique_and_random_recipes() -> None:
    history, _, _ = run(Search(generations=1))
    genomes = [member.genome for member in history.members.values()]
    assert genomes[:4] == [start_genome(SPACE, technique) for technique in TECHNIQUES]
    assert len(genomes) == 8
    history = Evolution(replace(SPACE, techniques=("ties",)), Hill(), Search(generations=1), 0).run()
    techniques = [member.genome.technique for member in history.members.values()]
    assert techniques == ["linear", *["ties"] * 7]  # the average is the control whatever the techniques


def test_the_elites_live_on_and_the_others_make_room_for_children() -> None:
    _, hill, _ = run(Search(generations=4, **LONG))
    assert hill.batches == [8, 6, 6, 6]
    _, hill, _ = run(Search(generations=3, population=10, elites=4, **LONG))
    assert hill.batches == [10, 6, 6]


def test_it_stops_when_the_best_stands_still() -> None:
    history, _, _ = run(Search(generations=50), hill=Hill(flat=True))
    assert history.ended == "convergence"
    assert len(history.generations) == 6  # five generations after the first, none of which moved


def test_diversity_falls_as_recipes_become_alike_and_novelty_holds_it_up() -> None:
    def last(weight: float) -> float:
        settings = Search(generations=20, mutation=0.02, diversity=weight, **LONG)
        return float(np.mean([run(settings, seed)[2][-1].diversity for seed in range(3)]))

    _, _, generations = run(Search(generations=1))
    assert last(0.0) < 0.6 * generations[0].diversity
    assert last(0.9) > last(0.0)


def test_what_would_fail_the_gate_counts_against_a_recipe() -> None:
    class Unforgiving(Hill):
        def evaluate(self, members: Sequence[Member]) -> None:
            super().evaluate(members)
            for member in members:
                member.excess = 1.0 if member.genome.technique == "ties" else 0.0

    history, _, _ = run(Search(generations=5), hill=Unforgiving())
    assert history.champion.genome.technique != "ties"


@pytest.mark.parametrize(
    ("changes", "fault"), [({"elites": 8}, "fewer than the population"), ({"techniques": ()}, "at least one technique")]
)
def test_settings_that_cannot_work_are_refused(changes: dict, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        Search(**changes)
