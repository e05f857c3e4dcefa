"""Tool calls: the calls that serve a request, with arguments that fit the tools' schemas."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent_forge.tasks.answers import read_answer
from agent_forge.tasks.calls import score_calls
from agent_forge.tasks.family import Draft, Verdict, task_family

_CITIES = ("Oslo", "Lima", "Kyoto", "Quito", "Porto", "Accra", "Perth", "Turin")
_PEOPLE = ("Ana Ruiz", "Ben Cole", "Chen Li", "Dara Shah", "Eva Holm", "Finn Wood")
_TEXT = {"type": "string"}
_WHOLE = {"type": "integer", "minimum": 1}


def _tool(
    description: str, returns: Sequence[str], optional: Sequence[str] = (), /, **properties: Any
) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"description": description, "parameters": parameters, "returns": list(returns)}


TOOLS = {
    "get_weather": _tool(
        "Weather forecast for a city", ("summary",), ("unit",),
        city=_TEXT, unit={"enum": ["celsius", "fahrenheit"], "default": "celsius"},
    ),
    "set_alarm": _tool("Sets an alarm", ("alarm_id",), time={"type": "string", "pattern": "^\\d\\d:\\d\\d$"}),
    "convert_money": _tool(
        "Converts an amount between currencies", ("amount",),
        amount={"type": "number"}, source=_TEXT, target=_TEXT,
    ),
    "book_table": _tool("Books a table at a restaurant", ("booking_id",), restaurant=_TEXT, people=_WHOLE),
    "find_contact": _tool("Finds a person's address", ("email", "phone"), name=_TEXT),
    "send_email": _tool("Sends an e-mail", ("message_id",), to=_TEXT, subject=_TEXT),
    "find_train": _tool("Finds the next train", ("train_id", "departure"), origin=_TEXT, destination=_TEXT),
    "buy_ticket": _tool("Buys tickets for a train", ("ticket_id",), train_id=_TEXT, seats=_WHOLE),
}  # fmt: skip
_REQUEST = "\nRequest: "
FORM = (
    'Answer with the calls as JSON: {"calls": [{"tool": "...", "args": {}}]}. An argument that is a result of an '
    'earlier call is {"ref": 1, "field": "..."}, with the number of the call from 1.'
)
SCHEMA = {
    "type": "object",
    "properties": {
        "calls": {
            "type": "array",
            "maxItems": 10,
            "items": {
                "type": "object",
                "properties": {"tool": _TEXT, "args": {"type": "object"}},
                "required": ["tool", "args"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["calls"],
    "additionalProperties": False,
}


def check(answer: Mapping[str, Any], expected: Mapping[str, Any]) -> Verdict:
    """Right if the calls are the expected ones, in any order, and each fits its tool's schema."""
    calls = answer["calls"]
    for place, call in enumerate(calls):
        fault = _fault(call, calls[:place], expected["tools"])
        if fault:
            return Verdict(0.0, f"call {place + 1}: {fault}")
    score = score_calls(expected["calls"], [_complete(call) for call in calls])
    if score.right:
        return Verdict(1.0)
    part = (score.tools + score.arguments) / 2
    return Verdict(min(part, 0.99), f"expected {json.dumps(expected['calls'])}")


def _fault(call: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]], tools: Sequence[str]) -> str | None:
    if call["tool"] not in tools:
        return f"there is no tool {call['tool']!r}"
    parameters = TOOLS[call["tool"]]["parameters"]
    plain = {}
    for name, value in call["args"].items():
        if not (isinstance(value, dict) and set(value) == {"ref", "field"}):
            plain[name] = value
        elif type(value["ref"]) is not int or not 0 < value["ref"] <= len(earlier):
            return f"{name} refers to call {value['ref']!r}, which is not an earlier one"
        elif value["field"] not in TOOLS[earlier[value["ref"] - 1]["tool"]]["returns"]:
            return f"{name} refers to a field {value['field']!r} that call {value['ref']} does not return"
        elif name not in parameters["properties"]:
            return f"there is no argument {name!r}"
    # what a reference will bring is not known yet: it counts as there
    missing = [name for name in parameters["required"] if name not in call["args"]]
    return f"{missing[0]!r} is missing" if missing else read_answer(plain, {**parameters, "required": []})[1]


def _complete(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call with the defaults of what it leaves out."""
    properties = TOOLS[call["tool"]]["parameters"]["properties"]
    defaults = {name: schema["default"] for name, schema in properties.items() if "default" in schema}
    return {**call, "args": {**call["args"], **{k: v for k, v in defaults.items() if k not in call["args"]}}}


def solve(expected: Mapping[str, Any]) -> dict[str, Any]:
    """The calls of which the request was made."""
    return {"calls": [dict(call) for call in expected["calls"]]}


@task_family("tool_calls", check=check, solve=solve, schema=SCHEMA)
def tool_calls(rng: random.Random, level: float) -> Draft:
    """One call of the one tool at first; then up to six calls, eight tools, and results used by later calls."""
    count = 1 + round(2 * level)
    parts: list[tuple[str, list[dict[str, Any]]]] = []
    while len(parts) < count:
        part = _part(rng, level)
        if all(part[0] != other[0] for other in parts):
            parts.append(part)
    calls: list[dict[str, Any]] = []
    for _, own in parts:
        for call in own:
            args = {
                name: {**value, "ref": len(calls)} if isinstance(value, dict) else value
                for name, value in call["args"].items()
            }
            calls.append({**call, "args": args})
    used = list(dict.fromkeys(call["tool"] for call in calls))
    others = [name for name in TOOLS if name not in used]
    tools = used + rng.sample(others, min(len(others), round(4 * level)))
    rng.shuffle(tools)
    expected = {"tools": tools, "calls": [_complete(call) for call in calls]}
    request = " ".join(text for text, _ in parts)
    return Draft(f"{listed(tools)}{_REQUEST}{request}\n{FORM}", expected)


def listed(tools: Iterable[str]) -> str:
    """The tools as a prompt shows them."""
    return "Tools:\n" + "\n".join(json.dumps({"name": name, **TOOLS[name]}) for name in tools)


def request_of(prompt: str) -> str:
    """The request of an exercise alone, without its tools and the form of the answer."""
    return prompt.partition(_REQUEST)[2].removesuffix(f"\n{FORM}")


def _part(rng: random.Random, level: float) -> tuple[str, list[dict[str, Any]]]:
    """A sentence, and the calls that serve it; a reference is to the call before."""
    city, other = rng.sample(_CITIES, 2)
    person, people = rng.choice(_PEOPLE), rng.randrange(2, 9)
    kinds = ("weather", "alarm", "contact", "table", "money", "train", "mail", "ticket")
    kind = rng.choice(kinds[: 4 + round(4 * level)])
    if kind == "weather":
        unit = rng.choice(("celsius", "fahrenheit")) if level > 0.3 else "celsius"
        text = f"What will the weather be in {city}{', in fahrenheit' if unit == 'fahrenheit' else ''}?"
        return text, [{"tool": "get_weather", "args": {"city": city, "unit": unit}}]
    if kind == "alarm":
        hour, minute = rng.randrange(5, 12), rng.choice((0, 15, 30, 45))
        return f"Wake me at {hour}:{minute:02}.", [{"tool": "set_alarm", "args": {"time": f"{hour:02}:{minute:02}"}}]
    if kind == "contact":
        return f"What is the address of {person}?", [{"tool": "find_contact", "args": {"name": person}}]
    if kind == "table":
        place = f"{rng.choice(('Casa', 'Chez', 'Villa'))} {rng.choice(('Luna', 'Marie', 'Sole'))}"
        args = {"restaurant": place, "people": people}
        return f"Book a table for {people} at {place}.", [{"tool": "book_table", "args": args}]
    if kind == "money":
        amount, (one, two) = rng.randrange(5, 500), rng.sample(("EUR", "USD", "NOK", "JPY"), 2)
        args = {"amount": amount, "source": one, "target": two}
        return f"How much is {amount} {one} in {two}?", [{"tool": "convert_money", "args": args}]
    find = {"tool": "find_train", "args": {"origin": city, "destination": other}}
    if kind == "train":
        return f"When does the next train go from {city} to {other}?", [find]
    if kind == "mail":
        subject = rng.choice(("Lunch", "Report", "Invoice", "Holiday"))
        mail = {"tool": "send_email", "args": {"to": {"ref": 0, "field": "email"}, "subject": subject}}
        contact = {"tool": "find_contact", "args": {"name": person}}
        return f'Look up {person} and send an e-mail with the subject "{subject}" there.', [contact, mail]
    buy = {"tool": "buy_ticket", "args": {"train_id": {"ref": 0, "field": "train_id"}, "seats": people}}
    return f"Get {people} seats on the next train from {city} to {other}.", [find, buy]
