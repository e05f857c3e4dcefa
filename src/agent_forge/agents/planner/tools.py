"""Tools in prompts, and tools back out of plans that only name them in words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agent_forge.agents.planner.rules import ToolSpec
from agent_forge.agents.planner.rules.tools import fill
from agent_forge.plans import Plan, Task

_CALLED = re.compile(
    r"^(?:call |use |run )?`?(?P<name>[A-Za-z_][\w.-]*)`?\s*(?P<mark>[:(]|$|\s-\s|\s+to\s)\s*(?P<rest>.*)$", re.S
)


def describe(tools: Sequence[ToolSpec]) -> str:
    """The tools as lines of a prompt: `name(parameter, ...): description`; nothing for none."""
    if not tools:
        return ""
    lines = [f"- {tool.name}({', '.join(tool.schema.get('properties') or ())}): {tool.description}" for tool in tools]
    return "\n".join(["Tools:", *lines])


def bind_tools(plan: Plan, tools: Sequence[ToolSpec]) -> Plan:
    """The plan with an action for each task whose goal begins with the name of a tool ("send_sms: tell Ann").

    Arguments that stand in the goal are filled in; a task that has an action keeps it.
    """
    return Plan((bind_task(task, tools) for task in plan), version=plan.version)


def bind_task(task: Task, tools: Sequence[ToolSpec]) -> Task:
    """The same for one task."""
    found = _CALLED.match(task.goal) if task.action is None else None
    tool = next((tool for tool in tools if found and tool.name == found["name"]), None)
    if found is None or tool is None:
        return task
    rest = found["rest"].rstrip(")").strip()
    args = dict(task.args) or fill(tool, rest or task.goal, [f"{{{name}}}" for name in task.depends_on])
    return Task(
        task.id, rest or task.goal, tool.name, args, task.depends_on, task.parent, task.for_each, task.limit, task.meta
    )
