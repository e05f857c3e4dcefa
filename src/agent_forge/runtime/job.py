"""One task under way, and what its run does for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context, ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from agent_forge.plans import Task
from agent_forge.plans.references import ITEM, LAST
from agent_forge.runtime.limits import Gate
from agent_forge.runtime.result import TaskResult, Usage
from agent_forge.runtime.terms import Terms

# The states before the end; those of the end are in result.TASK_STATES.
PENDING = "pending"  # an input is missing
PARKED = "parked"  # waits for an approval, an identical call, its elements, the next attempt, or the budget
READY = "ready"  # waits for a slot
RUNNING = "running"
OPEN_STATES = frozenset((PENDING, PARKED, READY, RUNNING))
PART = -2  # in place of the index of an element: a task in the `do` of another


class JobOwner(Protocol):
    """The run of a job, as those see it that work for one run or for many: the agenda, the workers, `spend`, the
    preparation and the lifetime. `Run` explains each method."""

    context: Context  # each handler is called in a copy of it
    stopping: str | None

    def admit(self, job: Job) -> bool: ...
    def put(self, job: Job) -> None: ...
    def call(self, job: Job) -> Any: ...
    def suspended(self, job: Job, worker: asyncio.Task[None]) -> None: ...
    def returned(self, job: Job, value: Any) -> None: ...
    def raised(self, job: Job, error: BaseException) -> None: ...
    def abandoned(self, job: Job, worker: asyncio.Task[None]) -> None: ...
    def spend(self, job: Job, tokens: int | None, cost: float | None, unpriced: str | None = None) -> None: ...
    def done(self, job: Job, value: Any) -> None: ...
    def settle(self, job: Job, state: str, why: str, error: BaseException | None = None) -> None: ...
    def failed(self, job: Job, state: str, why: str, error: BaseException | None = None) -> None: ...
    def stop(self, state: str, why: str) -> None: ...
    def break_off(self, error: BaseException) -> None: ...
    def check_end(self) -> None: ...
    def adopt(self, known: Mapping[str, TaskResult]) -> None: ...


class Flight:
    """A handler that is waiting: the asyncio task that carries it, and why it was stopped, if it was."""

    __slots__ = ("reason", "timer", "worker")

    def __init__(self, worker: asyncio.Task[None]) -> None:
        self.worker = worker
        self.timer: asyncio.TimerHandle | None = None
        self.reason: str | None = None

    def stop(self, reason: str) -> None:
        """Cancels the handler, once; the first reason stays."""
        if self.reason is None:
            self.reason = reason
            self.worker.cancel()


@dataclass(frozen=True, slots=True)
class Reserve:
    """What a budget sets aside for one running task."""

    tokens: int
    cost: float


class Job:
    """A task of the plan, or one element of a `for_each` task, with all that the run knows about it.

    Plans of 100,000 tasks are real, and most tasks need few of these fields: what every task has is
    in slots, the rest are defaults of the class until they are set.
    """

    __slots__ = (
        "__dict__",
        "attempts",
        "began",
        "deps",
        "ended",
        "id",
        "result",
        "run",
        "started",
        "state",
        "task",
        "terms",
    )

    rank = 1.0
    gate: Gate | None = None
    error: str | None = None
    exception: BaseException | None = None
    call: Task | None = None  # the task with its references resolved
    inputs: dict[str, Any] | None = None
    waiting: Coroutine[Any, Any, Any] | None = None  # the handler, from its first wait on
    flight: Flight | None = None
    fan: Fan | None = None  # set on one element of a `for_each` task, with its index
    item = -1
    within: Job | None = None  # set on a task in a `do`: the task, element or round that it is a part of
    ends_as: str | None = None  # the state that its cancellation ends in, when that is not "cancelled"
    spread: Fan | None = None  # set on the `for_each` task itself
    key: Any = None  # of an identical call
    followers: list[Job] | None = None
    same_as: str | None = None
    reserve: Reserve | None = None
    reused = False
    span: Any = None
    usage: Usage | None = None
    wake: Callable[[], object] | None = None  # ends a park early: cancels a timer or an approval

    def __init__(self, run: JobOwner, task: Task, deps: tuple[str, ...], terms: Terms) -> None:
        self.run = run
        self.task = task
        self.id = task.id
        self.deps = deps
        self.terms = terms
        self.state = PENDING
        self.attempts = 0
        self.result: Any = None
        self.began = 0.0  # this attempt
        self.started: float | None = None
        self.ended: float | None = None

    def take_over(self, outcome: TaskResult) -> None:
        """Ends as an earlier process has left it."""
        self.state, self.result, self.error = outcome.state, outcome.result, outcome.error
        self.attempts, self.usage, self.reused = outcome.attempts, outcome.usage, True

    def outcome(self, origin: float) -> TaskResult:
        """The job as the caller sees it; `origin` is the clock at the start of the run."""
        started, ended = self.started, self.ended
        return TaskResult(
            self.state,
            self.result,
            self.error,
            None if started is None else started - origin,
            None if ended is None else ended - origin,
            self.attempts,
            self.exception,
            self.same_as,
            self.reused,
            self.usage,
            None if self.spread is None else [item.outcome(origin) for item in self.spread.items],
        )


class Fan:
    """A `for_each` task under way: one job per element. Its result is the list of theirs, in order.

    A task with `until` is one too: one job per round, each made when the one before has ended.
    """

    def __init__(self, whole: Job, values: list[Any]) -> None:
        self.whole = whole
        self.values = values
        self.items = [self._item(index) for index in range(len(values))]
        self.left = len(values)  # elements that have not ended
        self.source: str | None = None  # the task whose elements it is spread over, and not just its result
        self.followers: list[Fan] = []  # those that are spread over the elements of this one

    @property
    def name(self) -> str:
        """What the value of an element is called inside it."""
        return ITEM if self.whole.task.until is None else LAST

    def add(self, value: Any) -> Job:
        """One more round."""
        self.values.append(value)
        self.items.append(self._item(len(self.items)))
        self.left += 1
        return self.items[-1]

    def _item(self, index: int) -> Job:
        whole, task, terms = self.whole, self.whole.task, self.whole.terms
        part = Task(
            f"{task.id}[{index}]", task.goal, task.action, task.args, task.depends_on, task.parent, meta=task.meta,
            do=task.do,
        )  # fmt: skip
        # The approval was given for the whole. A round repeats the call of the one before, so none is shared.
        memo = terms.memo and task.until is None
        job = Job(whole.run, part, whole.deps, Terms(terms.timeout_s, terms.retry, terms.side_effects, memo))
        job.fan, job.item = self, index
        job.rank, job.gate = whole.rank, whole.gate
        return job


# The job whose handler is running, so that `spend` knows whom to charge.
CURRENT: ContextVar[Job | None] = ContextVar("agent_forge_job", default=None)
