"""Sales: fields in normal form, labels by hand."""

from __future__ import annotations

from typing import Any

import pytest

from agent_forge.tasks import family

FIELDS = {
    "company": "Osprey Tools",
    "contact": "Hana Weiss",
    "product": "Beacon",
    "seats": 40,
    "budget": 12_500,
    "decision_date": "2027-04-01",
}


def case(min_budget: int = 12_500, max_days: int | None = 31, min_seats: int | None = None) -> dict[str, Any]:
    rules = {"min_budget": min_budget, "max_days": max_days, "min_seats": min_seats}
    return {"written": "2027-03-01", "fields": FIELDS, "rules": rules}


@pytest.mark.parametrize(
    ("expected", "lead"),
    [
        (case(), "hot"),
        (case(max_days=None), "hot"),
        (case(min_budget=13_000, max_days=None), "cold"),
        (case(max_days=30), "warm"),
        (case(min_budget=12_501), "warm"),
        (case(min_budget=12_501, max_days=30), "cold"),
        (case(min_seats=41), "warm"),
        (case(min_seats=40), "hot"),
        (case(min_budget=12_501, max_days=30, min_seats=41), "cold"),
    ],
)
def test_labels_by_hand(expected: dict[str, Any], lead: str) -> None:
    for label in ("hot", "warm", "cold"):
        assert family("sales").check(FIELDS | {"lead": label}, expected).correct == (label == lead)


@pytest.mark.parametrize(
    "form",
    [
        {"budget": "12,500.00 EUR", "seats": "40"},
        {"budget": 12500.0},
        {"budget": "1.25e4", "decision_date": "April 1, 2027"},
        {"company": "osprey  tools", "contact": "HANA WEISS", "decision_date": "1.4.2027"},
    ],
)
def test_another_form_is_the_same_answer(form: dict[str, Any]) -> None:
    verdict = family("sales").check({"lead": "hot"} | FIELDS | form, case())
    assert verdict.correct, verdict.why


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"budget": "12,50"}, "budget: '12,50' instead of 12500"),
        ({"budget": "12.5"}, "budget: '12.5' instead of 12500"),
        ({"budget": "10,000 or 12,500"}, "budget"),
        ({"company": "Osprey"}, "company: 'Osprey' instead of 'Osprey Tools'"),
        ({"contact": "Hana Weiss, Priya Nair"}, "contact"),
        ({"decision_date": "2027-01-04"}, "decision_date: '2027-01-04' instead of '2027-04-01'"),
        ({"decision_date": "04/01/2027"}, "decision_date"),
        ({"product": "Atlas"}, "product: 'Atlas' instead of 'Beacon'"),
        ({"seats": 41}, "seats: 41 instead of 40"),
    ],
)
def test_wrong_fields_are_told_why(change: dict[str, Any], why: str) -> None:
    verdict = family("sales").check({"lead": "hot"} | FIELDS | change, case())
    assert why in verdict.why
    assert 0.85 < verdict.score < 0.86
