"""The line format, written: plain where a plain line says it all, JSON strings where it would not."""

from __future__ import annotations

import re
from collections import Counter

from agent_forge.plans.calls import write_call
from agent_forge.plans.json_text import json_line
from agent_forge.plans.line_words import written_id
from agent_forge.plans.lines_read import FIELD, NAMED_REFERENCE
from agent_forge.plans.plan import Plan
from agent_forge.plans.task import Task

_AVOID = "<|"
_PLAIN_TEXT = re.compile(r"[^\n\r|<\x85\u2028]*")
_PLAIN_CONDITION = re.compile(r'[^\s"](?:(?!<[/!?A-Za-z])[^\n\r\v\f|\x1c-\x1e\x85\u2028\u2029])*(?<!\s)')
_PLAIN_ACTION = re.compile(r"[^\W\d][\w.:-]*")
_PLAIN_GOAL = re.compile(r'[^\s"*`<](?:[^\n\r\v\f<\x1c-\x1e\x85\u2028\u2029]*[^\s<|])?')


def to_lines(plan: Plan) -> str:
    """The plan in the line format, every field of it.

    >>> print(to_lines(Plan([Task("task_1", "Find it"), Task("s2", "Use it", depends_on=["task_1"], limit=2)])))
    <plan>
    Task 1: Find it | Dependencies: none
    Task s2: Use it | Dependencies: Task 1 | Limit: 2
    </plan>
    """
    folded = Counter(name.casefold() for name in plan.tasks)
    twins = {name for name in plan.tasks if folded[name.casefold()] > 1}
    return "\n".join(["<plan>", *(_line(task, twins) for task in plan), "</plan>"])


def _line(task: Task, twins: set[str]) -> str:
    def written(name: str) -> str:
        return written_id(name, exact=name in twins)

    name, goal = written(task.id), task.goal
    if goal and (FIELD.search(f" {goal}") or NAMED_REFERENCE.search(goal)):
        goal = json_line(goal, _AVOID)
    elif goal:
        goal = _plain_or_json(goal, _PLAIN_GOAL)
    parts = [f"{name if name.startswith('Task ') else f'Task {name}'}: {goal}".rstrip(" ")]
    parts.append(f"Dependencies: {', '.join(map(written, task.depends_on)) or 'none'}")
    if task.action is not None:
        call = write_call(task.action, dict(task.args), _AVOID) if task.args else None
        parts.append(f"Action: {call or _plain_or_json(task.action, _PLAIN_ACTION)}")
        if task.args and call is None:
            parts.append(f"Args: {json_line(task.args, _AVOID)}")
    elif task.args:
        parts.append(f"Args: {json_line(task.args, _AVOID)}")
    if task.parent is not None:
        parts.append(f"Parent: {written(task.parent)}")
    if task.for_each is not None:
        parts.append(f"For each: {_plain_or_json(task.for_each, _PLAIN_TEXT)}")
    if task.limit is not None:
        parts.append(f"Limit: {task.limit}")
    if task.meta:
        parts.append(f"Meta: {json_line(task.meta, _AVOID)}")
    if task.control is not None:
        for label, text in (("When", task.when), ("Repeat until", task.until)):
            if text is not None:
                parts.append(f"{label}: {_plain_or_json(text, _PLAIN_CONDITION)}")
        for label, names in (("Fallback", task.fallback), ("First of", task.first_of)):
            if names:
                parts.append(f"{label}: {', '.join(map(written, names))}")
        if task.do:
            parts.append(f"Do: {json_line([part.as_dict() for part in task.do], _AVOID)}")
    return " | ".join(parts)


def _plain_or_json(text: str, plain: re.Pattern[str]) -> str:
    return text if plain.fullmatch(text) else json_line(text, _AVOID)
