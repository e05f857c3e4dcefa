"""Whether a plan can be run: every tool is known, every argument is there, has its type, and was given by somebody.

A value of a call is grounded if it was said in the request, is listed by the schema (an enumeration, a default), or is
an earlier result. Text that a tool merely carries (a message, a query) may be worded freely, but the numbers, names and
addresses in it must have been said. A plan that somebody wrote has no request: its values are given as they stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from typing import Any

from agent_forge.agents.actions import COMBINE, LOOK_UP, SEARCH, Combine, LookUp
from agent_forge.agents.grounding import Mentions, grounded, listed_values, plain
from agent_forge.agents.language import VERBS, clauses
from agent_forge.agents.planner.arguments import kind_of
from agent_forge.agents.planner.tools import ToolSpec, split_name
from agent_forge.agents.tools.tool import Tool, by_name, described, did_you_mean
from agent_forge.errors import PlanError, ToolError
from agent_forge.plans import Plan, PlanFault, Task, find_references, whole_reference
from agent_forge.plans.references import split_text

FUNCTIONS = frozenset({"think", "plan", "observation", "reflection", "answer"})  # what a model does without a tool
UNSAID = "the request does not say it"
_SHOWN = 60
_SENTENCE = re.compile(r"(?:^|[.!?:;\n(\"“]\s*)\w")
_FACT = re.compile(r"[^\s,;:!?()\"“”'’]+")


@dataclass(frozen=True, slots=True)
class Missing:
    """What keeps a plan from running: the tool and the parameter, where there are such, and why."""

    tool: str | None
    parameter: str | None
    why: str
    task: str | None = None

    def __str__(self) -> str:
        what = f"{self.tool}({self.parameter}): {self.why}" if self.parameter else self.why
        return f"task {self.task!r}: {what}" if self.task else what

    def as_dict(self) -> dict[str, str | None]:
        return asdict(self)


class PlanRefused(PlanError):
    """A plan that is not run, because something in it was given by nobody. `missing` says what; nothing was called."""

    def __init__(self, missing: Sequence[Missing], request: str | None = None, model: bool = False) -> None:
        self.missing = list(missing)
        self._how = request, model
        shown = "; ".join(map(str, self.missing[:5]))
        rest = len(self.missing) - 5
        if request is None:
            fix = "Correct the plan"
        elif any(each.parameter is not None for each in self.missing):
            fix = "Say what is missing in the request"
        else:
            fix = "Say it in the words of the tools' descriptions, and in English"
        if not model:
            fix += ", or use a model: --model http://host:port/v1#name"
        super().__init__(f"{shown}; and {rest} more" if rest > 0 else shown, fix=fix)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.missing, *self._how)


def check(
    plan: Plan,
    tools: Iterable[ToolSpec],
    *,
    request: str | None = None,
    model: bool = False,
    results: Mapping[str, Any] | None = None,
) -> None:
    """Raises PlanRefused unless every task can be carried out with these tools.

    With `request`, values must be grounded in it or in the `results` so far. With `model`, tasks without an action are
    a model's work; without one they are refused.
    """
    missing = what_is_missing(plan, tools, request=request, model=model, results=results)
    if missing:
        raise PlanRefused(missing, request, model)


def what_is_missing(
    plan: Iterable[Task],
    tools: Iterable[ToolSpec],
    *,
    request: str | None = None,
    model: bool = False,
    results: Mapping[str, Any] | None = None,
) -> list[Missing]:
    """Everything that keeps a plan from running, in its order."""
    tools = list(tools)
    checker = Checker(tools, request=request, model=model, results=results)
    tasks = [plan[name] for name in plan.leaves] if isinstance(plan, Plan) else list(plan)
    missing = [each for task in tasks for each in checker.of_task(task)]
    called = {task.action for task in tasks}
    unnamed = [tool.name for tool in tools if tool.name in called and _has_unnamed_fields(tool)]
    return [_with_hint(each, unnamed) for each in missing]


def _has_unnamed_fields(tool: ToolSpec) -> bool:
    """Whether a tool returns an object of which nobody knows the fields, so that no call can refer to them."""
    returns = getattr(tool, "returns", None) or {}
    return isinstance(returns, Mapping) and returns.get("type") == "object" and not returns.get("properties")


def _with_hint(missing: Missing, unnamed: Sequence[str]) -> Missing:
    others = [name for name in unnamed if name != missing.tool]
    if missing.why != UNSAID or not others:
        return missing
    hint = f"{others[0]} does not name the fields of its result (a dataclass or a TypedDict as its return type does)"
    return replace(missing, why=f"{missing.why}, and {hint}")


class Checker:
    """Checks tasks one by one, as a plan is being written."""

    def __init__(
        self,
        tools: Iterable[ToolSpec],
        *,
        request: str | None = None,
        model: bool = False,
        results: Mapping[str, Any] | None = None,
    ) -> None:
        self._tools = {tool.name: as_tool(tool) for tool in tools}
        self._model = model
        self._sources: list[Mentions] | None = None
        self._steps: list[str] = []
        if request is not None:
            told = [str(value) for value in (results or {}).values()]
            self._sources = [Mentions(request, date.today()), *map(Mentions, told)]
            self._steps = [plain(clause.text) for clause in clauses(request)]
            self._steps.append(plain(request))

    def hear(self, text: str) -> None:
        """Another text that values may come from: the result of a call, an answer of the user."""
        if self._sources is not None:
            self._sources.append(Mentions(text))

    def ungiven(self, tool: str, args: Mapping[str, Any]) -> list[str]:
        """The faults of a call that an agent wants to make: values that nobody gave. The types are for the tool."""
        called = self._tools[tool]
        schemas = called.schema.get("properties") or {}
        said = {name: value for name, value in args.items() if isinstance(schemas.get(name), Mapping)}
        return [
            f"argument {name!r}: {_ungiven(value)}"
            for name, value in said.items()
            if self._sources is not None and not self._is_said(value, kind_of(name, schemas[name]), schemas[name])
        ]

    def faults_of(self, task: Task) -> list[PlanFault]:
        """The same as faults of a plan, for a model that is to write it again."""
        return [PlanFault("ungrounded", str(each), task.id) for each in self.of_task(task)]

    def of_task(self, task: Task) -> list[Missing]:
        """What keeps one task from being carried out."""
        if task.do or task.first_of:  # not called itself
            return [each for part in task.do for each in self.of_task(part)]
        action = task.action
        tool = self._tools.get(action or "")
        if tool is not None and (action not in (LOOK_UP, COMBINE) or not tool.name_faults(task.args)):
            return self._of_call(task, tool)
        if action == SEARCH and self._model:  # one of the functions that models know; without the tool they answer it
            return []
        if action in (LOOK_UP, COMBINE):
            return self._of_meaning(task)
        if action is None or action in FUNCTIONS:
            if self._model:
                return []
            goal = task.goal if len(task.goal) <= _SHOWN else f"{task.goal[:_SHOWN]}…"
            return [Missing(action, None, f"no tool fits {goal!r}, and there is no model to carry it out", task.id)]
        close = did_you_mean(action, self._tools)
        return [Missing(action, None, f"there is no tool {action!r}{close}", task.id)]

    def _of_meaning(self, task: Task) -> list[Missing]:
        if task.action == LOOK_UP and SEARCH not in self._tools:
            known = ", ".join(self._tools) or "none"
            return [Missing(SEARCH, None, f"{task.goal!r} needs a tool named search; there is {known}", task.id)]
        try:
            meaning = LookUp.of(task.args) if task.action == LOOK_UP else Combine.of(task.args)
        except ToolError as error:
            return [Missing(task.action, None, str(error), task.id)]
        if isinstance(meaning, LookUp) and self._sources is not None and not self._is_said(meaning.entity, "free", {}):
            return [Missing(LOOK_UP, "entity", _ungiven(meaning.entity), task.id)]
        return []

    def _of_call(self, task: Task, tool: Tool) -> list[Missing]:
        args = by_name(tool, task.args)
        if tool.name == SEARCH and "queries" in args:
            args = {name: value for name, value in args.items() if name != "queries"} | {"query": str(args["queries"])}
        absent = "it is missing" if self._sources is None else UNSAID
        missing = [Missing(tool.name, *fault, task.id) for fault in _name_faults(tool, args, absent)]
        literal = {name: value for name, value in args.items() if not find_references(value)}
        for name, value in args.items():
            schema = (tool.schema.get("properties") or {}).get(name)
            if not isinstance(schema, Mapping):
                continue
            faults = tool.value_faults({name: value}) if name in literal else []
            if faults:
                missing.append(Missing(tool.name, name, "; ".join(faults), task.id))
            elif self._sources is not None and not self._is_said(value, kind_of(name, schema), schema):
                missing.append(Missing(tool.name, name, _ungiven(value), task.id))
        return missing

    def _is_said(self, value: Any, kind: str, schema: Mapping[str, Any]) -> bool:
        """Whether a value was given: said, listed by the schema, or made of earlier results."""
        sources = self._sources or []
        if isinstance(value, str):
            if whole_reference(value) is not None or value in listed_values(schema):
                return True
            pieces = [piece for piece in split_text(value) if isinstance(piece, str)] if "{" in value else [value]
            if kind == "free" or len(pieces) != 1 or pieces[0] != value:
                return all(_facts_are_said(piece, sources) for piece in pieces)
            return grounded(value, schema, sources) and not self._is_instruction(value)
        if isinstance(value, Mapping):
            known = schema.get("properties") or {}
            inner = {name: known.get(name) or {} for name in value}
            return all(self._is_said(each, kind_of(name, inner[name]), inner[name]) for name, each in value.items())
        if isinstance(value, (list, tuple)):
            items = schema.get("items") if isinstance(schema.get("items"), Mapping) else {}
            return value in listed_values(schema) or all(self._is_said(each, kind, items or {}) for each in value)
        return grounded(value, schema, sources)

    def _is_instruction(self, value: str) -> bool:
        """Whether a value is what was asked for rather than something that was given: "Read sales.csv" as a path."""
        words = plain(value)
        if words.count(" ") <= 2 or not any(step.startswith(words) for step in self._steps):
            return False
        first = words.split()[0]
        verbs = (split_name(name).lower().partition(" ")[0] for name in self._tools)
        return first in VERBS or first in verbs or words == self._steps[-1]


def _ungiven(value: Any) -> str:
    shown = repr(value)
    return f"nobody gave {shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '…'}"


def _name_faults(tool: Tool, args: Mapping[str, Any], absent: str) -> list[tuple[str, str]]:
    properties = tool.schema.get("properties") or {}
    faults = [(name, absent) for name in tool.schema.get("required") or () if name not in args]
    if tool.schema.get("additionalProperties", True) is False:
        faults += [
            (name, f"there is no argument {name!r}{did_you_mean(name, properties)}")
            for name in args
            if name not in properties
        ]
    return faults


def _facts_are_said(text: str, sources: Sequence[Mentions]) -> bool:
    """Whether the numbers, names and addresses in a text were said; other words are free."""
    begins = {match.end() - 1 for match in _SENTENCE.finditer(text)}
    for match in _FACT.finditer(text):
        word = match.group().strip(".-")
        is_fact = any(char.isdigit() or char in "@/" for char in word) or (
            word[:1].isupper() and match.start() not in begins and word != "I"
        )
        if is_fact and not any(source.says(word) for source in sources):
            return False
    return True


def as_tool(spec: ToolSpec) -> Tool:
    """A tool of which perhaps only the description is there."""
    return spec if isinstance(spec, Tool) else described(spec.name, spec.description, spec.schema)
