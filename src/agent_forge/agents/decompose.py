"""Hierarchical decomposition: tasks that consist of several pieces of work become groups, recursively.

Every model call is reserved against limits on depth, size and calls before it is made. When a limit is reached the plan
stays as it is, and `stopped` says why. A task stays whole if the model calls it atomic, if it already has an action, or
if its parts do not form a valid plan.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from agent_forge.agents.planner.binding import bind_task
from agent_forge.agents.planner.interface import total
from agent_forge.agents.planner.prompts import template
from agent_forge.agents.planner.tools import ToolSpec, describe
from agent_forge.inference import ModelClient, TokenUsage
from agent_forge.plans import ChangeBudget, ChangeRefused, Plan, PlanInvalid, Task, expand, find_references, parse_plan

TEMPLATE = "expand@1"
_ATOMIC = re.compile(r"^\W*atomic\b", re.IGNORECASE)


@dataclass(slots=True)
class Decomposed:
    """The plan with its groups, what it cost, the tasks that stayed whole, and the limit that was reached, if any."""

    plan: Plan
    usage: TokenUsage
    calls: int
    atomic: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)  # task -> why its parts were rejected
    stopped: str | None = None


async def decompose(
    plan: Plan,
    client: ModelClient,
    *,
    request: str = "",
    tools: Sequence[ToolSpec] = (),
    budget: ChangeBudget | None = None,
) -> Decomposed:
    """Expands the leaves of a plan, breadth first, within a budget (depth 5, 1000 tasks, 50 calls by default)."""
    budget = budget or ChangeBudget()
    request = request or (plan.provenance.request if plan.provenance else "")
    done = Decomposed(plan, TokenUsage(), 0)
    waiting = [name for name in plan.leaves if plan[name].action is None]
    spent: list[TokenUsage] = []
    while waiting:
        name = waiting.pop(0)
        try:
            budget.reserve(done.plan, name)
        except ChangeRefused as error:
            if error.reason == "depth":
                done.refused[name] = str(error)
                continue
            done.stopped = str(error)
            break
        waiting += await _expand(done, name, client, request, tools, budget, spent)
    done.usage, done.calls = total(spent) if spent else TokenUsage(0, 0), len(spent)
    return done


async def _expand(
    done: Decomposed,
    name: str,
    client: ModelClient,
    request: str,
    tools: Sequence[ToolSpec],
    budget: ChangeBudget,
    spent: list[TokenUsage],
) -> list[str]:
    """Asks the model for the parts of one task; returns the new leaves that may be expanded in turn."""
    task = done.plan[name]
    inputs = ", ".join(done.plan.dependencies[name]) or "none"
    values = {
        "goal": task.goal,
        "request": request,
        "inputs": inputs,
        "tools": describe(tools),
        "most": str(budget.parts),
    }
    completion = await client.complete(template(TEMPLATE).messages(**values), temperature=0.0, max_tokens=1024)
    spent.append(completion.usage)
    if _ATOMIC.match(completion.text):
        done.atomic.append(name)
        return []
    try:
        parts = [bind_task(part, tools) for part in _parts(name, parse_plan(completion.text))]
        done.plan = expand(done.plan, name, parts, budget)
    except (PlanInvalid, ChangeRefused) as error:
        done.refused[name] = str(error)
        return []
    return [part.id for part in parts if part.action is None]


def _parts(name: str, plan: Plan) -> list[Task]:
    """The parts with ids of their own (`task_2.1`) and their references renamed accordingly."""
    if len(plan) == 1:
        raise ChangeRefused("parts", f"the model split {name!r} into a single part")
    new = {old: f"{name}.{number}" for number, old in enumerate(plan.tasks, 1)}
    return [
        replace(
            part,
            id=new[part.id],
            goal=_renamed(part.goal, new),
            depends_on=tuple(new.get(each, each) for each in part.depends_on),
        )
        for part in plan
    ]


def _renamed(goal: str, new: dict[str, str]) -> str:
    for reference in find_references(goal):
        if reference.head in new:
            goal = goal.replace(reference.source, str(replace(reference, head=new[reference.head])))
    return goal
