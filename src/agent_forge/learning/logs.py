"""Rows from what happened: our own traces, and logs of tool calls as OpenAI's chat API has them.

A run that was right is a row: its request, the tools at hand, and the plan that ran. What cannot be learnt from is
dropped and counted: a mask is no argument, and a value that neither the request nor an earlier result holds is one that
the planner could not have written.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_forge.agents.grounding import Mentions, grounded
from agent_forge.agents.planner.batch import SchemaTool, calls_of_tasks
from agent_forge.agents.planner.forged import function_of
from agent_forge.agents.planner.script import is_reference
from agent_forge.errors import AgentForgeError, DataError
from agent_forge.learning.rows import PlanRow
from agent_forge.pii import TYPES
from agent_forge.traces.conventions import value_of
from agent_forge.traces.dataset import messages, succeeded
from agent_forge.traces.masking import MASKED
from agent_forge.traces.trajectory import assemble

_MASK = re.compile("|".join(re.escape(each) for each in (MASKED, *(f"[{kind}]" for kind in TYPES))))


@dataclass
class FoundRows:
    """Rows, and how many there might have been: why each other one was dropped."""

    rows: list[PlanRow] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)

    def add(self, row: PlanRow) -> None:
        """Takes the row, or counts why not."""
        reason = why_not_learnt(row)
        if reason is None:
            self.rows.append(row)
        else:
            self.dropped[reason] += 1

    def extend(self, other: FoundRows) -> None:
        self.rows += other.rows
        self.dropped += other.dropped


def why_not_learnt(row: PlanRow) -> str | None:
    """Why a row cannot be learnt from, or None.

    >>> mail = {"name": "mail", "parameters": {}}
    >>> why_not_learnt(PlanRow("1", "Mail [EMAIL]", (mail,), ({"tool": "mail", "args": {}},)))
    'masked'
    """
    if _MASK.search(row.request) or _MASK.search(json.dumps([call["args"] for call in row.calls], ensure_ascii=False)):
        return "masked"
    if row.faults():
        return "other tools or parameters than were recorded"
    said = [Mentions(row.request)]
    schemas = {tool["name"]: (tool.get("parameters") or {}).get("properties") or {} for tool in row.tools}
    for call in row.calls:
        for name, value in call["args"].items():
            schema = schemas[call["tool"]].get(name)
            if not _known(value, schema if isinstance(schema, Mapping) else {}, said):
                return "a value that nobody gave"
    return None


def _known(value: Any, schema: Mapping[str, Any], said: Sequence[Mentions]) -> bool:
    if value is None or is_reference(value):
        return True
    if isinstance(value, list) and any(is_reference(each) for each in value):
        return all(_known(each, {}, said) for each in value)
    return grounded(value, schema, said)


def rows_of_traces(traces: Iterable[Sequence[Any]], *, threshold: float = 0.5) -> FoundRows:
    """The rows of traces that were right: by their reward where they have one, else by how they ended. A run with a
    plan is one row, an agent's conversation one per request."""
    found = FoundRows()
    for trace in traces:
        if not succeeded(assemble(trace), threshold):
            found.dropped["not right"] += 1
            continue
        plan = row_of_run(trace)
        if plan is not None:
            found.add(plan)
            continue
        chats = [rows_of_chat(line) for line in messages([trace])]
        for rows in chats:
            found.extend(rows)
        if not chats:
            found.dropped["no plan"] += 1
    return found


def row_of_run(trace: Sequence[Any]) -> PlanRow | None:
    """The row of a run that followed a plan of tool calls, or None."""
    root = next((span for span in trace if span.kind == "run" and isinstance(span.inputs, Mapping)), None)
    request = root.inputs.get("request") if root is not None else None
    digest = root.attributes.get("tools_digest") if root is not None else None
    if root is None or not isinstance(request, str) or digest is None:
        return None
    schemas = value_of(root.attributes.get("tool_schemas")) or {}
    plans = [span for span in trace if span.kind == "plan" and span.status != "error"]
    outputs = [root.outputs, *(span.outputs for span in reversed(plans))]  # the root's, where it has one, is what ran
    tasks = next((each["tasks"] for each in outputs if isinstance(each, Mapping) and each.get("tasks")), None)
    if tasks is None or any(task.get("for_each") or not task.get("action") for task in tasks):
        return None  # a list that only running reveals, or work in words: no calls to learn
    try:
        calls = calls_of_tasks(tasks)
        functions = tuple(function_of(SchemaTool.of(each)) for each in schemas[digest])
    except (AgentForgeError, TypeError, KeyError, ValueError):
        return None
    return PlanRow(root.trace_id, request, functions, tuple(calls), source="traces")


def rows_of_chat(entry: Mapping[str, Any], name: str = "") -> FoundRows:
    """The rows of a conversation {"messages", "tools"}: each request of a person with the calls that followed it. An
    argument that is an earlier result, or a field of one, becomes a reference to it."""
    found = FoundRows()
    try:
        functions = tuple(function_of(SchemaTool.of(each)) for each in entry.get("tools") or ())
        turns = list(_turns(entry["messages"]))
    except (AgentForgeError, TypeError, KeyError, ValueError, AttributeError):
        found.dropped["not a conversation with tools"] += 1
        return found
    label = name or str(entry.get("trace_id") or entry.get("id") or "chat")
    for number, (request, calls) in enumerate(turns, 1):
        if not calls or not functions:
            found.dropped["no calls"] += 1
            continue
        found.add(PlanRow(f"{label}-{number}", request, functions, tuple(calls), source="chat"))
    return found


def _turns(conversation: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Each request with its calls, in order."""
    request: str | None = None
    calls: list[dict[str, Any]] = []
    numbers: dict[str, int] = {}  # of calls, by the id that their results name
    results: list[tuple[int, Any]] = []
    for message in conversation:
        role = message["role"]
        if role == "user":
            if request is not None:
                yield request, calls
            request, calls, numbers, results = _words(message.get("content")), [], {}, []
        elif role == "tool" and message.get("tool_call_id") in numbers:
            results.append((numbers[message["tool_call_id"]], value_of(_words(message.get("content")))))
        for call in message.get("tool_calls") or ():
            function = call.get("function", call)
            arguments = function.get("arguments") or {}
            args = json.loads(arguments) if isinstance(arguments, str) else dict(arguments)
            said = Mentions(request or "")
            calls.append(
                {"tool": function["name"], "args": {key: _referring(each, results, said) for key, each in args.items()}}
            )
            numbers[str(call.get("id"))] = len(calls)
    if request is not None:
        yield request, calls


def _words(content: Any) -> str:
    """The text of a message, whose content may be a list of parts."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return str(content or "")


def _referring(value: Any, results: Sequence[tuple[int, Any]], said: Mentions) -> Any:
    """A reference to the latest result that is this value or has it in a field, unless the request says it itself."""
    if value is None or isinstance(value, bool) or value == "" or grounded(value, {}, [said]):
        return value
    for number, result in reversed(results):
        if result == value:
            return {"ref": number, "field": None}
        fields = result if isinstance(result, Mapping) else {}
        for name, each in fields.items():
            if each == value:
                return {"ref": number, "field": name}
    return value


def read_rows_file(path: str | os.PathLike[str]) -> FoundRows:
    """The rows of a JSON Lines file; each line is a plan row {"request", "tools", "calls"}, a conversation
    {"messages", "tools"}, or a call of the chat API as logged, {"request": {…}, "response": {…}}. Raises DataError."""
    found = FoundRows()
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the rows cannot be read: {error}", where=str(path)) from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            found.extend(_rows_of_line(entry, f"{Path(path).stem}-{number}"))
        except (ValueError, KeyError, TypeError, AttributeError, AgentForgeError) as error:
            fix = 'Write {"request", "tools", "calls"} or {"messages", "tools"} on every line'
            raise DataError(f"line {number} is not a row: {error}", where=str(path), fix=fix) from error
    return found


def _rows_of_line(entry: Mapping[str, Any], name: str) -> FoundRows:
    if isinstance(entry.get("request"), Mapping) and "messages" in entry["request"]:
        asked, answer = entry["request"], entry.get("response") or {}
        said = [choice["message"] for choice in answer.get("choices") or ()][:1]
        return rows_of_chat({**asked, "messages": [*asked["messages"], *said]}, name)
    if "messages" in entry:
        return rows_of_chat(entry, name)
    functions = tuple(function_of(SchemaTool.of(each)) for each in entry["tools"])
    calls = tuple({**call, "args": dict(call["args"])} for call in entry["calls"])
    found = FoundRows()
    found.add(PlanRow(str(entry.get("id", name)), str(entry["request"]), functions, calls, source="file"))
    return found
