"""The one form of a row to learn planning from: a request, the tools at hand, and the calls that serve it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_forge.agents.planner.script import answer_text, is_reference, request_text, tools_text


@dataclass(frozen=True)
class PlanRow:
    """`tools` are function schemas (`name`, `description`, `parameters`, `returns`), `calls` are `{"tool", "args"}`,
    `{"ref": n, "field": f}` for the result of call n, counted from 1. No calls: no tool serves the request. A row of
    `steps` is a plan in words."""

    id: str
    request: str
    tools: tuple[Mapping[str, Any], ...] = ()
    calls: tuple[Mapping[str, Any], ...] = ()
    steps: tuple[str, ...] | None = None
    source: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def prompt(self) -> str:
        return (tools_text(self.tools) if self.steps is None else "") + request_text(self.request)

    @property
    def answer(self) -> str:
        if self.steps is not None:
            return "".join(f"{number} {step}\n" for number, step in enumerate(self.steps, 1))
        return answer_text(self.calls)

    def faults(self) -> list[str]:
        """What keeps the row from being learnt: unknown tools or parameters, references that point ahead."""
        schemas = {tool["name"]: tool.get("parameters") or {} for tool in self.tools}
        faults = []
        for number, call in enumerate(self.calls, 1):
            schema = schemas.get(call["tool"])
            if schema is None:
                faults.append(f"call {number}: the tool {call['tool']!r} is not shown")
                continue
            properties = schema.get("properties") or {}
            faults += [f"call {number}: no parameter {name!r}" for name in call["args"] if name not in properties]
            missing = [name for name in schema.get("required") or () if name not in call["args"]]
            faults += [f"call {number}: {name!r} is left out" for name in missing]
            ahead = [each["ref"] for each in references(call["args"]) if not 1 <= each["ref"] < number]
            faults += [f"call {number}: refers to call {each}" for each in ahead]
        return faults


def references(value: Any) -> Iterator[Mapping[str, Any]]:
    """The references anywhere in a value."""
    if is_reference(value):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from references(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from references(each)


def with_references(value: Any, change: Callable[[Mapping[str, Any]], Any]) -> Any:
    """The value with each of its references changed."""
    if is_reference(value):
        return change(value)
    if isinstance(value, Mapping):
        return {name: with_references(each, change) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [with_references(each, change) for each in value]
    return value


def write_plan_rows(rows: Iterable[PlanRow], path: str | os.PathLike[str]) -> int:
    """Writes rows as JSON lines and returns their number."""
    count = 0
    with open(path, "w", encoding="utf-8") as file:
        for row in rows:
            document = {"id": row.id, "request": row.request, "tools": row.tools, "calls": row.calls}
            document |= {"source": row.source} if row.source else {}
            document |= {"steps": row.steps} if row.steps is not None else {}
            file.write(json.dumps(document, ensure_ascii=False) + "\n")
            count += 1
    return count
