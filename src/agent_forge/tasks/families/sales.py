"""Sales: the fields of a lead from a note about a call, in normal form, and its label by stated rules."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

from agent_forge.tasks.answers import number
from agent_forge.tasks.constraints import day, long_date, same
from agent_forge.tasks.family import Draft, Verdict, task_family

_COMPANIES = (
    "Larkfield Foods", "Brightwater Clinics", "Osprey Tools", "Meridian Hotels", "Tallis Paper", "Juniper Transport",
    "Corvina Labs", "Redgate Schools",
)  # fmt: skip
_PEOPLE = (
    "Hana Weiss", "Marco Bellini", "Priya Nair", "Lucas Meyer", "Elena Duarte", "Samuel Reed", "Yuki Mori",
    "Greta Lund",
)  # fmt: skip
_PRODUCTS = ("Atlas", "Beacon", "Courier", "Ledger")
SCHEMA = {
    "type": "object",
    "properties": {
        "company": {"type": "string", "maxLength": 40},
        "contact": {"type": "string", "maxLength": 40},
        "product": {"enum": list(_PRODUCTS)},
        "seats": {"type": ["integer", "string"], "maxLength": 12},
        "budget": {"type": ["number", "string"], "maxLength": 20},
        "decision_date": {"type": "string", "format": "date"},
        "lead": {"enum": ["hot", "warm", "cold"]},
    },
    "required": ["company", "contact", "product", "seats", "budget", "decision_date", "lead"],
    "additionalProperties": False,
}


def solve(expected: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, and the label that the rules give them."""
    fields, rules = expected["fields"], expected["rules"]
    held = [fields["budget"] >= rules["min_budget"]]
    if rules["max_days"] is not None:
        days = date.fromisoformat(fields["decision_date"]) - date.fromisoformat(expected["written"])
        held.append(days.days <= rules["max_days"])
    lead = "hot" if all(held) else "warm" if any(held) else "cold"
    if lead == "hot" and rules["min_seats"] is not None and fields["seats"] < rules["min_seats"]:
        lead = "warm"
    return {**fields, "lead": lead}


def check(answer: Mapping[str, Any], expected: Mapping[str, Any]) -> Verdict:
    """Amounts and dates are compared as values, names without regard to case; the label is judged by the rules."""
    right, faults = solve(expected), dict[str, str | None]()
    for name, value in right.items():
        if name in ("seats", "budget"):
            fits = number(answer[name]) == Decimal(value)
        elif name == "decision_date":
            fits = day(answer[name]) == date.fromisoformat(value)
        else:
            fits = same(answer[name], value)
        faults[name] = None if fits else f"{answer[name]!r} instead of {value!r}"
    return Verdict.parts(faults)


@task_family("sales", check=check, solve=solve, schema=SCHEMA)
def sales(rng: random.Random, level: float) -> Draft:
    """From a form to prose with corrections, other people, other firms and relative dates as the level rises."""
    written = date(2027, 1, 4) + timedelta(days=rng.randrange(300))
    budget, limit = 500 * rng.randrange(4, 80), 1000 * rng.randrange(8, 30)
    weeks = rng.randrange(2, 14)
    expected: dict[str, Any] = {
        "written": written.isoformat(),
        "fields": {
            "company": rng.choice(_COMPANIES),
            "contact": rng.choice(_PEOPLE),
            "product": rng.choice(_PRODUCTS),
            "seats": rng.randrange(5, 150),
            "budget": budget,
            "decision_date": (written + timedelta(weeks=weeks)).isoformat(),
        },
        "rules": {
            "min_budget": limit,
            "max_days": rng.choice((30, 45, 60)) if level > 0.35 else None,
            "min_seats": rng.choice((20, 40, 60)) if level > 0.7 else None,
        },
    }
    note = _form(expected["fields"]) if level < 0.2 else _call_note(expected, rng, level)
    return Draft(_prompt(note, expected), expected)


def _form(fields: Mapping[str, Any]) -> str:
    return (
        f"Company: {fields['company']}\nContact: {fields['contact']}\nProduct: {fields['product']}\n"
        f"Seats: {fields['seats']}\nBudget: {fields['budget']} EUR\nDecision on: {fields['decision_date']}"
    )


def _call_note(expected: Mapping[str, Any], rng: random.Random, level: float) -> str:
    fields, written = expected["fields"], date.fromisoformat(expected["written"])
    decides = date.fromisoformat(fields["decision_date"])
    when = f"on {long_date(decides)}"
    if level > 0.55:
        when = f"exactly {(decides - written).days // 7} weeks after this call"
    other = rng.choice([name for name in _PEOPLE if name != fields["contact"]])
    rival = rng.choice([name for name in _COMPANIES if name != fields["company"]])
    old = rng.choice([name for name in _PRODUCTS if name != fields["product"]])
    budget = _amount(fields["budget"], level)
    sentences = [
        f"They need {fields['seats']} seats.",
        f"The budget is {budget} EUR.",
        f"They will decide {when}.",
    ]
    if level > 0.4:
        sentences[0] = f"They use {old} today and want {fields['seats']} seats of {fields['product']} instead."
    if level > 0.6:
        first = _amount(fields["budget"] + 500 * rng.choice((-3, -2, 2, 5)), level)
        sentences[1] = f"The budget was to be {first} EUR, but that was corrected during the call: it is {budget} EUR."
    if level > 0.75:
        sentences.append(
            f"{rival} paid {_amount(500 * rng.randrange(4, 80), level)} EUR for {rng.randrange(5, 150)} seats "
            "last year, they say."
        )
    if level > 0.5:
        sentences.append(f"{other} will join the next call, but {fields['contact']} remains our contact.")
    rng.shuffle(sentences)
    wish = "" if level > 0.4 else f" They are interested in {fields['product']}."
    opening = f"Spoke to {fields['contact']} of {fields['company']}.{wish}"
    return f"Call on {long_date(written)}. {opening} {' '.join(sentences)}"


def _amount(amount: int, level: float) -> str:
    return f"{amount / 1000:g}k" if level > 0.65 else f"{amount:,}"


def _prompt(note: str, expected: Mapping[str, Any]) -> str:
    rules = expected["rules"]
    hot = f"the budget is at least {rules['min_budget']:,} EUR"
    if rules["max_days"] is None:
        label = f"hot if {hot}, else cold"
    else:
        label = (
            f"hot if {hot} and the decision comes at most {rules['max_days']} days after the call; warm if only one of "
            "the two holds; cold if neither does"
        )
    if rules["min_seats"] is not None:
        label += f". With fewer than {rules['min_seats']} seats a lead that would be hot is warm"
    return (
        f"{note}\n\nExtract company, contact, product, seats, budget (in EUR, as a plain number) and decision_date "
        f"(YYYY-MM-DD) of the lead, and label the lead: {label}."
    )
