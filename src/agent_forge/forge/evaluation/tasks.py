"""Tasks whose answers are checked by carrying them out or comparing them, never by how they look.

| task | right when |
|---|---|
| multiple choice (arc, piqa) | the right answer is the likeliest, by log-likelihood as it is, and per character |
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

from agent_forge.errors import AgentForgeError, UsageError
from agent_forge.forge.evaluation.choices import MultipleChoice, answer_questions, questions_of
from agent_forge.forge.evaluation.generation import beginning, write_answers
from agent_forge.forge.evaluation.scores import TaskScore
from agent_forge.forge.evaluation.sets import FunctionRequest, GoldPlan, Problem, Program
from agent_forge.forge.evaluation.settings import BY_TEXT
from agent_forge.forge.progress import Tell, silent
from agent_forge.plans import parse_plan
from agent_forge.runtime.sandbox import SandboxLimits, run_python

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
MOST_TASKS = 10_000  # of a plan: a larger number in a name is not the number of a task


def answer_choices(
    model: Any,
    tokenizer: Any,
    choices: Sequence[MultipleChoice],
    task: str,
    *,
    begin: bool | None = None,
    tell: Tell = silent,
) -> TaskScore:
    """Multiple choice by likelihood, after BOS (EOS where there is none) if `begin` says so, or else as the tokenizer
    does; Cognate was trained with it. Raises UsageError for an endpoint, which gives no likelihoods."""
    if tokenizer is None:
        fix = f"Evaluate a model folder, or choose tasks that need only text: {', '.join(BY_TEXT)}"
        raise UsageError(f"{task} needs the likelihood of given answers, which an endpoint does not give", fix=fix)
    return answer_questions(
        model, questions_of(choices, tokenizer, beginning(model, tokenizer, begin)), task, tell=tell
    )


def solve_problems(
    model: Any,
    tokenizer: Any,
    problems: Sequence[Problem],
    task: str,
    most_tokens: int = 128,
    *,
    begin: bool | None = None,
    tell: Tell = silent,
) -> TaskScore:
    """Exact match of the number, answered greedily after "Question: ... Answer:"."""
    prompts = [f"Question: {problem.question}\nAnswer:" for problem in problems]
    answers = write_answers(
        model, tokenizer, prompts, most_tokens, ("\nQuestion:",), stage=task, begin=begin, tell=tell
    )
    points = [float(same_number(answer, problem.answer)) for answer, problem in zip(answers, problems, strict=True)]
    return TaskScore(task, tuple(points), how="exact match of the last number, greedy")


def same_number(text: str, expected: float) -> bool:
    """
    >>> same_number("6 x 7 = 42 #### 1,042", 1042.0), same_number("no idea", 3.0)
    (True, False)
    """
    numbers = NUMBER.findall(text.partition("####")[2] or text)
    return bool(numbers) and math.isclose(float(numbers[-1].replace(",", "")), expected, rel_tol=1e-6, abs_tol=1e-6)


def write_programs(
    model: Any,
    tokenizer: Any,
    programs: Sequence[Program],
    task: str,
    most_tokens: int = 192,
    *,
    begin: bool | None = None,
    tell: Tell = silent,
) -> TaskScore:
    """All tests pass at the first try, in the sandbox. Raises SandboxError where nothing can be isolated."""
    prompts = [f'"""\n{p.task}\nYour code should pass: {p.tests[0]}\n"""\n' for p in programs]
    stop = ('\n"""', "\nassert", "\nprint(", "\n```")
    answers = write_answers(model, tokenizer, prompts, most_tokens, stop, stage=task, begin=begin, tell=tell)

    async def run_all() -> list[float]:
        return [await run_tests(answer, program) for answer, program in zip(answers, programs, strict=True)]

    points = asyncio.run(run_all())
    return TaskScore(task, tuple(points), how="all tests pass at the first try (greedy), in the sandbox")


async def run_tests(code: str, program: Program, limits: SandboxLimits | None = None) -> float:
    """1.0 if the code passes the program's tests, else 0.0, also where it exits before they have run."""
    end = f"the tests have passed: {secrets.token_hex(8)}"
    source = "\n".join([program.setup, code, *program.tests, f"__import__('sys').__stdout__.write({end!r})"])
    ran = await run_python(source, limits=limits or SandboxLimits(time_s=5))
    return float(ran.ok and end in ran.stdout)


def call_functions(
    model: Any,
    tokenizer: Any,
    requests: Sequence[FunctionRequest],
    task: str,
    most_tokens: int = 96,
    *,
    begin: bool | None = None,
    tell: Tell = silent,
) -> TaskScore:
    """The calls that the model writes, as Python calls in a list, against the accepted ones."""
    prompts = [call_prompt(request) for request in requests]
    answers = write_answers(
        model, tokenizer, prompts, most_tokens, ("\nRequest:", "\n\n"), stage=task, begin=begin, tell=tell
    )
    points = [float(right_calls(read_calls(a), request.accepted)) for a, request in zip(answers, requests, strict=True)]
    return TaskScore(task, tuple(points), how="names, arguments and values as accepted, greedy")


def call_prompt(request: FunctionRequest) -> str:
    listed = "\n".join(json.dumps(function) for function in request.functions)
    return f"Functions:\n{listed}\nAnswer with calls such as [name(argument=1)].\nRequest: {request.text}\nCalls: ["


def read_calls(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Calls as a model writes them: `[f(a=1), g.h(b="x")]`, or one; the text is parsed, never run.

    >>> read_calls('area(base=10, height=5)]')
    [('area', {'base': 10, 'height': 5})]
    """
    body = text.strip().removeprefix("[")
    # whole, up to the last bracket, or only the first line: models go on after their answer
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
    """Whether each accepted call was made, in any order, and no other: a perfect matching of the two."""
    if len(calls) != len(accepted):
        return False
    candidates = [
        [i for i, (name, arguments) in enumerate(calls) if name in expected and _fits(arguments, expected[name])]
        for expected in accepted
    ]
    holder: dict[int, int] = {}  # call: the accepted call that it is matched with

    def place(expected: int, seen: set[int]) -> bool:
        for call in candidates[expected]:
            if call not in seen:
                seen.add(call)
                if call not in holder or place(holder[call], seen):
                    holder[call] = expected
                    return True
        return False

    return all(place(expected, set()) for expected in range(len(accepted)))


def _fits(arguments: dict[str, Any], allowed: dict[str, list[Any]]) -> bool:
    return arguments.keys() <= allowed.keys() and all(
        ("" in values) if key not in arguments else any(_alike(arguments[key], value) for value in values)
        for key, values in allowed.items()
    )


def _alike(value: Any, accepted: Any) -> bool:
    """Whether it is the accepted value. An accepted object lists the values of each of its keys, as
    a call does."""
    if isinstance(value, str) and isinstance(accepted, str):
        return value.strip().lower() == accepted.strip().lower()
    if isinstance(value, bool) or isinstance(accepted, bool):
        return value is accepted
    if isinstance(value, dict) and isinstance(accepted, dict):
        return _fits(value, {key: item if isinstance(item, list) else [item] for key, item in accepted.items()})
    if isinstance(value, list | tuple) and isinstance(accepted, list):
        return len(value) == len(accepted) and all(map(_alike, value, accepted))
    return bool(value == accepted)


def write_plans(
    model: Any,
    tokenizer: Any,
    plans: Sequence[GoldPlan],
    task: str,
    most_tokens: int = 160,
    *,
    begin: bool | None = None,
    tell: Tell = silent,
) -> TaskScore:
    """Plans in the line format. An answer that does not parse gets 0."""
    prompts = [plan_prompt(plan) for plan in plans]
    answers = write_answers(model, tokenizer, prompts, most_tokens, ("\n\n",), stage=task, begin=begin, tell=tell)
    points = [edge_f1(answer, plan) for answer, plan in zip(answers, plans, strict=True)]
    return TaskScore(
        task, tuple(points), how="F1 of the closed edges of plans in the line format, greedy", is_accuracy=False
    )


def plan_prompt(plan: GoldPlan) -> str:
    listed = "\n".join(f"Task {i}: {step}" for i, step in enumerate(plan.steps, 1))
    return f"Write a plan for: {plan.request}\nThe steps:\n{listed}\nPlan, each task with its Dependencies:\n"


def edge_f1(text: str, gold: GoldPlan) -> float:
    """How well the plan's waiting agrees with the gold plan's; tasks are identified by their numbers."""
    try:
        plan = parse_plan(text)
    except AgentForgeError:
        return 0.0
    numbers = {name: int(digits[0]) - 1 for name in plan.tasks if (digits := re.findall(r"\d+", name))}
    edges = {
        (numbers[before], numbers[after])
        for after, befores in plan.dependencies.items()
        for before in befores
        if before in numbers and after in numbers
    }
    count = max([len(gold.steps), *(place + 1 for place in numbers.values() if place < MOST_TASKS)])
    actual, expected = closed(edges, count), closed(gold.edges, count)
    if not actual and not expected:
        return 1.0
    return 2 * len(actual & expected) / (len(actual) + len(expected))


def closed(edges: Iterable[tuple[int, int]], count: int) -> set[tuple[int, int]]:
    """The transitive closure: who waits for whom at all.

    >>> sorted(closed({(0, 1), (1, 2)}, 3))
    [(0, 1), (0, 2), (1, 2)]
    """
    after: dict[int, set[int]] = {}
    for first, second in edges:
        after.setdefault(first, set()).add(second)
    closure = set()
    for start in range(count):
        waiting, seen = list(after.get(start, ())), set[int]()
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting.extend(after.get(node, ()))
        closure |= {(start, node) for node in seen}
    return closure
