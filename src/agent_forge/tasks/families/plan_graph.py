"""Plan graphs: tasks and what waits for what, judged by the result with simulated tools and by needless waiting."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Mapping
from typing import Any

from agent_forge.plans import Plan, PlanInvalid, plan_from_document
from agent_forge.tasks.family import Draft, Verdict, task_family
from agent_forge.tasks.plan_score import Graph, score
from agent_forge.tasks.simulated_tools import SimulationFailed, Tools, lookup, on_numbers, simulate

# fmt: off
_CITIES = (
    "Oslo", "Lima", "Kyoto", "Quito", "Porto", "Accra", "Perth", "Turin", "Dakar", "Hanoi", "Izmir", "Lagos",
    "Malmo", "Nantes", "Osaka", "Paris", "Riga", "Sofia", "Tunis", "Turku", "Vienna", "Warsaw", "Zagreb", "Zurich",
)
# fmt: on
_LOOKUPS = ("population", "area", "altitude")
_WORLDS = 8
_OPERATIONS: dict[str, tuple[Callable[[int, int], int], str]] = {
    "add": (operator.add, "the sum of {} and {}"),
    "subtract": (operator.sub, "the difference {} minus {}"),
    "multiply": (operator.mul, "the product of {} and {}"),
    "larger": (max, "the larger of {} and {}"),
}
SCHEMA = {
    "type": "object",
    "properties": {
        "tasks": {
            "type": "array",
            "minItems": 1,
            "maxItems": 20,
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "string"},
                    "tool": {"type": "string"},
                    "args": {"type": "object"},
                    "depends_on": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["id", "tool", "args"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["tasks"],
    "additionalProperties": False,
}


def check(answer: Mapping[str, Any], expected: Mapping[str, Any]) -> Verdict:
    """Half for the result of the last task, in worlds with different facts, half for the edges of the gold plan.

    Another plan is right too if it gives the result and takes no longer than the gold one.
    """
    try:
        plan, gold = plan_from_document(dict(answer)), plan_from_document({"tasks": expected["tasks"]})
        worlds = [tools_of(facts) for facts in facts_of(expected)]
        results = [simulate(plan, tools)[list(plan.tasks)[-1]] for tools in worlds]
    except PlanInvalid as error:
        return Verdict(0.0, f"the plan is not valid: {error}")
    except SimulationFailed as error:
        return Verdict(0.0, str(error))
    right = [simulate(gold, tools)[list(gold.tasks)[-1]] for tools in worlds]
    match = score(_graph(plan), _graph(gold), by_tool=True)
    same = results == right
    slow = plan.critical_path_length() > gold.critical_path_length()
    if same and not slow and len(plan) <= len(gold):
        return Verdict(1.0)
    why = "it waits longer than it has to" if slow else "it has tasks that nothing needs"
    if not same:
        got, wanted = next((got, wanted) for got, wanted in zip(results, right, strict=True) if got != wanted)
        why = f"the result is {got!r} instead of {wanted!r}"
    return Verdict(min(0.99, 0.5 * same + 0.5 * match.edge_f1 * match.node_f1), why)


def facts_of(expected: Mapping[str, Any]) -> list[dict[str, dict[str, int]]]:
    """What is known about the cities in each of the worlds: the plan does not know in which of them it runs."""
    rng = random.Random(expected["worlds"])
    cities = sorted({task["args"]["city"] for task in expected["tasks"] if "city" in task["args"]})
    return [
        {tool: {city: rng.randrange(1, 10 ** rng.randrange(1, 5)) for city in cities} for tool in _LOOKUPS}
        for _ in range(_WORLDS)
    ]


def tools_of(facts: Mapping[str, Mapping[str, int]]) -> Tools:
    """The lookups, which answer from the facts, and the operations on numbers."""
    lookups = {name: lookup(values, "city") for name, values in facts.items()}
    return lookups | {name: on_numbers(operation) for name, (operation, _) in _OPERATIONS.items()}


def _graph(plan: Plan) -> Graph:
    index = {name: place for place, name in enumerate(plan.tasks)}
    edges = frozenset((index[before], index[name]) for name, needs in plan.dependencies.items() for before in needs)
    return Graph(tuple(task.action or "" for task in plan), edges)


def solve(expected: Mapping[str, Any]) -> dict[str, Any]:
    """The plan of which the request was made."""
    return {"tasks": [dict(task) for task in expected["tasks"]]}


@task_family("plan_graph", check=check, solve=solve, schema=SCHEMA)
def plan_graph(rng: random.Random, level: float) -> Draft:
    """One lookup at first; then up to six of them, put together by operations that wait for each other."""
    pairs = [(tool, city) for tool in _LOOKUPS for city in _CITIES]
    tasks: list[dict[str, Any]] = []
    texts: list[tuple[str, Any]] = []  # what is still to be used: its words, and the reference or number
    for tool, city in rng.sample(pairs, 1 + round(5 * level)):
        tasks.append({"id": f"t{len(tasks) + 1}", "tool": tool, "args": {"city": city}})
        texts.append((f"the {tool} of {city}", f"{{t{len(tasks)}}}"))
    if level > 0.2 and rng.random() < 0.5:
        number = rng.randrange(2, 9)
        texts.append((str(number), number))
    while len(texts) > 1:
        (one, a), (two, b) = (texts.pop(rng.randrange(len(texts))) for _ in range(2))
        tool = rng.choice(list(_OPERATIONS))
        tasks.append({"id": f"t{len(tasks) + 1}", "tool": tool, "args": {"a": a, "b": b}})
        parts = [f"({text})" if " and " in text or " minus " in text else text for text in (one, two)]
        texts.append((_OPERATIONS[tool][1].format(*parts), f"{{t{len(tasks)}}}"))
    prompt = (
        f"Tools: {', '.join(f'{name}(city)' for name in _LOOKUPS)}, "
        f"{', '.join(f'{name}(a, b)' for name in _OPERATIONS)}.\nPlan the calls that find {texts[0][0]}. What does not "
        "wait for a result can run at the same time. The last task gives the answer; {t1} is the result of task t1.\n"
        'Answer as JSON: {"tasks": [{"id": "t1", "tool": "population", "args": {"city": "..."}}, {"id": "t2", "tool": '
        '"add", "args": {"a": "{t1}", "b": 2}}]}'
    )
    return Draft(prompt, {"tasks": tasks, "worlds": rng.randrange(10**6)})
