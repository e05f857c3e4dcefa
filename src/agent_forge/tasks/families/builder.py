"""Builder: write a function that does what is described; it is called with hidden arguments in the sandbox."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from agent_forge.tasks.answers import code_in
from agent_forge.tasks.execution import Calls, call_all, same_result
from agent_forge.tasks.family import Draft, Verdict, task_family
from agent_forge.tasks.functions import draw_function

SCHEMA = {
    "type": "object",
    "properties": {"code": {"type": "string"}},
    "required": ["code"],
    "additionalProperties": False,
}


def check(answer: Mapping[str, Any], expected: Mapping[str, Any]) -> Verdict:
    """The share of calls that give the right result; right if all do. Raises SandboxError without a sandbox."""
    return check_all([(answer, expected)])[0]


def check_all(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[Verdict]:
    """Judges several answers in one sandbox, which costs more than the answers do."""
    programs = [Calls(code_in(answer["code"]), expected["function"], expected["inputs"]) for answer, expected in pairs]
    return [_verdict(expected, results) for (_, expected), results in zip(pairs, call_all(programs), strict=True)]


def _verdict(expected: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> Verdict:
    faults: dict[str, str | None] = {}
    for arguments, right, result in zip(expected["inputs"], expected["results"], results, strict=True):
        call = f"{expected['function']}({', '.join(map(repr, arguments))})"
        wanted = right["raises"] if "raises" in right else repr(right["value"])
        got = repr(result["value"]) if "value" in result else result.get("error") or "an error"
        faults[call] = None if same_result(right, result) else f"{got} instead of {wanted}"
    return Verdict.parts(faults)


def solve(expected: Mapping[str, Any]) -> dict[str, Any]:
    """The source from which the results come."""
    return {"code": expected["source"]}


@task_family("builder", check=check, solve=solve, schema=SCHEMA)
def builder(rng: random.Random, level: float) -> Draft:
    """From one expression to pipelines of four steps and tables of thresholds."""
    function = draw_function(rng, level)
    prompt = (
        f"Write a Python function `{function.name}({function.parameters})` that {function.description}.\n"
        f"For example, {function.example()}.\n"
        'Answer with its source as JSON: {"code": "def ..."}'
    )
    return Draft(prompt, function.to_dict())
