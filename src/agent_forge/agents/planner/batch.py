"""Plans for rows of a file: requests, each with function schemas of its own, become calls."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_forge.agents.planner.checking import UNSAID
from agent_forge.agents.planner.interface import Planner, PlanningFailed
from agent_forge.agents.planner.tools import ToolSpec
from agent_forge.agents.tools.schemas import plain_schema
from agent_forge.errors import UsageError
from agent_forge.plans import Plan, Task, find_references, whole_reference


@dataclass(frozen=True)
class SchemaTool:
    """A tool of which only the function schema is known."""

    name: str
    description: str = ""
    schema: Mapping[str, Any] = field(default_factory=dict)
    returns: Any = None  # the schema of its result, or the names of its fields

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> SchemaTool:
        """From `{"name", "description", "parameters"}`, or the same under "function" as OpenAI's API has it."""
        function = entry.get("function") if isinstance(entry.get("function"), Mapping) else entry
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise UsageError('a tool has no "name"', fix='Write {"name": …, "description": …, "parameters": {…}}')
        schema = plain_schema(function.get("parameters") or {})
        return cls(function["name"], function.get("description") or "", schema, function.get("returns"))


def read_rows(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The rows of a JSON Lines file: {"id", "request", "tools"}. Raises UsageError with the number of the line."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            tools = [SchemaTool.of(each) for each in row["tools"]]
            yield {"id": row.get("id", number), "request": str(row["request"]), "tools": tools}
        except (ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
            fix = 'Every line is {"id": …, "request": "…", "tools": [function schemas]}'
            raise UsageError(f"line {number} is not a row: {error}", fix=fix) from None


async def plan_row(planner: Planner, row: Mapping[str, Any]) -> dict[str, Any]:
    """The calls of one row: {"id", "calls"}, with "missing" for what nobody gave and "none" where no tool serves."""
    tools: list[ToolSpec] = row["tools"]
    try:
        plan = await planner.plan(row["request"], tools=tools)
    except PlanningFailed as error:
        return {"id": row["id"], "calls": [], "missing": [{"tool": None, "parameter": None, "why": error.what}]}
    calls = calls_of(plan)
    if not calls:
        return {"id": row["id"], "calls": [], "none": True}
    required = {tool.name: tool.schema.get("required") or () for tool in tools}
    missing = [
        {"tool": call["tool"], "parameter": name, "why": UNSAID}
        for call in calls
        for name in required.get(call["tool"], ())
        if name not in call["args"]
    ]
    answer = {"id": row["id"], "calls": [] if missing else calls}
    if missing:
        answer |= {"missing": missing, "open": calls}
    sure = plan.provenance.confidence if plan.provenance is not None else None
    return answer if sure is None else {**answer, "confidence": sure}


def calls_of(plan: Plan) -> list[dict[str, Any]]:
    """The tool calls of a plan in its order. A reference is {"ref": number of the call, "field": …}; "after" has the
    numbers of calls that one waits for without using their results."""
    tasks = [plan[name] for name in plan.leaves if plan[name].action is not None]
    numbers = {task.id: number for number, task in enumerate(tasks, 1)}
    calls = []
    for task in tasks:
        used = {reference.head for reference in find_references(dict(task.args))}
        after = [numbers[name] for name in task.depends_on if name in numbers and name not in used]
        args = {name: _value(each, numbers) for name, each in task.args.items()}
        calls.append({"tool": task.action, "args": args, **({"after": after} if after else {})})
    return calls


def calls_of_tasks(tasks: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tool calls of tasks as traces hold them (`Task.as_dict`). Raises PlanInvalid."""
    return calls_of(Plan(Task(**task) for task in tasks))


def _value(value: Any, numbers: Mapping[str, int]) -> Any:
    if isinstance(value, str):
        reference = whole_reference(value)
        if reference is None or reference.head not in numbers:
            return value
        path = str(reference).strip("{}").removeprefix(reference.head).removeprefix(".")
        return {"ref": numbers[reference.head], "field": path or None}
    if isinstance(value, Mapping):
        return {name: _value(each, numbers) for name, each in value.items()}
    return [_value(each, numbers) for each in value] if isinstance(value, (list, tuple)) else value
