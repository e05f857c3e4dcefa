"""Tasks that are answered in writing and checked by carrying the answer out or comparing it, never by its looks.

| task | right when |
|---|---|
| word problems (gsm8k, svamp) | the last number of the answer (after ####, if it has that) is the right one |
| programs (mbpp) | every test passes, in the sandbox; refused where there is none |
| function calls (bfcl) | the calls are exactly the accepted ones: names, arguments, values |
| plan graphs (asynchow) | F1 of the edges, both graphs closed transitively: the same waiting is the same plan |
"""

from __future__ import annotations

import ast
import asyncio
import json
import math
import re
import secrets
from collections.abc import Iterable, Sequence
from typing import Any

from agent_forge.errors import AgentForgeError
from agent_forge.forge.evaluation.generation import write_answers
from agent_forge.forge.evaluation.scores import Score
from agent_forge.forge.evaluation.sets import GoldPlan, Problem, Program, Request
from agent_forge.plans import parse_plan
from agent_forge.runtime.sandbox import SandboxLimits, run_python

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def solve_problems(model: Any, tokenizer: Any, problems: Sequence[Problem], task: str, most_tokens: int = 128) -> Score:
    """Exact match of the number, answered greedily after "Question: ... Answer:"."""
    prompts = [f"Question: {problem.question}\nAnswer:" for problem in problems]
    answers = write_answers(model, tokenizer, prompts, most_tokens, stop=("\nQuestion:",))
    points = [float(same_number(answer, problem.answer)) for answer, problem in zip(answers, problems, strict=True)]
    return Score(task, tuple(points), how="exact match of the last number, greedy")


def same_number(text: str, wanted: float) -> bool:
    """
    >>> same_number("6 x 7 = 42 #### 1,042", 1042.0), same_number("no idea", 3.0)
    (True, False)
    """
    tail = text.partition("####")[2] or text
    found = NUMBER.findall(tail)
    return bool(found) and math.isclose(float(found[-1].replace(",", "")), wanted, rel_tol=1e-6, abs_tol=1e-6)


def write_programs(
    model: Any, tokenizer: Any, programs: Sequence[Program], task: str = "mbpp", most_tokens: int = 192
) -> Score:
    """Passes all tests at the first try, in the sandbox. Raises SandboxError where nothing can be isolated."""
    prompts = [f'"""\n{p.task}\nYour code should pass: {p.tests[0]}\n"""\n' for p in programs]
    answers = write_answers(model, tokenizer, prompts, most_tokens, stop=('\n"""', "\nassert", "\nprint(", "\n```"))
    points = asyncio.run(_run_all(answers, programs))
    return Score(task, tuple(points), how="all tests pass at the first try (greedy), in the sandbox")


async def _run_all(answers: Sequence[str], programs: Sequence[Program]) -> list[float]:
    return [await run_tests(answer, program) for answer, program in zip(answers, programs, strict=True)]


async def run_tests(code: str, program: Program, limits: SandboxLimits | None = None) -> float:
    """1.0 if the code passes the program's tests, else 0.0; so also if it ends the program before they have run."""
    end = f"the tests have passed: {secrets.token_hex(8)}"
    source = "\n".join([program.setup, code, *program.tests, f"__import__('sys').__stdout__.write({end!r})"])
    ran = await run_python(source, limits=limits or SandboxLimits(time_s=5))
    return float(ran.ok and end in ran.stdout)


def call_functions(
    model: Any, tokenizer: Any, requests: Sequence[Request], task: str = "bfcl", most_tokens: int = 96
) -> Score:
    """The calls that the model writes, as Python calls in a list, against the accepted ones."""
    prompts = [call_prompt(request) for request in requests]
    answers = write_answers(model, tokenizer, prompts, most_tokens, stop=("\nRequest:", "\n\n"))
    points = [float(right_calls(read_calls(a), request.accepted)) for a, request in zip(answers, requests, strict=True)]
    return Score(task, tuple(points), how="names, arguments and values as accepted, greedy")


def call_prompt(request: Request) -> str:
    listed = "\n".join(json.dumps(function) for function in request.functions)
    return f"Functions:\n{listed}\nAnswer with calls such as [name(argument=1)].\nRequest: {request.text}\nCalls: ["


def read_calls(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Calls as a model writes them: `[f(a=1), g.h(b="x")]`, or one; the text is parsed, never run.

    >>> read_calls('area(base=10, height=5)]')
    [('area', {'base': 10, 'height': 5})]
    """
    body = text.strip().removeprefix("[")
    for source in (f"[{body}]", f"[{body.rpartition(']')[0]}]", f"[{body.partition(chr(10))[0].rstrip('] ')}]"):
        try:
            tree = ast.parse(source, mode="eval").body
            if isinstance(tree, ast.List) and tree.elts and all(isinstance(item, ast.Call) for item in tree.elts):
                return [_call(item) for item in tree.elts if isinstance(item, ast.Call)]
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return []


def _call(node: ast.Call) -> tuple[str, dict[str, Any]]:
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError("arguments without a name")
    return ast.unparse(node.func), {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}


def right_calls(calls: Sequence[tuple[str, dict[str, Any]]], accepted: Sequence[dict[str, dict[str, Any]]]) -> bool:
    """Whether each accepted call was made, in any order, and no other."""
    if len(calls) != len(accepted):
        return False
    fits = [[i for i, call in enumerate(calls) if _matches(call, wanted)] for wanted in accepted]
    holder: dict[int, int] = {}  # which accepted call each call stands for

    def placed(wanted: int, seen: set[int]) -> bool:
        for call in fits[wanted]:
            if call not in seen:
                seen.add(call)
                if call not in holder or placed(holder[call], seen):
                    holder[call] = wanted
                    return True
        return False

    return all(placed(wanted, set()) for wanted in range(len(accepted)))


def _matches(call: tuple[str, dict[str, Any]], wanted: dict[str, dict[str, Any]]) -> bool:
    name, arguments = call
    return name in wanted and _fits(arguments, wanted[name])


def _fits(arguments: dict[str, Any], allowed: dict[str, list[Any]]) -> bool:
    return arguments.keys() <= allowed.keys() and all(
        ("" in values) if key not in arguments else any(_alike(arguments[key], value) for value in values)
        for key, values in allowed.items()
    )


def _alike(found: Any, wanted: Any) -> bool:
    """Whether it is the accepted value. An accepted object names the values of each of its keys, as a call does."""
    if isinstance(found, str) and isinstance(wanted, str):
        return found.strip().lower() == wanted.strip().lower()
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    if isinstance(found, dict) and isinstance(wanted, dict):
        return _fits(found, {key: value if isinstance(value, list) else [value] for key, value in wanted.items()})
    if isinstance(found, list | tuple) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(_alike, found, wanted))
    return bool(found == wanted)


def write_plans(
    model: Any, tokenizer: Any, plans: Sequence[GoldPlan], task: str = "asynchow", most_tokens: int = 160
) -> Score:
    """Plans in the line format. What does not parse gets 0."""
    answers = write_answers(model, tokenizer, [plan_prompt(plan) for plan in plans], most_tokens, stop=("\n\n",))
    points = [edge_f1(answer, plan) for answer, plan in zip(answers, plans, strict=True)]
    return Score(task, tuple(points), how="F1 of the closed edges of plans in the line format, greedy")


def plan_prompt(plan: GoldPlan) -> str:
    listed = "\n".join(f"Task {i}: {step}" for i, step in enumerate(plan.steps, 1))
    return f"Write a plan for: {plan.request}\nThe steps:\n{listed}\nPlan, each task with its Dependencies:\n"


def edge_f1(text: str, gold: GoldPlan) -> float:
    """How well the plan's waiting agrees with the gold plan's: tasks are known by their numbers."""
    try:
        plan = parse_plan(text)
    except AgentForgeError:
        return 0.0
    numbers = {name: int(digits[0]) - 1 for name in plan.tasks if (digits := re.findall(r"\d+", name))}
    mine = {
        (numbers[before], numbers[after])
        for after, befores in plan.dependencies.items()
        for before in befores
        if before in numbers and after in numbers
    }
    count = max([len(gold.steps), *(place + 1 for place in numbers.values() if place < 10_000)])
    found, wanted = closed(mine, count), closed(gold.edges, count)
    if not found and not wanted:
        return 1.0
    both = len(found & wanted)
    return 2 * both / (len(found) + len(wanted))


def closed(edges: Iterable[tuple[int, int]], count: int) -> set[tuple[int, int]]:
    """The transitive closure: who waits for whom at all.

    >>> sorted(closed({(0, 1), (1, 2)}, 3))
    [(0, 1), (0, 2), (1, 2)]
    """
    after: dict[int, set[int]] = {}
    for first, second in edges:
        after.setdefault(first, set()).add(second)
    found = set()
    for start in range(count):
        waiting, seen = list(after.get(start, ())), set[int]()
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting.extend(after.get(node, ()))
        found |= {(start, node) for node in seen}
    return found
