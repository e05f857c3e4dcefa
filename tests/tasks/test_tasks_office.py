"""What holds for every family of the office: solved, the same everywhere, harder by level, and mutants are caught."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import pairwise
from statistics import fmean
from typing import Any

import pytest
from mutations import mutants, survivors

import agent_forge.tasks
from agent_forge.inference.grammar import schema_grammar
from agent_forge.tasks import Exercise, family
from agent_forge.tasks.family import digest

# Families whose answer is determined: what may be worded freely, which lists have no order.
DETERMINED: dict[str, dict[str, list[str]]] = {
    "finance": {"unordered": ["unmatched_payments"]},
    "hr": {"free": ["note"], "unordered": ["skills", "unmet"]},
    "sales": {},
    "support": {"unordered": ["steps"]},  # where they have one, test_tasks_support.py swaps them
}
# The digests of the exercises of seed 1 at level 0 and of seed 2 at level 1. A change that moves them raises `version`.
DIGESTS = {
    "content": ("68f21b452194ae57", "c29a739ff6197636"),
    "design": ("de3440d23a190313", "538c4a3dc4ed9c14"),
    "finance": ("8bde7e8dd340630f", "26c65586fc82f98e"),
    "hr": ("2eda12edfbed01de", "9a90b7b0e94f57c3"),
    "marketing": ("52cb48272a34d626", "51975f26357059c9"),
    "sales": ("3453311f52e90a23", "db8019289d756574"),
    "seo": ("b5ca05c5b0e37f3b", "8763675af8b83650"),
    "support": ("e0e9915b7a0b501e", "de005ccc5b7e3836"),
}


@pytest.mark.parametrize("name", DIGESTS)
def test_the_solver_is_right_in_text_as_well(name: str) -> None:
    for level in (0, 0.25, 0.5, 0.75, 1):
        for seed in range(20):
            exercise = family(name).make(seed=seed, level=level)
            solution = exercise.solution()
            verdict = exercise.check(solution if isinstance(solution, str) else json.dumps(solution))
            assert verdict.correct, (level, seed, verdict.why)


@pytest.mark.parametrize("name", DIGESTS)
def test_a_seed_gives_the_same_exercise_everywhere(name: str) -> None:
    exercises = family(name).make(seed=1, level=0), family(name).make(seed=2, level=1)
    assert tuple(digest(each) for each in exercises) == DIGESTS[name]
    again = Exercise(**json.loads(json.dumps(exercises[1].to_dict())))  # all that the checker needs is JSON
    assert again.solution() == exercises[1].solution()
    assert again.check(again.solution()).correct


@pytest.mark.parametrize("name", DIGESTS)
def test_higher_levels_ask_for_more(name: str) -> None:
    """Prompts get longer, more must be kept in mind, and what is right for one exercise is wrong for others."""
    lengths, sizes = [], []
    for level in (0, 0.5, 1):
        exercises = [family(name).make(seed=seed, level=level) for seed in range(15)]
        lengths.append(fmean(len(exercise.prompt) for exercise in exercises))
        sizes.append(fmean(_values(exercise.expected) for exercise in exercises))
        others = [one.check(other.solution()).correct for one, other in pairwise(exercises)]
        assert sum(others) <= (6 if level == 0 else 2)
    assert lengths == sorted(lengths)
    assert lengths[2] > 1.5 * lengths[0]
    assert sizes == sorted(sizes)
    assert sizes[2] > sizes[0]


def _values(value: Any) -> int:
    """How many values there are in JSON that say something."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return sum(map(_values, inner)) if inner is not None else value not in (None, "", "0", 0, False)


@pytest.mark.parametrize("name", DETERMINED)
def test_mutants_of_right_answers_are_caught(name: str) -> None:
    def mutate(exercise: Exercise, rng: random.Random) -> Iterator[Any]:
        return mutants(exercise.solution(), rng, schema=family(name).schema, **DETERMINED[name])

    alive = survivors(name, mutate)
    assert len(alive) <= 10, [(exercise.solution(), mutant) for exercise, mutant in alive[:3]]


@pytest.mark.parametrize("name", DIGESTS)
def test_answers_can_be_held_to_the_schema_while_they_are_written(name: str) -> None:
    schema = family(name).schema
    if schema is not None:
        schema_grammar(schema)


def test_families_stays_a_function_after_the_package_of_that_name_is_loaded() -> None:
    assert set(DIGESTS) <= set(agent_forge.tasks.families())
    assert "hr" in agent_forge.tasks.families()
