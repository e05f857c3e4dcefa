"""The assessment protocol: every combination has one route, and the dangerous ones are never inline."""

from __future__ import annotations

from itertools import product

import pytest

from agent_forge.agents.assessment import (
    CHECKS,
    LEVELS,
    ROUTES,
    RULES,
    Assessment,
    assess,
    check_for,
    decide,
    verify,
)
from agent_forge.errors import UsageError
from agent_forge.traces.reward import exit_code, reward_of

EVERY = [Assessment(*levels) for levels in product(LEVELS, repeat=3)]


def test_every_combination_has_a_route_and_a_reason():
    decisions = [decide(assessment) for assessment in EVERY]
    assert len(decisions) == 27
    assert {decision.route for decision in decisions} == set(ROUTES)
    assert all(decision.because for decision in decisions)


@pytest.mark.parametrize("assessment", EVERY, ids=lambda a: f"{a.complexity}-{a.criticality}-{a.uncertainty}")
def test_routes_are_monotone_in_danger(assessment):
    """More criticality or more uncertainty never leads to a bolder route."""
    caution = {"inline": 0, "delegate": 0, "checkpoint": 1, "ask": 2}
    here = caution[decide(assessment).route]
    for other in EVERY:
        no_safer = all(
            LEVELS.index(getattr(other, name)) >= LEVELS.index(getattr(assessment, name))
            for name in ("criticality", "uncertainty")
        )
        if other.complexity == assessment.complexity and no_safer:
            assert caution[decide(other).route] >= here


@pytest.mark.parametrize(
    ("levels", "route"),
    [
        (("low", "low", "low"), "inline"),
        (("low", "medium", "medium"), "inline"),
        (("medium", "low", "low"), "delegate"),
        (("high", "low", "high"), "delegate"),
        (("high", "medium", "high"), "checkpoint"),
        (("low", "high", "low"), "checkpoint"),
        (("high", "high", "medium"), "checkpoint"),
        (("low", "high", "high"), "ask"),
        (("high", "high", "high"), "ask"),
    ],
)
def test_routes(levels, route):
    assert decide(Assessment(*levels)).route == route


def test_the_last_rule_fits_everything():
    assert RULES[-1].when == {}


def test_facts_become_grades_and_missing_facts_the_worst_case():
    assert assess(calls=1, side_effects="none", unknowns=0) == Assessment("low", "low", "low")
    assert assess(calls=5, side_effects="reversible", unknowns=2) == Assessment("medium", "medium", "medium")
    assert assess(calls=6, side_effects="irreversible", unknowns=3) == Assessment("high", "high", "high")
    assert assess() == Assessment("high", "high", "high")
    assert assess().to_json() == {"complexity": "high", "criticality": "high", "uncertainty": "high"}


def test_wrong_grades_are_refused():
    with pytest.raises(UsageError, match="complexity is 'huge'"):
        Assessment("huge", "low", "low")
    with pytest.raises(UsageError, match="side effects"):
        assess(side_effects="some")


def test_every_kind_of_work_has_something_to_look_at():
    assert check_for("build") == "the exit code"
    assert check_for(None) == check_for("poetry")
    assert all(check_for(category) == text for category, text in CHECKS.items())


def test_a_check_that_breaks_tells_nothing():
    looks = verify("42", [lambda result: exit_code(int(result == "42")), lambda result: result["no"]])
    assert [look.value for look in looks] == [0.0, None]
    assert "TypeError" in looks[1].evidence
    assert reward_of(looks) == 0.0
