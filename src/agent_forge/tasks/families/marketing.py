"""Marketing: a campaign whose budget adds up, whose dates fit, and that says what it must to whom it must."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

from agent_forge.tasks.answers import number
from agent_forge.tasks.constraints import day, judge, occurrences, outside, prose_fault
from agent_forge.tasks.family import Draft, Verdict, task_family

_CHANNELS = ("email", "search", "social", "radio", "print", "podcast")
_AUDIENCES = ("students", "parents", "commuters", "retailers")
_PRODUCTS = ("Brio bike", "Nimbus tent", "Solo lamp", "Vela watch", "Terra mug", "Lyra headset", "Orca bottle")
SCHEMA = {
    "type": "object",
    "properties": {
        "audience": {"enum": list(_AUDIENCES)},
        "call_to_action": {"type": "string", "maxLength": 160},
        "flights": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "channel": {"enum": list(_CHANNELS)},
                    "start": {"type": "string", "format": "date"},
                    "end": {"type": "string", "format": "date"},
                    "budget": {"type": ["number", "string"], "maxLength": 20},
                },
                "required": ["channel", "start", "end", "budget"],
                "additionalProperties": False,
            },
            "maxItems": 6,
        },
    },
    "required": ["audience", "call_to_action", "flights"],
    "additionalProperties": False,
}


def check(answer: Mapping[str, Any], expected: Mapping[str, Any]) -> Verdict:
    """Each channel, the sum, and how the flights follow each other; a channel that is not allowed halves the score."""
    flights: dict[str, list[Mapping[str, Any]]] = {channel: [] for channel in expected["channels"]}
    for flight in answer["flights"]:
        flights.setdefault(flight["channel"], []).append(flight)
    audience = _audience(expected)
    faults = {
        "audience": None if answer["audience"] == audience else f"{answer['audience']} instead of {audience}",
        "call_to_action": _action_fault(answer["call_to_action"], expected),
        "total": _total_fault([flight["budget"] for flight in answer["flights"]], Decimal(expected["total"])),
    }
    for channel in expected["channels"]:
        faults[channel] = _flight_fault(flights[channel], channel, expected)
    for first, second in expected["sequence"]:
        done = not faults[first] and not faults[second]
        late = done and _days(flights[first][0])[1] < _days(flights[second][0])[0]
        faults[f"{first} before {second}"] = None if late else f"{second} must start after {first} has ended"
    for one, two in expected["apart"]:
        done = not faults[one] and not faults[two]
        spans = [_days(flights[one][0]), _days(flights[two][0])] if done else []
        apart = done and max(span[0] for span in spans) > min(span[1] for span in spans)
        faults[f"{one} and {two}"] = None if apart else "they must not share a day"
    extra = [channel for channel in flights if channel not in expected["channels"]]
    return judge(faults, {"channels that are not allowed": ", ".join(extra) or None})


def _audience(expected: Mapping[str, Any]) -> str:
    costs: dict[str, str] = expected["audiences"]
    return min(costs, key=lambda name: Decimal(costs[name]))


def _action_fault(text: str, expected: Mapping[str, Any]) -> str | None:
    if fault := prose_fault(text) or outside("words", len(text.split()), 4, 25):
        return fault
    missing = [each for each in (expected["product"], expected["code"]) if occurrences(each, text) != 1]
    return f"{missing[0]!r} is not in it once" if missing else None


def _total_fault(budgets: Sequence[Any], total: Decimal) -> str | None:
    amounts = [number(budget) for budget in budgets]
    if None in amounts:
        return "a budget is not an amount"
    spent = sum((amount for amount in amounts if amount is not None), Decimal(0))
    return None if spent == total else f"the budgets add up to {spent}, not {total}"


def _days(flight: Mapping[str, Any]) -> tuple[date, date]:
    """First and last day; only for flights without a fault."""
    return day(flight["start"]) or date.max, day(flight["end"]) or date.min


def _flight_fault(flights: Sequence[Mapping[str, Any]], channel: str, expected: Mapping[str, Any]) -> str | None:
    if len(flights) != 1:
        return f"{len(flights)} flights instead of one"
    start, end, budget = day(flights[0]["start"]), day(flights[0]["end"]), number(flights[0]["budget"])
    if start is None or end is None:
        return "start or end is not a date"
    low, high = expected["channels"][channel]
    if budget is None or not low <= budget <= high:
        return f"{flights[0]['budget']} is not between {low} and {high}"
    opens, closes = map(date.fromisoformat, expected["window"])
    if start < opens or end > closes:
        return f"{start} to {end} is not within {opens} to {closes}"
    return outside("days", (end - start).days + 1, expected["min_days"], 366)


def solve(expected: Mapping[str, Any]) -> dict[str, Any]:
    """The flights follow each other, so that none overlap; each gets its minimum, then the rest in turn."""
    channels = expected["channels"]
    order: list[str] = []
    while len(order) < len(channels):
        blocked = {second for first, second in expected["sequence"] if first not in order}
        order.append(next(channel for channel in channels if channel not in order and channel not in blocked))
    rest = Decimal(expected["total"]) - sum(low for low, _ in channels.values())
    opens, flights = date.fromisoformat(expected["window"][0]), []
    for channel in order:
        low, high = channels[channel]
        more = min(rest, Decimal(high - low))
        rest -= more
        closes = opens + timedelta(days=expected["min_days"] - 1)
        flights.append(
            {"channel": channel, "start": opens.isoformat(), "end": closes.isoformat(), "budget": float(low + more)}
        )
        opens = closes + timedelta(days=1)
    return {
        "audience": _audience(expected),
        "call_to_action": f"Get the {expected['product']} with the code {expected['code']} while it is here.",
        "flights": flights,
    }


@task_family("marketing", check=check, solve=solve, schema=SCHEMA)
def marketing(rng: random.Random, level: float) -> Draft:
    """More channels with bounds, an order and a tighter window as the level rises."""
    names = rng.sample(_CHANNELS, 1 + round(3 * level))
    step = 50 if level < 0.6 else 1
    bounds = {}
    for name in names:
        low = 50 * rng.randrange(2, 20)
        bounds[name] = [low, low + 50 * rng.randrange(4, 20)] if level > 0.15 else [1, 100_000]
    least, most = sum(low for low, _ in bounds.values()), sum(high for _, high in bounds.values())
    total = 50 * rng.randrange(4, 100) if level <= 0.15 else least + step * rng.randrange(1, (most - least) // step)
    days = rng.randrange(2, 6) if level < 0.5 else rng.randrange(5, 15)
    opens = date(2027, 1, 1) + timedelta(days=rng.randrange(300))
    closes = opens + timedelta(days=days * len(names) + rng.randrange(1, 4 + round(20 * (1 - level))))
    pairs = list(itertools.pairwise(names))
    audiences = rng.sample(_AUDIENCES, 1 if level < 0.3 else 3)
    expected = {
        "product": rng.choice(_PRODUCTS),
        "code": f"{rng.choice(('SAVE', 'SPRING', 'HELLO', 'DEAL'))}{rng.randrange(10, 99)}",
        "audiences": {
            name: f"{cents / 100:.2f}"
            for name, cents in zip(audiences, rng.sample(range(110, 990), len(audiences)), strict=True)
        },
        "total": total,
        "channels": bounds,
        "window": [opens.isoformat(), closes.isoformat()],
        "min_days": days,
        "apart": [list(pair) for pair in pairs[:1]] if level > 0.3 else [],
        "sequence": [list(pair) for pair in pairs[1:]] if level > 0.6 else [],
    }
    return Draft(_prompt(expected), expected)


def _prompt(expected: Mapping[str, Any]) -> str:
    listed = "\n".join(f"- {rule}" for rule in _rules(expected))
    audiences = expected["audiences"]
    target = f"Audience: {next(iter(audiences))}."
    if len(audiences) > 1:
        costs = ", ".join(f"{name} {cost}" for name, cost in audiences.items())
        target = f"Audience: the one that costs the least per customer ({costs})."
    return (
        f"Plan a campaign for the {expected['product']}. {target}\n"
        f"Rules for its flights (channel, start, end, budget):\n{listed}\n"
        f"The call_to_action consists of full sentences, 4 to 25 words in all, and names the "
        f"{expected['product']} and the code {expected['code']} once each."
    )


def _rules(expected: Mapping[str, Any]) -> Iterator[str]:
    bounded = [
        f"{name} ({low} to {high} EUR)" if low > 1 else name for name, (low, high) in expected["channels"].items()
    ]
    yield f"exactly one flight for {', '.join(bounded)}; no other channel is allowed"
    yield f"the budgets add up to exactly {expected['total']} EUR"
    yield f"no flight starts before {expected['window'][0]} or ends after {expected['window'][1]}"
    yield f"each flight lasts at least {expected['min_days']} days, its start and its end included"
    for one, two in expected["apart"]:
        yield f"{one} and {two} must not share a day"
    for first, second in expected["sequence"]:
        yield f"{second} starts only after {first} has ended"
