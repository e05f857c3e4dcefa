"""The complexity rule: what it counts, and what it must not count."""

from __future__ import annotations

import pytest

from agent_forge.agents.complexity import GRAPH_FROM, complexity, is_question


@pytest.mark.parametrize(
    "request_text",
    [
        "Which brand do they understand?",
        "Where was Ada Lovelace born?",
        "Describe the grand island of Thailand",
        "What is the latest thenar research?",
        "Summarize the demand and supply of sand",
    ],
)
def test_words_that_only_contain_and_or_then_count_nothing(request_text: str) -> None:
    decision = complexity(request_text)
    assert not decision.graph
    assert decision.steps == 1


@pytest.mark.parametrize(
    ("request_text", "steps"),
    [
        ("Who is older, Ada Lovelace or Charles Babbage?", 3),
        ("Are Oslo and Bergen in the same country?", 3),
        ("Fetch the sales data, compute the total and email the report to Ann", 3),
        ("1. wash\n2. dry\n3. iron\n4. fold", 4),
        ("Find the weather in Oslo then book a hotel", 2),
    ],
)
def test_steps_are_counted_from_structure(request_text: str, steps: int) -> None:
    decision = complexity(request_text)
    assert decision.steps == steps
    assert decision.graph == (steps >= GRAPH_FROM)


def test_every_part_of_the_sum_is_reported() -> None:
    decision = complexity("Which film has the director who died later, Alien or Heat?")
    assert sum(decision.features.values()) == decision.steps
    for name, count in decision.features.items():
        assert not count or f"{name} {count}" in decision.reason
    assert "plan a graph" in decision.reason


def test_hops_add_steps() -> None:
    near = complexity("What is the capital of Norway?").steps
    far = complexity("What is the capital of the country that the author who wrote Emma was born in?").steps
    assert far > near


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Are Danger!! Death Ray and The Unborn from the same country?", True),
        ("Which film came out first, The Love God? or Heat?", True),
        ("Tell me a joke.", False),
        ("Is it cold in Oslo? Then send Ann a coat.", False),
        ("", False),
    ],
)
def test_a_question_is_told_from_an_instruction(text: str, expected: bool) -> None:
    assert is_question(text) is expected


def test_an_empty_request_is_one_step() -> None:
    assert complexity("").steps == 1
