"""Marketing: plans by hand, and every rule of the brief broken in turn."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from datetime import date, timedelta
from typing import Any

import pytest
from mutations import mutants, survivors

from agent_forge.tasks import Exercise, family

BRIEF: dict[str, Any] = {
    "product": "Solo lamp",
    "code": "SAVE20",
    "audiences": {"students": "10.20", "parents": "9.80", "commuters": "9.90"},
    "total": 1000,
    "channels": {"email": [100, 300], "search": [200, 500], "radio": [100, 400]},
    "window": ["2027-03-01", "2027-03-31"],
    "min_days": 7,
    "apart": [["email", "search"]],
    "sequence": [["search", "radio"]],
}


def flight(channel: str, start: str, end: str, budget: Any) -> dict[str, Any]:
    return {"budget": budget, "channel": channel, "end": end, "start": start}


EMAIL = flight("email", "2027-03-25", "31 March 2027", "300.00")
SEARCH = flight("search", "2027-03-01", "2027-03-20", 499.5)
RADIO = flight("radio", "21.3.2027", "2027-03-31", "200.50 EUR")
PLAN = {
    "flights": [RADIO, EMAIL, SEARCH],
    "audience": "parents",
    "call_to_action": "Buy your solo lamp today, and enter SAVE20 at the till!",
}


def test_an_unusual_plan_that_keeps_the_rules_is_right() -> None:
    verdict = family("marketing").check(PLAN, BRIEF)
    assert verdict.correct, verdict.why


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"audience": "students"}, "audience: students instead of parents"),
        ({"call_to_action": "Solo lamp SAVE20 SAVE20 solo lamp."}, "call_to_action: it is a list of words"),
        ({"call_to_action": "Buy your lamp today, and enter SAVE20 at the till!"}, "'Solo lamp' is not in it once"),
        ({"call_to_action": "Buy your solo lamp today, and enter SAVE200 at the till!"}, "'SAVE20' is not in it once"),
        ({"flights": [RADIO, EMAIL]}, "search: 0 flights instead of one"),
        ({"flights": [RADIO, EMAIL, SEARCH, SEARCH]}, "search: 2 flights instead of one"),
        ({"flights": [RADIO, EMAIL, SEARCH, flight("print", "2027-03-01", "2027-03-09", 0)]}, "not allowed: print"),
        ({"flights": [RADIO | {"budget": 200}, EMAIL, SEARCH]}, "the budgets add up to 999.50, not 1000"),
        ({"flights": [RADIO | {"budget": "some"}, EMAIL, SEARCH]}, "total: a budget is not an amount"),
        ({"flights": [RADIO | {"budget": 150}, EMAIL | {"budget": 350.5}, SEARCH]}, "email: 350.5 is not between"),
        ({"flights": [RADIO, EMAIL | {"end": "2027-04-01"}, SEARCH]}, "is not within 2027-03-01 to 2027-03-31"),
        ({"flights": [RADIO, EMAIL | {"start": "2027-03-26"}, SEARCH]}, "email: 6 days, not 7"),
        ({"flights": [RADIO, EMAIL | {"start": "2027-03-31", "end": "2027-03-25"}, SEARCH]}, "email: -5 days"),
        ({"flights": [RADIO, EMAIL | {"start": "2027-03-20"}, SEARCH]}, "email and search: they must not share a day"),
        ({"flights": [RADIO | {"start": "2027-03-20"}, EMAIL, SEARCH]}, "radio must start after search has ended"),
        ({"flights": [RADIO, EMAIL, SEARCH | {"end": "soon"}]}, "search: start or end is not a date"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_named(change: dict[str, Any], why: str) -> None:
    verdict = family("marketing").check(PLAN | change, BRIEF)
    assert not verdict.correct
    assert why in verdict.why


def test_an_empty_plan_earns_nothing() -> None:
    empty = {"audience": "students", "call_to_action": "", "flights": []}
    assert family("marketing").check(empty, BRIEF).score < 1e-9


def _break(exercise: Exercise, rng: random.Random) -> Iterator[dict[str, Any]]:
    plan, expected = exercise.solution(), exercise.expected
    opens, closes = map(date.fromisoformat, expected["window"])
    values = mutants(
        plan, rng, schema=family("marketing").schema, free=["call_to_action", "start", "end"], unordered=["flights"]
    )
    while True:
        if rng.random() < 0.5:
            yield next(values)
            continue
        changed = copy.deepcopy(plan)
        one = rng.choice(changed["flights"])
        words = changed["call_to_action"].split()
        begins, ends = date.fromisoformat(one["start"]), date.fromisoformat(one["end"])
        one["start"], one["end"], changed["call_to_action"] = rng.choice(
            [
                (str(opens - timedelta(days=rng.randrange(1, 400))), one["end"], " ".join(words)),
                (one["start"], str(closes + timedelta(days=rng.randrange(1, 400))), " ".join(words)),
                (one["end"], str(begins), " ".join(words)),
                (one["start"], str(ends - timedelta(days=1)), " ".join(words)),
                (f"2027-13-{begins.day:02}", one["end"], " ".join(words)),
                (one["start"], one["end"], " ".join(words).replace(expected["code"], f"{expected['code']}0")),
                (one["start"], one["end"], " ".join(words).replace(expected["product"].split()[0], "Other")),
                (one["start"], one["end"], f"{' '.join(words)} Use {expected['code']} now."),
                (one["start"], one["end"], " ".join(words).rstrip(".")),
            ]
        )
        yield changed


def test_mutants_of_right_plans_are_caught() -> None:
    alive = survivors("marketing", _break)
    assert len(alive) <= 10, [mutant for _, mutant in alive[:3]]
