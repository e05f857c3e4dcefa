"""Plans as JSON and YAML documents: `{"tasks": [{"id": …, "goal": …, "depends_on": […]}]}`.

`tasks` may also map ids to tasks, or the document be the list itself. A workflow file of the older kind, `steps` with
`type`, `description` and `config`, is read as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from agent_forge.plans.faults import TEXT_LIMITS, PlanFault, PlanInvalid, PlanLimits
from agent_forge.plans.json_text import NotJson, json_line, read_json
from agent_forge.plans.plan import Plan
from agent_forge.plans.task import Task
from agent_forge.plans.yaml_text import read_yaml

_FIELDS = ("id", "goal", "action", "args", "depends_on", "parent", "for_each", "limit", "meta", "when", "until",
           "fallback", "first_of", "do")  # fmt: skip
_SYNONYMS = {"description": "goal", "dependencies": "depends_on", "depends": "depends_on", "tool": "action"}
_IDS = ("depends_on", "fallback", "first_of")
_STEP_FIELDS = ("id", "name", "type", "description", "depends_on", "config")
_STEP_TYPES = ("task", "agent", "parallel")
_SHAPES: dict[str, tuple[tuple[type, ...], str]] = {
    "goal": ((str,), "text"),
    "action": ((str,), "text"),
    "args": ((dict,), "an object"),
    "parent": ((str, int), "an id"),
    "for_each": ((str,), "a reference"),
    "limit": ((int,), "a number"),
    "meta": ((dict,), "an object"),
    "when": ((str,), "a condition"),
    "until": ((str,), "a condition"),
    "do": ((list,), "a list of tasks"),
}


def plan_from_json(text: str, limits: PlanLimits = TEXT_LIMITS) -> Plan:
    """The plan that a JSON text describes; raises `PlanInvalid`."""
    try:
        document = read_json(text)
    except NotJson as error:
        raise PlanInvalid([PlanFault("malformed", str(error), line=error.line)]) from None
    return plan_from_document(document, limits)


def plan_from_yaml(text: str, limits: PlanLimits = TEXT_LIMITS) -> Plan:
    """The plan that a YAML text describes; raises `PlanInvalid`."""
    try:
        document = read_yaml(text, limits.nesting)
    except NotJson as error:
        raise PlanInvalid([PlanFault("malformed", str(error), line=error.line)]) from None
    return plan_from_document(document, limits)


def plan_from_document(document: Any, limits: PlanLimits = TEXT_LIMITS) -> Plan:
    """The plan in a document of plain values.

    >>> plan_from_document({"tasks": [{"id": "a"}, {"id": "b", "depends_on": ["a"]}]}).order()
    ['a', 'b']
    """
    entries, kind = _entries(document)
    if len(entries) > limits.tasks:
        raise PlanInvalid([PlanFault("too_large", f"{len(entries)} tasks, the limit is {limits.tasks}")])
    read = _Entry if kind == "tasks" else _Step
    tasks: list[Task] = []
    faults: list[PlanFault] = []
    unread: set[str] = set()
    for number, entry in enumerate(entries, 1):
        reader = read(entry, number)
        task = reader.task()
        if reader.faults:
            faults.extend(reader.faults)
            unread.add(reader.name or "")
        else:
            tasks.append(task)
    return Plan.parsed(tasks, (), faults, limits, unread)


def parts_from_json(value: Any) -> list[Task]:
    """The tasks of a `do` that stands as JSON in another format; raises `NotJson`."""
    reader = _Entry({"id": "", "do": value}, 1)
    task = reader.task()
    if reader.faults:
        raise NotJson("; ".join(fault.message.removeprefix("task '' has in its do: ") for fault in reader.faults))
    return list(task.do)


def to_document(plan: Plan) -> dict[str, Any]:
    """The plan as plain values.

    >>> to_document(Plan([Task("a", "Go")]))
    {'tasks': [{'id': 'a', 'goal': 'Go', 'depends_on': []}]}
    """
    return {"tasks": [task.as_dict() for task in plan]}


def to_json(plan: Plan, *, indent: int | None = None) -> str:
    """The plan as JSON, on one line unless an indent is given."""
    return json.dumps(to_document(plan), ensure_ascii=False, indent=indent)


def to_yaml(plan: Plan) -> str:
    """The plan as a YAML workflow file.

    >>> print(to_yaml(Plan([Task("a", "Go"), Task("b", "Go: on", depends_on=["a"])])), end="")
    tasks:
      - id: a
        goal: Go
      - id: b
        goal: "Go: on"
        depends_on: [a]
    """
    rows = ["tasks:"]
    for task in plan:
        fields = task.as_dict()
        lines = [f"{key}: {_yaml_value(value)}" for key, value in fields.items() if value != [] or key != "depends_on"]
        rows.append("  - " + "\n    ".join(lines))
    return "\n".join(rows) + "\n"


_PLAIN_YAML = re.compile(r"[A-Za-z][A-Za-z0-9_/]*(?:[ -]?[A-Za-z0-9_/,.()])*")
_YAML_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
# Characters that YAML takes for line breaks or refuses when they stand as themselves.
_YAML_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def _yaml_value(value: Any) -> str:
    if (
        isinstance(value, str)
        and len(value) < 200
        and _PLAIN_YAML.fullmatch(value)
        and value.lower() not in _YAML_WORDS
    ):
        return value
    if isinstance(value, list) and all(isinstance(each, str) and re.fullmatch(r"[A-Za-z]\w*", each) for each in value):
        return "[" + ", ".join(map(_yaml_value, value)) + "]"
    return _YAML_ESCAPED.sub(lambda match: f"\\u{ord(match.group()):04x}", json_line(value))


def _entries(document: Any) -> tuple[list[Any], str]:
    """The tasks or steps of a document, as a list."""
    if document is None:
        return [], "tasks"
    kind = "tasks"
    if isinstance(document, Mapping):
        kinds = [name for name in ("tasks", "steps") if name in document]
        if len(kinds) != 1:
            keys = ", ".join(map(str, list(document)[:8]))
            what = "a plan has `tasks`, a workflow has `steps`" + (", not both" if kinds else f"; this has: {keys}")
            raise PlanInvalid([PlanFault("malformed", what)])
        kind = kinds[0]
        document = document[kind]
    if isinstance(document, Mapping):
        return [_with_id(name, entry) for name, entry in document.items()], kind
    if document is None:
        return [], kind
    if not isinstance(document, list):
        raise PlanInvalid([PlanFault("malformed", f"a plan is a list of tasks, not {_kind(document)}")])
    return document, kind


def _with_id(name: str, entry: Any) -> Any:
    if entry is None:
        return {"id": name}
    return {"id": name, **entry} if isinstance(entry, Mapping) and "id" not in entry else entry


class _Entry:
    """One entry of `tasks`, read into a task; what is wrong with it gathers in `faults`."""

    allowed: tuple[str, ...] = (*_FIELDS, *_SYNONYMS)

    def __init__(self, entry: Any, number: int, depth: int = 0) -> None:
        self.faults: list[PlanFault] = []
        self.depth = depth  # of `do` around it
        self.where = f"task number {number}"
        self.name: str | None = None
        if not isinstance(entry, Mapping):
            self.fault(f"is {_kind(entry)}, not an object")
            entry = {}
        self.entry: Mapping[str, Any] = entry
        self.name = self.identity(entry.get("id")) if "id" in entry or not self.faults else None
        if self.name is not None:
            self.where = f"task {self.name!r}"

    def fault(self, what: str) -> None:
        self.faults.append(PlanFault("malformed", f"{self.where} {what}", self.name))

    def identity(self, value: Any) -> str | None:
        """An id, which may be written as a number."""
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, str):
            return value
        self.fault("has no id" if value is None else f"has an id that is {_kind(value)}; put it in quotes")
        return None

    def task(self) -> Task:
        fields: dict[str, Any] = {}
        for key, value in self.entry.items():
            field = _SYNONYMS.get(key, key)
            if key not in self.allowed:
                from difflib import get_close_matches  # only for the message

                nearest = get_close_matches(str(key), self.allowed, 1)
                self.fault(f"has an unknown field {key!r}" + (f", did you mean {nearest[0]!r}?" if nearest else ""))
            elif field in fields:
                self.fault(f"has {field} twice, under two names")
            elif value is not None and key != "id":
                fields[field] = self.value(field, value)
        return Task(self.name or "", **fields)

    def value(self, field: str, value: Any) -> Any:
        if field in _IDS:
            return self.dependencies(value)
        types, expected = _SHAPES[field]
        if not isinstance(value, types) or isinstance(value, bool):
            self.fault(f"has a {field} that is {_kind(value)}, not {expected}")
            return None
        if field == "do" and isinstance(value, list):
            return self.parts(value)
        return str(value) if field == "parent" else value

    def parts(self, entries: list[Any]) -> list[Task]:
        """The tasks of a `do`."""
        if self.depth >= TEXT_LIMITS.depth:
            self.fault(f"has do nested more than {TEXT_LIMITS.depth} deep")
            return []
        readers = [_Entry(entry, number, self.depth + 1) for number, entry in enumerate(entries, 1)]
        tasks = [reader.task() for reader in readers]
        for fault in (fault for reader in readers for fault in reader.faults):
            self.fault(f"has in its do: {fault.message}")
        return tasks

    def dependencies(self, value: Any) -> tuple[str, ...]:
        listed = value if isinstance(value, list) else [value]
        names = [self.identity(each) for each in listed]
        return tuple(name for name in names if name is not None)


class _Step(_Entry):
    """One step of a workflow: `type` and `config` are kept in `meta`."""

    allowed = _STEP_FIELDS

    def task(self) -> Task:
        for key in self.entry:
            if key not in self.allowed:
                self.fault(f"has an unknown field {key!r} (a step has {', '.join(self.allowed)})")
        kind = self.entry.get("type", "task")
        if kind not in _STEP_TYPES:
            self.fault(f"has the type {kind!r}; only {', '.join(_STEP_TYPES)} can be carried out as a plan")
        goal = self.entry.get("description") or self.entry.get("name") or ""
        meta = {
            key: self.entry[name] for name, key in (("type", "task_type"), ("config", "config")) if self.entry.get(name)
        }
        if not isinstance(goal, str):
            self.fault(f"has a description that is {_kind(goal)}, not text")
        before = self.entry.get("depends_on")
        return Task(self.name or "", goal, depends_on=self.dependencies(before) if before else (), meta=meta)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, (int, float)) else type(value).__name__)
