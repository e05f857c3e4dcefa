"""A run as the journal knows it: one row for the run, and the log of its tasks, of which the last word counts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from agent_forge.errors import UsageError
from agent_forge.plans import Plan, Task
from agent_forge.runtime.budget import Budget
from agent_forge.runtime.limits import Retry
from agent_forge.runtime.result import TaskResult, Usage

Row = Sequence[Any]


_ELEMENT = re.compile(r"(.+)\[(\d{1,9})\]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A line of the list of runs. `state` is "running" or "interrupted" for one that has not ended."""

    run: str
    state: str
    created_s: float  # since the epoch
    ended_s: float | None
    tasks: int | None  # None: a streamed plan that is not whole yet
    done: int
    error: str | None = None
    failed: int = 0
    trace_id: str | None = None
    number: int = 0  # in the order in which runs began
    notes: dict[str, Any] = field(default_factory=dict)  # what `execute` was given as `notes`

    def as_dict(self) -> dict[str, Any]:
        """The public shape: everything except the notes, which belong to whoever wrote them."""
        return {name: value for name, value in asdict(self).items() if name != "notes"}


@dataclass(slots=True)
class TaskRecord:
    """What the journal last wrote of a task. Times are seconds since the run began."""

    state: str  # one of TASK_STATES, "running", "interrupted", or "waiting"
    started_s: float | None = None
    ended_s: float | None = None
    attempts: int = 0
    result: Any = None
    error: str | None = None
    same_as: str | None = None
    tokens: int | None = None
    cost: float | None = None
    side_effects: bool = False
    items: dict[int, TaskRecord] = field(default_factory=dict)  # of a `for_each` task, by element
    settled: bool = False  # somebody said that it failed

    @property
    def duration_s(self) -> float | None:
        """None for a task that has not started or not ended."""
        return None if self.started_s is None or self.ended_s is None else self.ended_s - self.started_s

    def outcome(self) -> TaskResult | None:
        """How the task stands for a run that is resumed; None when it is to be run (again)."""
        outcome = TaskResult(
            self.state,
            started_s=self.started_s,
            ended_s=self.ended_s,
            attempts=self.attempts,
            same_as=self.same_as,
            reused=True,
            usage=None if self.tokens is None and self.cost is None else Usage(0, self.tokens, self.cost),
        )
        if self.state == "done":
            outcome.result = self.result
        elif self.state in ("replaced", "not_needed") or self.settled:
            outcome.error = self.error
        elif not self.side_effects or self.started_s is None:
            return None  # nothing happened that must not happen twice
        elif self.state == "failed":
            outcome.error = self.error
        else:
            outcome.state = "in_doubt"
            outcome.error = (
                "it was running when an earlier process ended: its side effect may or may not have happened. "
                "Settle it with `agent-forge run --resume RUN --settle TASK=done:VALUE|retry|failed`"
            )
        return outcome


@dataclass(slots=True)
class StoredRun:
    """One run: its plan as far as it was written, its settings, and its tasks in the order of the plan, then those that
    were in a `do` (`s3[2].a`)."""

    summary: RunSummary
    plan: Plan | None
    settings: dict[str, Any]
    tasks: dict[str, TaskRecord]
    next_seq: int  # where its log continues

    def planned(self, name: str) -> Task | None:
        """The task of the plan that one of `tasks` is, or comes from: `a` for `s3[2].a`."""
        if self.plan is None or name in self.plan:
            return None if self.plan is None else self.plan[name]
        parts = (part for task in self.plan for part in task.parts())
        return next((part for part in parts if name.endswith(f".{part.id}")), None)

    @property
    def ended(self) -> dict[str, TaskResult]:
        """The tasks that a resumed run does not repeat."""
        outcomes = {name: task.outcome() for name, task in self.tasks.items()}
        return {name: outcome for name, outcome in outcomes.items() if outcome is not None}

    @property
    def items(self) -> dict[str, dict[int, TaskResult]]:
        """The elements of `for_each` tasks that a resumed run does not repeat."""
        return {
            name: {index: outcome for index, item in task.items.items() if (outcome := item.outcome()) is not None}
            for name, task in self.tasks.items()
            if task.items
        }

    @property
    def results(self) -> dict[str, Any]:
        """The results by task."""
        return {name: task.result for name, task in self.tasks.items() if task.state == "done"}

    @property
    def in_doubt(self) -> list[str]:
        """Tasks with side effects, and elements of such, that were running when the process died."""
        whole = [name for name, outcome in self.ended.items() if outcome.state == "in_doubt"]
        items = [
            f"{name}[{index}]"
            for name, outcomes in self.items.items()
            for index, outcome in outcomes.items()
            if outcome.state == "in_doubt"
        ]
        return whole + items

    def settle(self, name: str, how: str, value: Any = None) -> None:
        """Decides what became of a task in doubt, or of one element of a `for_each` ("send[2]"). Raises UsageError."""
        record = self.tasks.get(name)
        element = _ELEMENT.fullmatch(name)
        if record is None and element is not None and element[1] in self.tasks:
            record = self.tasks[element[1]].items.get(int(element[2]))
        outcome = record.outcome() if record is not None else None
        if record is None or outcome is None or outcome.state != "in_doubt":
            doubtful = ", ".join(self.in_doubt) or "none"
            raise UsageError(f"task {name!r} is not in doubt", fix=f"Tasks in doubt: {doubtful}")
        if how == "done":
            record.state, record.result = "done", value
        elif how == "failed":
            record.state, record.error, record.settled = "failed", "it was settled as failed", True
        else:
            record.state, record.started_s = "waiting", None

    def as_dict(self) -> dict[str, Any]:
        """The run in the shape of a result; what the journal does not have is null."""
        durations = {name: task.duration_s or 0.0 for name, task in self.tasks.items()}
        fields = ("state", "started_s", "ended_s", "result", "error")
        line, spent = self.summary, [task.cost for task in self.tasks.values() if task.cost is not None]
        absent = ("request", "answer", "planner")
        counts = ("input_tokens", "output_tokens", "model_calls", "tool_calls")
        return {
            "run": line.run,
            "state": line.state,
            "error": line.error,
            "wall_s": None if line.ended_s is None else line.ended_s - line.created_s,
            "critical_path_s": None if self.plan is None else self.plan.critical_path_length(durations),
            "trace_id": line.trace_id,
            **dict.fromkeys(absent),
            "evidence": {},
            "usage": {**dict.fromkeys(counts), "cost": sum(spent) if spent else None},
            "faults": [],
            "warnings": [],
            "calls": [],
            "missing": [],
            "tasks": {name: {key: getattr(task, key) for key in fields} for name, task in self.tasks.items()},
        }

    @property
    def usage(self) -> Usage:
        """What its tasks have used."""
        usage = Usage()
        for task in self.tasks.values():
            for each in (task, *task.items.values()):
                usage.add(each.tokens, each.cost, each.attempts if each.ended_s is not None else 0)
        return usage


def stored_run(summary: RunSummary, plan: str | None, settings: str, log: Sequence[Row]) -> StoredRun:
    """A run from its rows. Raises ValueError, TypeError, KeyError or PlanInvalid for rows that were damaged."""
    planned: list[Task] = []
    records: dict[str, TaskRecord] = {}
    items: dict[str, dict[int, TaskRecord]] = {}
    for row in log:
        task, item, state = row[2:5]
        if state == "planned":
            planned.append(Task.from_dict(json.loads(row[9])))
        elif item < 0:
            records[task] = _record(row, summary.state)
        else:
            items.setdefault(task, {})[item] = _record(row, summary.state)
    if plan is not None:
        planned = [Task.from_dict(entry) for entry in json.loads(plan)["tasks"]]
    whole = Plan(planned) if planned else None
    # A plan that was changed may have lost tasks that the log still has; the tasks in a `do` are in the log alone.
    names: Iterable[str] = records
    if whole is not None:
        around = tuple(f"{name}{mark}" for name in whole.flow if whole[name].do for mark in "[.")
        names = dict.fromkeys([*whole.leaves, *(name for name in (*records, *items) if name.startswith(around))])
    tasks = {name: records.get(name) or TaskRecord("waiting") for name in names}
    for name in items.keys() & tasks.keys():
        tasks[name].items = items[name]
        if tasks[name].state == "waiting" and summary.state == "running":
            tasks[name].state = "running"
    document = json.loads(settings)
    for name, kind in (("budget", Budget), ("retry", Retry)):
        if document.get(name) is not None:
            document[name] = kind(**document[name])
    return StoredRun(summary, whole, document, tasks, log[-1][1] + 1 if log else 0)


def _record(row: Row, run_state: str) -> TaskRecord:
    state, effects, attempts, started_s, ended_s, result, more = row[4:11]
    if state == "started":
        state = "running" if run_state == "running" else "in_doubt" if effects else "interrupted"
    extra = json.loads(more) if more else {}
    return TaskRecord(
        state,
        started_s,
        ended_s,
        attempts or 0,
        json.loads(result) if result else None,
        extra.get("error"),
        extra.get("same_as"),
        extra.get("tokens"),
        extra.get("cost"),
        bool(effects),
    )
