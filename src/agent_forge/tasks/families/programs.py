"""Programs: what a small program returns, and which program turns these inputs into these outputs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent_forge.tasks.execution import same_value
from agent_forge.tasks.family import Draft, Verdict, task_family
from agent_forge.tasks.functions import draw_function, run

_SIMPLE = {"type": ["number", "string", "boolean"]}
OUTPUT_SCHEMA = {
    "type": "object",
    "properties": {"output": {"anyOf": [_SIMPLE, {"type": "array", "items": _SIMPLE, "maxItems": 40}]}},
    "required": ["output"],
    "additionalProperties": False,
}


def check_output(answer: Mapping[str, Any], expected: Mapping[str, Any]) -> Verdict:
    """The value that the function returns, of the same type; the program is run to find out."""
    (right,) = run(expected["source"], expected["function"], [expected["arguments"]])
    same = same_value(right["value"], answer["output"])
    return Verdict.of(same, f"{answer['output']!r} instead of {right['value']!r}")


def solve_output(expected: Mapping[str, Any]) -> dict[str, Any]:
    """Runs the program."""
    (right,) = run(expected["source"], expected["function"], [expected["arguments"]])
    return {"output": right["value"]}


@task_family("program_output", check=check_output, solve=solve_output, schema=OUTPUT_SCHEMA)
def program_output(rng: random.Random, level: float) -> Draft:
    """From one expression to pipelines of four steps over lists and texts."""
    function = draw_function(rng, level)
    calls = zip(function.inputs, run(function.source, function.name, function.inputs), strict=True)
    arguments = rng.choice([arguments for arguments, result in calls if "value" in result])
    prompt = (
        f"{function.source}\nWhat does {function.name}({', '.join(map(repr, arguments))}) return? "
        'Answer as JSON: {"output": ...}'
    )
    return Draft(prompt, {"source": function.source, "function": function.name, "arguments": arguments})


# Steps by what they take; those of a text see its characters.
_LIST_STEPS: dict[str, Callable[[list[int]], list[int]]] = {
    "double": lambda x: [2 * n for n in x],
    "increment": lambda x: [n + 1 for n in x],
    "negate": lambda x: [-n for n in x],
    "square": lambda x: [n * n for n in x],
    "evens": lambda x: [n for n in x if n % 2 == 0],
    "odds": lambda x: [n for n in x if n % 2],
    "positives": lambda x: [n for n in x if n > 0],
    "sort": sorted,
    "reverse": lambda x: x[::-1],
    "unique": lambda x: list(dict.fromkeys(x)),
    "first3": lambda x: x[:3],
    "drop1": lambda x: x[1:],
    "totals": lambda x: list(itertools.accumulate(x)),
}
_TEXT_STEPS: dict[str, Callable[[str], str]] = {
    "upper": str.upper,
    "lower": str.lower,
    "swapcase": str.swapcase,
    "reverse": lambda x: x[::-1],
    "sort": lambda x: "".join(sorted(x)),
    "unique": lambda x: "".join(dict.fromkeys(x)),
    "first3": lambda x: x[:3],
    "drop1": lambda x: x[1:],
    "double": lambda x: x * 2,
    "no_vowels": lambda x: "".join(c for c in x if c.lower() not in "aeiou"),
}
_WORDS = ("Banana", "kiwi", "Oslo Fjord", "rhythm", "Anna", "queue", "Tomato", "zebra", "Lima", "Apple Pie")
SCHEMA = {
    "type": "object",
    "properties": {
        "steps": {
            "type": "array",
            "items": {"enum": list(_LIST_STEPS | _TEXT_STEPS)},
            "maxItems": 8,
        }
    },
    "required": ["steps"],
    "additionalProperties": False,
}


def perform(steps: Sequence[str], value: Any) -> Any:
    """The value after all steps. Raises KeyError for a step that it does not have.

    >>> perform(["sort", "drop1"], [3, 1, 2]), perform(["reverse"], "abc")
    ([2, 3], 'cba')
    """
    known: Mapping[str, Callable[[Any], Any]] = _TEXT_STEPS if isinstance(value, str) else _LIST_STEPS
    for step in steps:
        value = known[step](value)
    return value


def check(answer: Mapping[str, Any], expected: Mapping[str, Any]) -> Verdict:
    """The share of inputs, shown and hidden, for which the steps give what the drawn ones do."""
    faults: dict[str, str | None] = {}
    for value in [*expected["inputs"], *expected["hidden"]]:
        try:
            result = perform(answer["steps"], value)
        except KeyError as error:
            return Verdict(0.0, f"there is no step {error} for {value!r}")
        right = perform(expected["steps"], value)
        faults[repr(value)] = None if result == right else f"{result!r} instead of {right!r}"
    return Verdict.parts(faults)


def solve(expected: Mapping[str, Any]) -> dict[str, Any]:
    """The steps that were drawn."""
    return {"steps": list(expected["steps"])}


@task_family("programs", check=check, solve=solve, schema=SCHEMA)
def programs(rng: random.Random, level: float) -> Draft:
    """One step at first, up to three later. The shown inputs leave no other behaviour of at most as many steps."""
    length = 1 + round(2 * level)
    while True:
        texts = rng.random() < 0.5
        known: Mapping[str, Callable[[Any], Any]] = _TEXT_STEPS if texts else _LIST_STEPS
        steps = [rng.choice(list(known)) for _ in range(length)]
        size = 3 + round(4 * level)
        pool = (
            [rng.choice(_WORDS) + rng.choice(("", "s", " no", "E")) for _ in range(9)]
            if texts
            else [[rng.randrange(-9, 10) for _ in range(rng.randrange(2, size + 2))] for _ in range(9)]
        )
        shown = _telling(steps, pool, known)
        if shown is not None:
            break
    expected = {"steps": steps, "inputs": shown, "hidden": [value for value in pool if value not in shown]}
    lines = "\n".join(f"{value!r} -> {perform(steps, value)!r}" for value in shown)
    prompt = (
        f"{lines}\nWhich steps, in order, turn each input into its output? There are: {', '.join(known)}.\n"
        'Answer as JSON: {"steps": ["..."]}'
    )
    return Draft(prompt, expected)


def _telling(steps: Sequence[str], pool: Sequence[Any], known: Mapping[str, Callable[[Any], Any]]) -> list[Any] | None:
    """Inputs that tell the steps from all others of at most their number that differ on any input of the pool.

    None if that takes many inputs, or if fewer steps do the same.
    """
    target = perform(steps, pool[0])
    ways: list[tuple[tuple[str, ...], Any]] = [((), pool[0])]
    fitting: list[tuple[str, ...]] = [()] if target == pool[0] else []
    for _ in steps:
        ways = [((*others, name), step(value)) for others, value in ways for name, step in known.items()]
        fitting += [others for others, value in ways if value == target]
    shown = list(pool[:2])
    for others in fitting:
        different = [value for value in pool if perform(others, value) != perform(steps, value)]
        if not different and len(others) < len(steps):
            return None
        if different and not any(value in shown for value in different):
            shown.append(different[0])
    return shown if len(shown) <= 5 else None
