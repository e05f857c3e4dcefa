"""Genomes: bounds, identity, what each operator may change, and the recipes they compile to."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_forge.forge.evolution.genome import (
    BOUNDS,
    Space,
    compile_recipe,
    cross,
    distance,
    mutate,
    random_genome,
    start_genome,
)
from agent_forge.forge.evolution.settings import TECHNIQUES
from agent_forge.forge.merging import parse_recipe, to_yaml

SPACE = Space(("a", "b", "c"), "base")


def stages(genome, space=SPACE):
    return compile_recipe(genome, space, "float32")


def in_bounds(genome, space=SPACE) -> bool:
    for name, (low, high) in BOUNDS.items():
        values = np.array(getattr(genome, name))
        if len(values) != len(space.parents) or values.min() < low or values.max() > high:
            return False
    return genome.technique in space.techniques


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_a_technique_starts_with_the_numbers_of_the_specification(technique: str) -> None:
    document = stages(start_genome(SPACE, technique))[-1]
    assert document["merge_method"] == {"dare": "dare_linear"}.get(technique, technique)
    own = [model.get("parameters", {}) for model in document["models"]]
    expected = {
        "linear": [{"weight": pytest.approx(1 / 3, abs=1e-4)}] * 3,
        "slerp": [{}, {}],
        "dare": [{"weight": pytest.approx(1 / 3, abs=1e-4), "density": 0.1}] * 3,  # drops 0.9
        "ties": [{"weight": 1.0, "density": 0.2}] * 3,  # keeps 20 %
    }
    assert own == expected[technique]
    if technique == "slerp":
        assert document["parameters"]["t"] == pytest.approx(1 / 3, abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), rate=st.floats(0.01, 1.0))
def test_operators_give_genomes_that_are_legal_and_compile(seed: int, rate: float) -> None:
    rng = np.random.default_rng(seed)
    one, other = random_genome(SPACE, rng), random_genome(SPACE, rng)
    for genome in (one, mutate(one, SPACE, rng, rate), cross(one, other, rng)):
        assert in_bounds(genome)
        recipe = parse_recipe(stages(genome))
        assert parse_recipe(to_yaml(recipe)) == recipe
        assert set(recipe.models_on_disk()) <= {"a", "b", "c", "base"}


def test_a_mutant_differs_and_a_child_has_only_genes_of_its_parents() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        one, other = random_genome(SPACE, rng), random_genome(SPACE, rng)
        assert mutate(one, SPACE, rng, rate=0.001) != one
        child = cross(one, other, rng)
        assert child.technique in (one.technique, other.technique)
        for name in BOUNDS:
            for gene, *choices in zip(*(getattr(each, name) for each in (child, one, other)), strict=True):
                assert gene in choices


def test_only_the_chosen_techniques_are_used() -> None:
    space = replace(SPACE, techniques=("ties",))
    rng = np.random.default_rng(4)
    genome = random_genome(space, rng)
    assert {random_genome(space, rng).technique for _ in range(10)} == {"ties"}
    assert {mutate(genome, space, rng, rate=1.0).technique for _ in range(10)} == {"ties"}


def test_distance_is_a_distance() -> None:
    rng = np.random.default_rng(6)
    genomes = [random_genome(SPACE, rng) for _ in range(12)]
    for a in genomes:
        assert distance(a, a) == 0
        for b in genomes:
            assert distance(a, b) == distance(b, a) <= 1
            for c in genomes:
                assert distance(a, c) <= distance(a, b) + distance(b, c) + 1e-12


def test_genes_without_effect_do_not_make_another_recipe() -> None:
    genome = start_genome(SPACE, "linear")
    assert stages(genome) == stages(replace(genome, seed=9, density=(0.5,) * 3))
    uniform = stages(replace(genome, weights=(0.5,) * 3))
    assert uniform == stages(genome)  # an average depends on the shares only


def test_slerp_is_pairwise_with_the_shares_of_the_newcomers() -> None:
    genome = replace(start_genome(SPACE, "slerp"), weights=(0.2, 0.3, 0.5))
    first, second = stages(genome)
    assert first["name"] == second["base_model"] == "slerp-1"
    assert first["parameters"]["t"] == pytest.approx(0.3 / 0.5, abs=1e-3)
    assert second["parameters"]["t"] == pytest.approx(0.5, abs=1e-3)


def test_weights_that_are_all_zero_still_make_a_recipe() -> None:
    zero = (0.0,) * 3
    (average,) = stages(replace(start_genome(SPACE, "linear"), weights=zero))
    assert math.isclose(sum(model["parameters"]["weight"] for model in average["models"]), 1, abs_tol=1e-5)
    (ties,) = stages(replace(start_genome(SPACE, "ties"), weights=zero))
    assert ties["parameters"]["lambda"] == 0  # no task vector at all: the base


def test_a_base_among_the_parents_has_no_task_vector() -> None:
    space = replace(SPACE, base="a")
    (ties,) = stages(start_genome(space, "ties"), space)
    assert ties["base_model"] == "a"
    assert [model["model"] for model in ties["models"]] == ["b", "c"]
