"""Genomes and what is done to them: bounds, identity, and what each operator may change."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_forge.forge.evolution.cma_search import active_numbers
from agent_forge.forge.evolution.genome import (
    BITS,
    BOUNDS,
    distance,
    first_generation,
    random_genome,
    space_of,
    tidy,
    usual_distance,
    vector,
    with_vector,
)
from agent_forge.forge.evolution.operators import cross, merge_losers, mutate
from agent_forge.forge.evolution.recipe import compile_recipe, joint_scales
from agent_forge.forge.merging import parse_recipe, to_yaml

SPACE = space_of(["a", "b", "c"], ["plain", "memory", "plain", "plain"], groups=3)


def stages(genome, space=SPACE, **changes):
    return compile_recipe(genome, space, base=changes.get("base", "base"), layer_prefix="model.layers", dtype="float32")


def legal(genome, space=SPACE) -> bool:
    in_bounds = all(
        BOUNDS[name][0] <= value <= BOUNDS[name][1] and value == round(value, 4)
        for name, size in space.sizes().items()
        for value in getattr(genome, name)
        if len(getattr(genome, name)) == size
    )
    on_path = all(
        donor in space.donors and layer in space.alike(place) for place, (donor, layer) in enumerate(genome.path)
    )
    return in_bounds and on_path and len(genome.path) == space.layers and genome.outside in space.donors


def test_the_first_generation_is_the_eight_combinations_in_the_order_of_their_bits() -> None:
    first = first_generation(SPACE)
    assert [genome.bits for genome in first] == [format(number, "03b") for number in range(8)]
    assert first[1].interpolation == "linear"
    assert first[1].selection == "dfs"  # bit 0 is the leftmost: 001 is linear, DARE, DFS
    texts = {yaml.safe_dump(stages(genome)) for genome in first}
    assert len(texts) == 8
    for genome in first:
        methods = {stage["merge_method"] for stage in stages(genome)}
        assert genome.interpolation in methods  # every bit is in the recipe: none is thrown away on the way
        assert {"dare": "dare_linear", "ties": "ties"}[genome.deltas] in methods
        assert {"franken": "passthrough", "dfs": "dfs"}[genome.selection] in methods


def test_the_first_generation_has_the_numbers_of_the_specification() -> None:
    dare, ties = first_generation(SPACE)[0], first_generation(SPACE)[2]
    assert set(dare.density) == {0.1}  # drops 0.9
    assert set(ties.density) == {0.2}  # keeps 20 %
    assert stages(first_generation(SPACE)[4])[1]["parameters"]["t"] == pytest.approx(1 / 3, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), rate=st.floats(0.01, 1.0))
def test_operators_give_genomes_that_are_legal_and_compile(seed: int, rate: float) -> None:
    rng = np.random.default_rng(seed)
    one, other, third = (random_genome(SPACE, rng) for _ in range(3))
    for genome in (
        one,
        mutate(one, SPACE, rng, rate),
        cross(one, other, SPACE, rng),
        merge_losers([one, other, third], SPACE, rng),
    ):
        assert legal(genome)
        assert tidy(genome, SPACE) == genome
        recipe = parse_recipe(stages(genome))
        assert parse_recipe(to_yaml(recipe)) == recipe
        assert set(recipe.models_on_disk()) <= {"a", "b", "c", "base"}


def test_a_mutant_differs_and_a_child_has_nothing_that_its_parents_have_not() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        one, other = random_genome(SPACE, rng), random_genome(SPACE, rng)
        assert mutate(one, SPACE, rng, rate=0.001) != one
        child = cross(one, other, SPACE, rng)
        for name in BITS:
            assert getattr(child, name) in (getattr(one, name), getattr(other, name))
        width = len(SPACE.parents)
        for at in range(0, len(child.mix), width):  # the numbers of a group stay together
            assert child.mix[at : at + width] in (one.mix[at : at + width], other.mix[at : at + width])


def test_losers_are_averaged() -> None:
    rng = np.random.default_rng(4)
    losers = [random_genome(SPACE, rng) for _ in range(3)]
    merged = merge_losers(losers, SPACE, rng)
    expected = np.mean([loser.strength for loser in losers], axis=0)
    assert merged.strength == pytest.approx(expected, abs=1e-4)
    assert all(step in {loser.path[place] for loser in losers} or step[1] == place
               for place, step in enumerate(merged.path))  # fmt: skip


def test_the_vector_goes_there_and_back() -> None:
    rng = np.random.default_rng(5)
    for space in (SPACE, replace(SPACE, weight_noise=True)):
        genome = random_genome(space, rng)
        assert with_vector(genome, space, vector(genome, space)) == genome
        assert vector(genome, space).min() >= 0
        assert vector(genome, space).max() <= 1
        assert len(vector(genome, space)) == sum(space.sizes().values()) == len(active_numbers(genome, space))


def test_distance_is_a_distance() -> None:
    rng = np.random.default_rng(6)
    genomes = [random_genome(SPACE, rng) for _ in range(12)]
    for a in genomes:
        assert distance(a, a, SPACE) == 0
        for b in genomes:
            assert distance(a, b, SPACE) == distance(b, a, SPACE) <= 1
            for c in genomes:
                assert distance(a, c, SPACE) <= distance(a, b, SPACE) + distance(b, c, SPACE) + 1e-12
    close = mutate(genomes[0], SPACE, rng, rate=0.02)
    assert distance(genomes[0], close, SPACE) < 0.5 * usual_distance(SPACE)


def test_genes_without_effect_do_not_make_another_recipe() -> None:
    genome = first_generation(SPACE)[0]
    alone = tidy(replace(genome, path=tuple(("interp", place) for place in range(4))), SPACE)
    assert len(stages(alone)) == 1  # one plain mergekit document: neither task vectors nor a selection
    assert stages(alone) == stages(replace(alone, strength=(0.7,) * len(genome.strength), seed=9, deltas="ties"))
    parent = tidy(replace(genome, path=tuple(("b", place) for place in range(4))), SPACE)
    assert [stage["merge_method"] for stage in stages(parent)] == ["passthrough"]
    assert stages(parent)[0]["models"] == [{"model": "b"}]


def test_scales_are_at_joints_only() -> None:
    genome = first_generation(SPACE)[1]
    path = (("a", 0), ("a", 1), ("b", 2), ("b", 2))
    walked = tidy(replace(genome, path=path, outside="a", scale=(0.9, 0.8, 1.2, 1.3)), SPACE)
    assert joint_scales(walked) == [1.0, 1.0, 1.2, 1.3]
    assert [step["scale"] for step in stages(walked)[-1]["path"]] == [1.0, 1.0, 1.2, 1.3]
    assert active_numbers(walked, SPACE)[-4:].tolist() == [False, False, True, True]
    in_order = tidy(replace(genome, path=tuple(("a", place) for place in range(4)), outside="a"), SPACE)
    assert [stage["merge_method"] for stage in stages(in_order)] == ["passthrough"]


def test_the_parts_of_an_average_add_up_to_one_even_where_all_weights_are_zero() -> None:
    genome = replace(first_generation(SPACE)[0], mix=(0.0,) * 12)
    weights = [model["parameters"]["weight"] for model in stages(genome)[0]["models"]]
    assert math.isclose(sum(weights), 1, abs_tol=1e-5)
    ties = tidy(replace(first_generation(SPACE)[2], strength=(0.0,) * 12), SPACE)
    (deltas,) = [stage for stage in stages(ties) if stage["merge_method"] == "ties"]
    assert deltas["parameters"]["lambda"] == 0  # no task vector at all: the base


def test_weights_mutate_only_when_asked_and_in_a_recipe_that_says_so() -> None:
    space = replace(SPACE, weight_noise=True)
    quiet, loud = (
        replace(genome, noise=(share,)) for genome, share in zip(first_generation(space)[:2], (0.0, 0.02), strict=True)
    )
    assert "selected" not in yaml.safe_dump_all(stages(quiet, space))
    *_, selected, mutated = stages(replace(loud, seed=4), space)
    assert selected["name"] == mutated["base_model"] == "selected"
    assert mutated["models"] == [{"model": "b", "parameters": {"weight": 1.0, "density": 0.02}}]
    assert parse_recipe(stages(loud, space)).merge_method == "dare_linear"
    rng = np.random.default_rng(7)
    assert any(mutate(quiet, space, rng, 0.5).noise != quiet.noise for _ in range(10))


def test_a_base_among_the_parents_has_no_task_vector() -> None:
    (deltas,) = [stage for stage in stages(first_generation(SPACE)[2], base="a") if stage["merge_method"] == "ties"]
    assert deltas["base_model"] == "a"
    assert [model["model"] for model in deltas["models"]] == ["b", "c"]
