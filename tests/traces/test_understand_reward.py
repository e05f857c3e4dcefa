"""Rewards come from verification; words give none."""

from __future__ import annotations

import pytest

from agent_forge.errors import UsageError
from agent_forge.traces.reward import (
    Verification,
    components,
    exit_code,
    grader,
    person,
    reward_of,
    schema,
    share_passed,
)


def test_nothing_verified_is_unknown_not_zero_and_not_one():
    assert reward_of([]) is None
    assert reward_of([exit_code(None), share_passed(0, 0), grader(None)]) is None
    assert components([grader(None)]) == []


@pytest.mark.parametrize(
    ("look", "worth"),
    [
        (exit_code(0), 1.0),
        (exit_code(1), 0.0),
        (exit_code(-9), 0.0),
        (share_passed(47, 0), 1.0),
        (share_passed(3, 1), 0.75),
        (grader(0.61), 0.61),
        (person("pass"), 1.0),
        (person("partial"), 0.5),
        (person("fail"), 0.0),
        (schema({"answer": 7}, {"required": ["answer"]}), 1.0),
        (schema({"at": "yesterday"}, {"properties": {"at": {"format": "date-time"}}}), 0.0),
    ],
)
def test_what_each_method_is_worth(look, worth):
    assert reward_of([look]) == worth
    assert look.to_json()["value"] == worth


@pytest.mark.parametrize("words", ["Process crashed and was aborted", "All 47 tests passed", "No results found", ""])
def test_there_is_no_way_from_words_to_a_reward(words):
    with pytest.raises(UsageError):
        person(words)
    assert reward_of([Verification("grader", None, evidence=words)]) is None


def test_looks_are_weighted_and_a_person_overrules():
    looks = [Verification("tests", 1.0, weight=3), Verification("grader", 0.2, weight=1), grader(None)]
    assert reward_of(looks) == pytest.approx(0.8)
    parts = components(looks)
    assert sum(part["weight"] for part in parts) == pytest.approx(1)
    assert sum(part["weight"] * part["value"] for part in parts) == pytest.approx(0.8)
    assert reward_of([*looks, person("fail")]) == 0.0


def test_evidence_is_kept():
    assert exit_code(2).to_json() == {"method": "exit_code", "value": 0.0, "evidence": "exit code 2", "weight": 1.0}
    assert share_passed(3, 1).evidence == "3 of 4 passed"
    assert "date-time" in schema({"at": "x"}, {"properties": {"at": {"format": "date-time"}}}).evidence


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Verification("keywords", 1.0),
        lambda: grader(1.5),
        lambda: Verification("grader", 0.5, weight=0),
        lambda: Verification("grader", 0.5, weight=float("inf")),
        lambda: share_passed(-1, 2),
    ],
)
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(UsageError):
        wrong()
