"""What holds for every family: the same exercise everywhere, a solver that is right, and no trust in answers.

`python tests/tasks/test_families.py` prints digests.json, after a family's `version` was raised on purpose.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_forge.tasks.family import Exercise, _bundled, digest, family, is_held_out

DIGESTS = Path(__file__).with_name("digests.json")
SANDBOXED = ("builder", "qa")  # tests/tasks/test_code_families.py: many answers in one sandbox
HERE = (
    "analyst", "arithmetic", "builder", "deploy", "legal", "monitor", "plan_graph", "program_output", "programs", "qa",
    "retrieval", "security", "tool_calls",
)  # fmt: skip


def pinned() -> dict[str, list[str]]:
    return {
        name: [digest(family(name).make(7, level, held_out=held)) for level in (0, 0.5, 1) for held in (False, True)]
        for name in HERE
    }


if __name__ == "__main__":
    print(json.dumps(pinned(), indent=1))
    raise SystemExit


import pytest  # noqa: E402
from tasks_checking import LEVELS  # noqa: E402

from agent_forge.inference.grammar import schema_grammar  # noqa: E402


def test_exercises_are_the_same_everywhere() -> None:
    """As they were drawn by Python 3.10 to 3.13."""
    assert pinned() == json.loads(DIGESTS.read_text())


@pytest.mark.parametrize("name", [name for name in _bundled() if name not in SANDBOXED])
def test_solvers_are_right_at_every_level(name: str) -> None:
    for level in LEVELS:
        for seed in range(3):
            for held_out in (False, True):
                exercise = family(name).make(seed, level, held_out=held_out)
                verdict = exercise.check(json.dumps(exercise.solution()))
                assert verdict.correct, (exercise, verdict)


@pytest.mark.parametrize("name", sorted(_bundled()))
def test_held_out_exercises_are_never_trained_on(name: str) -> None:
    prompts = {
        held_out: {family(name).make(seed, level, held_out=held_out).prompt for level in LEVELS for seed in range(4)}
        for held_out in (False, True)
    }
    assert prompts[True].isdisjoint(prompts[False])
    assert all(is_held_out(prompt) == held_out for held_out, texts in prompts.items() for prompt in texts)
    assert len(prompts[False]) > 14


@pytest.mark.parametrize("name", sorted(_bundled()))
def test_exercises_are_json(name: str) -> None:
    exercise = family(name).make(2, 0.9)
    again = Exercise(**json.loads(json.dumps(exercise.to_dict())))
    assert again == exercise
    assert digest(again) == digest(exercise)


@pytest.mark.parametrize("name", sorted(_bundled()))
def test_an_answer_of_the_schema_can_be_decoded_with_a_grammar(name: str) -> None:
    schema = family(name).schema
    assert schema is None or schema_grammar(schema)


def drawn(schema: Mapping[str, Any], rng: random.Random, words: list[str]) -> Any:
    """Any value that fits a schema: what a model without a clue would answer."""
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if "anyOf" in schema:
        return drawn(rng.choice(schema["anyOf"]), rng, words)
    kind = schema.get("type", "string")
    kind = rng.choice(kind) if isinstance(kind, list) else kind
    if kind == "object":
        inner = schema.get("properties", {"a": {"type": "integer"}})
        return {name: drawn(each, rng, words) for name, each in inner.items()}
    if kind == "array":
        least = schema.get("minItems", 0)
        count = rng.randrange(least, max(least, min(4, schema.get("maxItems", 4))) + 1)
        return [drawn(schema.get("items", {}), rng, words) for _ in range(count)]
    return {
        "integer": rng.randrange(1, 40),
        "number": rng.choice([rng.randrange(100), rng.random() * 100]),
        "boolean": rng.random() < 0.5,
    }.get(kind, rng.choice(words))


@pytest.mark.parametrize("name", [name for name in _bundled() if name not in SANDBOXED])
def test_answers_without_a_clue_are_seldom_right_and_never_a_crash(name: str) -> None:
    rng = random.Random(name)
    right = 0
    for place in range(60):
        exercise = family(name).make(place, LEVELS[place % 5])
        schema = family(name).schema
        words = exercise.prompt.split()
        answer = drawn(schema, rng, words) if schema else " ".join(rng.sample(words, min(8, len(words))))
        verdict = exercise.check(answer)
        assert 0 <= verdict.score <= 1
        assert verdict.correct or verdict.why
        right += verdict.correct
    assert right <= 6


@pytest.mark.parametrize("name", sorted(_bundled()))
def test_what_is_no_answer_is_unreadable_or_wrong(name: str) -> None:
    exercise = family(name).make(1, 0.5)
    junk = [
        "",
        "null",
        "[]",
        "{}",
        "ok",
        exercise.prompt,
        "{" * 50_000,
        '{"a": 1e999}',
        "```json\n```",
        3,
        None,
        [],
        {},
    ]
    for answer in [*junk, True, float("nan"), "9" * 5000, '{"answer": ' + "9" * 5000 + "}"]:
        verdict = exercise.check(answer)
        assert not verdict.correct
        assert verdict.score == 0 or family(name).schema is None, (answer, verdict)
        assert verdict.why
