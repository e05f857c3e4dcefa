"""What a run leaves behind: one typed result for the run and one for each task, however it ended."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_forge.errors import AgentForgeError

if TYPE_CHECKING:
    from agent_forge.plans import Plan, PlanFault, Task

# How a task can end. Only "done" has a result.
TASK_STATES: dict[str, str] = {
    "done": "the handler returned a result",
    "failed": "the handler raised, or the task could not be called",
    "timed_out": "the handler took longer than the task's time limit",
    "skipped": "a task it needs did not end well",
    "cancelled": "stopped, or never started, because the run was cancelled or failed fast",
    "denied": "the approval was refused, or there was nobody to ask",
    "in_doubt": "it has side effects and was running when an earlier process died: it may or may not have happened",
    "not_started": "the budget did not allow it",
    "waiting": "it needs an approval, and nobody was there to ask: resume the run to decide",
    "replaced": "it failed, and other tasks took its place",
    "not_needed": "its condition was false, another of a `first_of` was faster, or what it stands in for did not fail",
}
FINE = ("done", "replaced", "not_needed")  # ends that do not fail the run
FAILURES = ("failed", "timed_out", "denied", "in_doubt")  # what fails by itself, not because of another
# The same in a sentence: "it needs 'a', which ...".
ENDED = {
    "failed": "failed",
    "timed_out": "timed out",
    "skipped": "was skipped",
    "cancelled": "was cancelled",
    "denied": "was not approved",
    "in_doubt": "is in doubt",
    "not_started": "was not started",
    "waiting": "waits for an approval",
    "replaced": "was replaced",
    "not_needed": "was not needed",
}
# How a run can end.
RUN_STATES: dict[str, str] = {
    "done": "every task is done, was not needed, or was replaced by others that are",
    "waiting": "all is done that can be done without an approval",
    "failed": "at least one task is not done, or the plan itself was faulty",
    "cancelled": "it was asked to stop",
    "over_budget": "calls, tokens or money ran out before every task was started",
    "timed_out": "the wall time ran out",
}


@dataclass(slots=True)
class Usage:
    """What was used. Tokens and cost are None as long as no handler reported any: not measured is not zero."""

    calls: int = 0
    tokens: int | None = None
    cost: float | None = None

    def add(self, tokens: int | None = None, cost: float | None = None, calls: int = 0) -> None:
        """Counts more use.

        >>> usage = Usage(); usage.add(tokens=10); usage.add(tokens=5); usage
        Usage(calls=0, tokens=15, cost=None)
        """
        self.calls += calls
        if tokens is not None:
            self.tokens = tokens + (self.tokens or 0)
        if cost is not None:
            self.cost = cost + (self.cost or 0.0)


@dataclass(slots=True)
class TaskResult:
    """How one task ended. Times are seconds since the run began, on its clock."""

    state: str  # one of TASK_STATES
    result: Any = None
    error: str | None = None  # "ValueError: no such city"; why, for every state but "done"
    started_s: float | None = None  # None: the handler was never called
    ended_s: float | None = None
    attempts: int = 0
    exception: BaseException | None = None
    same_as: str | None = None  # the task whose identical call gave this result
    reused: bool = False  # there before the run: from a journal or the caller
    usage: Usage | None = None  # what the handler reported with `spend`
    items: list[TaskResult] | None = None  # of a `for_each` task, one for each element

    @property
    def ok(self) -> bool:
        """Whether there is a result."""
        return self.state == "done"

    @property
    def duration_s(self) -> float:
        """Seconds between start and end; 0 for a task that never started."""
        if self.started_s is None or self.ended_s is None:
            return 0.0
        return self.ended_s - self.started_s

    def as_dict(self) -> dict[str, Any]:
        """The public shape: state, started_s, ended_s, result, error."""
        return {
            "state": self.state,
            "started_s": self.started_s,
            "ended_s": self.ended_s,
            "result": jsonable(self.result),
            "error": self.error,
        }


# Start and end of a task that was done at once, on the run's clock: all there is to tell beside its result. Such a pair
# costs little memory, and the garbage collector does not follow it around.
Times = tuple[float, float]


class TaskResults(Mapping[str, TaskResult]):
    """How each task ended, in the order of the plan. Most TaskResults are made at their first use."""

    __slots__ = ("_ends", "_order", "_origin", "_results")

    def __init__(self, order: Collection[str], ends: dict[str, Any], results: Mapping[str, Any], origin: float) -> None:
        """`ends` has a TaskResult or Times for each of `order`; the results of the latter are in `results`."""
        self._order = order
        self._ends = ends
        self._results = results
        self._origin = origin

    def __getitem__(self, name: str) -> TaskResult:
        end = self._ends[name]
        if type(end) is tuple:
            end = self._ends[name] = done_between(end, self._origin, self._results[name])
        outcome: TaskResult = end
        return outcome

    def __iter__(self) -> Iterator[str]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, name: object) -> bool:
        return name in self._ends

    def __repr__(self) -> str:
        return repr(dict(self))

    def states(self) -> Iterator[str]:
        """The state of each task, without making a TaskResult for it."""
        for name in self._order:
            end = self._ends[name]
            yield "done" if type(end) is tuple else end.state


def done_between(times: Times, origin: float, result: Any) -> TaskResult:
    """The outcome of a task that was done at the first attempt."""
    return TaskResult("done", result, None, times[0] - origin, times[1] - origin, 1)


@dataclass(slots=True, repr=False)
class RunResult:
    """How a run ended: its state, every task's state and result, and what it cost.

    `plan` is the plan as it was at the end (a streamed plan, or one changed while it ran); None when what the stream
    brought is not a valid plan, in which case `faults` says why.
    """

    run: str
    state: str  # one of RUN_STATES
    tasks: Mapping[str, TaskResult]
    wall_s: float
    plan: Plan | None = None
    usage: Usage = field(default_factory=Usage)
    trace_id: str | None = None
    error: str | None = None  # the first reason why the state is not "done"
    exception: BaseException | None = None
    faults: list[PlanFault] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # where there is no plan to ask
    parts: Mapping[str, Task] = field(default_factory=dict)  # tasks in a `do`, as they were carried out (`s3[2].a`)

    def __repr__(self) -> str:
        # Short and quick: asyncio.run formats the result of its task, and this one may hold 100,000 of them.
        return f"RunResult({self.run!r}, {self.state!r}, {len(self.tasks)} tasks, {self.wall_s:.3g} s)"

    @property
    def ok(self) -> bool:
        """Whether every task is done."""
        return self.state == "done"

    @property
    def results(self) -> dict[str, Any]:
        """The results of the tasks that are done, by id: what `execute(..., known=...)` takes."""
        return {name: task.result for name, task in self.tasks.items() if task.state == "done"}

    @property
    def critical_path_s(self) -> float:
        """The longest chain of dependent tasks, each with the time it really took: no schedule can be faster."""
        if self.plan is None:
            return longest_chain_s(self.needs, self.tasks)
        durations = {name: self.tasks[name].duration_s for name in self.plan.leaves}
        if self.plan.flow:
            durations = {name: self._own_s(name) for name in durations}
        return self.plan.critical_path_length(durations)

    def _own_s(self, name: str) -> float:
        """How long a task took after the last that it waits for: a `for_each` over the elements of another begins
        before that has ended, and so does a fallback."""
        task, plan = self.tasks[name], self.plan
        if task.started_s is None or task.ended_s is None or task.state == "not_needed" or plan is None:
            return 0.0
        ends = [self.tasks[need].ended_s or 0.0 for need in plan.dependencies[name]]
        return max(0.0, task.ended_s - max([task.started_s, *ends]))

    def counts(self) -> dict[str, int]:
        """How many tasks ended in each state."""
        tasks = self.tasks
        states = tasks.states() if isinstance(tasks, TaskResults) else (task.state for task in tasks.values())
        return dict(Counter(states))

    def as_dict(self) -> dict[str, Any]:
        """The public shape: run, state, wall_s, critical_path_s, tasks and what explains them."""
        return {
            "run": self.run,
            "state": self.state,
            "error": self.error,
            "wall_s": self.wall_s,
            "critical_path_s": self.critical_path_s,
            "trace_id": self.trace_id,
            "usage": {"calls": self.usage.calls, "tokens": self.usage.tokens, "cost": self.usage.cost},
            "faults": [fault.as_dict() for fault in self.faults],
            "warnings": list(self.warnings),
            "tasks": {name: task.as_dict() for name, task in self.tasks.items()},
        }


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a run or to one of its tasks, for `on_event`.

    `kind` is "run_started", "run_ended", "planned" (a task came from a stream or an update), "started", "retrying",
    "waiting_for_approval", or "ended" (then `state` says how).
    """

    kind: str
    run: str
    at_s: float
    task: str | None = None
    state: str | None = None
    error: str | None = None


def error_text(error: BaseException) -> str:
    """The error in one line, as results show it.

    >>> error_text(ValueError("no such city"))
    'ValueError: no such city'
    """
    text = message_of(error)
    if isinstance(error, AgentForgeError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def message_of(error: BaseException) -> str:
    """What an exception says. A tool's own exception may be broken too, and a run must end all the same."""
    try:
        return str(error)
    except Exception:
        return "(its message cannot be shown)"


def jsonable(value: Any) -> Any:
    """The value itself where it is JSON, else its repr: a report must never fail on an odd result."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        try:
            return repr(value)
        except Exception:
            return object.__repr__(value)
    return value


def longest_chain_s(needs: Mapping[str, Iterable[str]], tasks: Mapping[str, TaskResult]) -> float:
    """The longest chain of tasks that ran, each with the time it took.

    A task starts only after what it needs, so the order of the starts is an order of the graph, whatever the plan is.

    >>> ran = {"a": TaskResult("done", started_s=0.0, ended_s=1.0), "b": TaskResult("done", started_s=1.0, ended_s=3.0)}
    >>> longest_chain_s({"a": (), "b": ("a",)}, ran)
    3.0
    """
    longest: dict[str, float] = {}
    ran = [name for name in needs if name in tasks and tasks[name].started_s is not None]
    for name in sorted(ran, key=lambda each: (tasks[each].started_s, tasks[each].ended_s or 0.0)):
        before = max((longest.get(need, 0.0) for need in needs[name]), default=0.0)
        longest[name] = before + tasks[name].duration_s
    return max(longest.values(), default=0.0)
