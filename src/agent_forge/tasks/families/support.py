"""Support: a customer's message and a policy; what the policy says must be done, in which order, and what is paid."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from decimal import ROUND_HALF_UP, Decimal
from itertools import pairwise
from typing import Any

from agent_forge.tasks.answers import number
from agent_forge.tasks.constraints import long_date
from agent_forge.tasks.family import Draft, Verdict, task_family

# What is done for each resolution, the most important first; harder policies name more of it.
_STEPS = {
    "refund": ("issue_refund", "verify_order", "send_return_label", "send_confirmation"),
    "partial_refund": ("issue_refund", "verify_order", "request_photo", "send_confirmation"),
    "store_credit": ("add_store_credit", "verify_order", "send_return_label", "send_confirmation"),
    "replacement": ("ship_replacement", "request_photo", "send_return_label", "send_confirmation"),
    "decline": ("explain_policy", "verify_order", "offer_discount", "close_ticket"),
}
_ORDER = (
    "verify_order", "request_photo", "send_return_label", "issue_refund", "ship_replacement", "add_store_credit",
    "explain_policy", "offer_discount", "send_confirmation", "close_ticket",
)  # fmt: skip
_APPROVAL, _REFUND = "manager_approval", "issue_refund"
_ALL_STEPS = sorted([*_ORDER, _APPROVAL])
_PRODUCTS = ("headphones", "coffee machine", "desk lamp", "backpack", "keyboard", "blender", "camera", "drone")
_CONDITIONS = ["days", "opened", "defective", "plan", "region"]
_PLANS, _REGIONS = ("basic", "plus", "premium"), ("EU", "US", "Asia")
_CENT = Decimal("0.01")
_ASIDES = (
    "My neighbour got all of the money back for hers after 90 days.",
    "Last year I returned a toaster to you on the second day, and that was easy.",
    "I have been a customer for 6 years.",
    "Your competitor offers 60 days, by the way.",
    "I would take the same thing in blue for 15.00 less, too.",
)
SCHEMA = {
    "type": "object",
    "properties": {
        "resolution": {"enum": list(_STEPS)},
        "refund_amount": {"type": ["number", "string"], "maxLength": 20},
        "steps": {"type": "array", "items": {"enum": _ALL_STEPS}, "maxItems": 8},
    },
    "required": ["resolution", "refund_amount", "steps"],
    "additionalProperties": False,
}


def solve(expected: Mapping[str, Any]) -> dict[str, Any]:
    """Executes the policy: the first rule that applies decides."""
    rule = _rule(expected)
    amount = _amount(rule, expected)
    steps = list(rule["steps"])
    if _needs_approval(amount, expected):
        steps.insert(steps.index(_REFUND), _APPROVAL)
    return {"resolution": rule["resolution"], "refund_amount": str(amount), "steps": steps}


def _rule(expected: Mapping[str, Any]) -> Mapping[str, Any]:
    for rule in expected["rules"][:-1]:
        if all(_holds(name, value, expected) for name, value in rule["when"].items()):
            return rule  # type: ignore[no-any-return]
    return expected["rules"][-1]  # type: ignore[no-any-return]


def _holds(name: str, value: Any, expected: Mapping[str, Any]) -> bool:
    facts = expected["facts"]
    if name == "days":
        extra = expected["premium_days"] if facts["plan"] == "premium" else 0
        return bool(facts["days"] <= value + extra)
    return bool(facts[name] == value)


def _amount(rule: Mapping[str, Any], expected: Mapping[str, Any]) -> Decimal:
    if not rule["percent"]:
        return Decimal(0)
    fee = Decimal(expected["fee"]) if expected["facts"]["region"] != "EU" else Decimal(0)
    paid: Decimal = Decimal(expected["facts"]["price"]) * rule["percent"] / 100
    return paid.quantize(_CENT, rounding=ROUND_HALF_UP) - fee


def _needs_approval(amount: Decimal, expected: Mapping[str, Any]) -> bool:
    limit = expected["approval_above"]
    return limit is not None and amount > limit


def check(answer: Mapping[str, Any], expected: Mapping[str, Any]) -> Verdict:
    """Names what violates the policy: resolution, amount, and steps that are missing, needless or misplaced."""
    right, rule = solve(expected), _rule(expected)
    place = expected["rules"].index(rule) + 1
    resolution = amount = None
    if answer["resolution"] != right["resolution"]:
        resolution = f"rule {place} applies: {right['resolution']}, not {answer['resolution']}"
    if number(answer["refund_amount"]) != Decimal(right["refund_amount"]):
        amount = f"{answer['refund_amount']} instead of {right['refund_amount']}"
    before = list(pairwise(rule["steps"])) if rule["in_order"] else []
    if _APPROVAL in right["steps"]:
        before.append((_APPROVAL, _REFUND))
    steps = _steps_fault(answer["steps"], right["steps"], before)
    return Verdict.parts({"resolution": resolution, "refund_amount": amount, "steps": steps})


def _steps_fault(steps: Sequence[str], right: Sequence[str], before: Sequence[tuple[str, str]]) -> str | None:
    done, due = Counter(steps), Counter(right)
    faults = [f"{step} is missing" for step in (due - done)]
    faults += [f"{step} is not called for" if step not in due else f"{step} is done twice" for step in (done - due)]
    if not faults:
        faults = [f"{one} must come before {two}" for one, two in before if steps.index(one) > steps.index(two)]
    return ", ".join(faults) or None


@task_family("support", check=check, solve=solve, schema=SCHEMA)
def support(rng: random.Random, level: float) -> Draft:
    """More rules with more conditions, fees, approvals and dates to be subtracted as the level rises."""
    rules = _draw_rules(rng, level)
    expected: dict[str, Any] = {
        "rules": rules,
        "premium_days": rng.choice((7, 10, 14)) if level > 0.8 else 0,
        "fee": rng.choice(("4.90", "6.50", "9.00")) if level > 0.6 else "0",
        "approval_above": rng.choice((50, 80, 100)) if level > 0.4 else None,
        "today": "",
    }
    wanted = rng.randrange(2 * len(rules) - 1) // 2  # all rules decide about as often, the last one half as often
    for _ in range(60):
        expected["facts"] = _draw_facts(rng, level)
        if expected["rules"].index(_rule(expected)) == wanted:
            break
    if level > 0.55:
        expected["today"] = (date(2027, 1, 1) + timedelta(days=rng.randrange(365))).isoformat()
    return Draft(_prompt(expected, rng, level), expected)


def _draw_rules(rng: random.Random, level: float) -> list[dict[str, Any]]:
    """No two with the same resolution or the same conditions; the last rule is what holds otherwise."""
    count, length = 1 + round(3 * level), 1 + round(3 * level)
    resolutions = [*rng.sample([name for name in _STEPS if name != "decline"], count), "decline"]
    rules: list[dict[str, Any]] = []
    for place, resolution in enumerate(resolutions):
        when: dict[str, Any] = {}
        while place < count and (not when or when in [rule["when"] for rule in rules]):
            names = rng.sample(_CONDITIONS, 1 + (level > 0.35) + (level > 0.75)) if level > 0.15 else ["days"]
            when = {name: _draw_value(rng, name) for name in names}
        percent = {"refund": 100, "partial_refund": rng.choice((50, 70, 85))}.get(resolution, 0)
        in_order = length > 1 and rng.random() < 0.5 + 0.5 * level
        steps = list(_STEPS[resolution][:length])
        rng.shuffle(steps)
        if in_order:
            steps.sort(key=_ORDER.index)
        rules.append({"when": when, "resolution": resolution, "percent": percent, "steps": steps, "in_order": in_order})
    return rules


def _draw_value(rng: random.Random, name: str) -> Any:
    values: dict[str, Sequence[Any]] = {"days": (14, 30, 45, 60), "plan": _PLANS, "region": _REGIONS}
    return rng.choice(values.get(name, (True, False)))


def _draw_facts(rng: random.Random, level: float) -> dict[str, Any]:
    cents = rng.randrange(3_000, 20_000)
    return {
        "product": rng.choice(_PRODUCTS),
        "price": str(Decimal(cents - cents % (100 if level < 0.5 else 1)) / 100),
        "days": rng.randrange(1, 90),
        "opened": rng.random() < 0.5,
        "defective": rng.random() < 0.5,
        "plan": rng.choice(_PLANS),
        "region": rng.choice(_REGIONS),
    }


def _prompt(expected: Mapping[str, Any], rng: random.Random, level: float) -> str:
    facts = expected["facts"]
    bought = f"{facts['days']} days ago"
    if expected["today"]:
        bought = "on " + long_date(date.fromisoformat(expected["today"]) - timedelta(days=facts["days"]))
    parts = [
        f"I bought a {facts['product']} for {facts['price']} EUR, {bought}.".replace(
            "a headphones", "a pair of headphones"
        ),
        f"I am on the {facts['plan']} plan, in the region {facts['region']}.",
        "I have opened the box." if facts["opened"] else "The box is still closed, I never opened it.",
        "The product is defective." if facts["defective"] else "There is no defect, I just do not want it.",
        *rng.sample(_ASIDES, round(3 * level)),
    ]
    told = parts[1:] if level > 0.15 else []  # the easiest policies ask for the day only
    rng.shuffle(told)
    today = f"Today is {long_date(date.fromisoformat(expected['today']))}.\n" if expected["today"] else ""
    return (
        f"Policy (the first rule that applies decides):\n{_policy(expected)}\n\n{today}"
        f"Message of the customer: {' '.join([parts[0], *told, 'What can you do?'])}\n\n"
        "Apply the policy. State the resolution, the refund_amount (0 for store_credit, replacement and decline) and "
        "the steps to take."
    )


def _policy(expected: Mapping[str, Any]) -> str:
    lines = []
    for place, rule in enumerate(expected["rules"], 1):
        phrases = [_condition(name, value) for name, value in rule["when"].items()]
        condition = f"If {' and '.join(phrases)}" if phrases else "Otherwise"
        share = f" of {rule['percent']} % of the price" if rule["percent"] else ""
        order = " in this order" if rule["in_order"] else " in any order" if len(rule["steps"]) > 1 else ""
        lines.append(f"{place}. {condition}: {rule['resolution']}{share}. Steps{order}: {', '.join(rule['steps'])}.")
    if expected["premium_days"]:
        lines.append(f"On the premium plan every limit of days is {expected['premium_days']} days longer.")
    if expected["fee"] != "0":
        lines.append(
            f"Outside the region EU, {expected['fee']} for shipping are deducted from a refund or partial_refund, "
            "after its share of the price has been rounded to the cent, half up."
        )
    if expected["approval_above"] is not None:
        lines.append(
            f"If more than {expected['approval_above']}.00 are paid back, {_APPROVAL} is one more step, "
            f"at any place before {_REFUND}."
        )
    return "\n".join(lines)


def _condition(name: str, value: Any) -> str:
    return {
        "days": f"the product was bought at most {value} days ago",
        "opened": "the box has been opened" if value else "the box has not been opened",
        "defective": "the product is defective" if value else "the product is not defective",
        "plan": f"the customer is on the {value} plan",
        "region": f"the customer is in the region {value}",
    }[name]
