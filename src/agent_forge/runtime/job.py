"""One task on its way through a run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_forge.runtime.limits import Limits
from agent_forge.runtime.result import TaskResult, Usage
from agent_forge.runtime.retry import ONCE, Retry

if TYPE_CHECKING:
    from agent_forge.plans import Task
    from agent_forge.runtime.budget import Reserve
    from agent_forge.runtime.fanout import Fan
    from agent_forge.runtime.limits import Gate
    from agent_forge.runtime.run import Run

# The states before the end; those of the end are in result.TASK_STATES.
PENDING = "pending"  # an input is missing
PARKED = "parked"  # waits for something else: an approval, an identical call, its items, the next attempt, the budget
READY = "ready"  # waits for a slot
RUNNING = "running"
OPEN_STATES = frozenset((PENDING, PARKED, READY, RUNNING))

TIMEOUT = "timeout"
STOP = "stop"


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for one task: its own `meta` first, then the rules of its tool, then those of the run."""

    timeout_s: float | None = None
    retry: Retry = ONCE
    side_effects: bool = False
    memo: bool = True
    approval: bool = False
    fault: str | None = None  # what in its `meta` cannot be used: the task fails instead of being called


class TermsOf:
    """Finds the terms of tasks; tasks without `meta` share those of their tool."""

    def __init__(self, limits: Limits, timeout_s: float | None, retry: Retry | None, memo: bool) -> None:
        self._limits = limits
        self._timeout_s = timeout_s
        self._retry = retry or ONCE
        self._memo = memo
        self._by_tool: dict[str | None, Terms] = {}

    def of(self, task: Task) -> Terms:
        """The terms of one task."""
        plain = self._by_tool.get(task.action)
        if plain is None:
            plain = self._by_tool[task.action] = self._of_tool(task.action)
        return self._of_meta(plain, task.meta) if task.meta else plain

    def _of_tool(self, tool: str | None) -> Terms:
        rules = self._limits.rules(tool)
        if rules is None:
            return Terms(self._timeout_s, self._retry, memo=self._memo)
        retry = rules.retry or (ONCE if rules.side_effects else self._retry)
        timeout_s = self._timeout_s if rules.timeout_s is None else rules.timeout_s
        return Terms(timeout_s, retry, rules.side_effects, self._memo and rules.memo and not rules.side_effects)

    def _of_meta(self, plain: Terms, meta: Mapping[str, Any]) -> Terms:
        if (fault := _meta_fault(meta)) is not None:
            return Terms(side_effects=plain.side_effects, fault=fault)
        side_effects = bool(meta.get("side_effects", plain.side_effects))
        retry = ONCE if side_effects and not plain.side_effects else plain.retry
        if "retries" in meta:
            # Written in the task itself, so it is meant even for one with side effects.
            pattern = plain.retry if plain.retry is not ONCE else Retry()
            retry = Retry(
                int(meta["retries"]) + 1,
                pattern.first_s,
                pattern.factor,
                pattern.longest_s,
                pattern.jitter,
                pattern.on,
            )
        timeout_s = meta.get("timeout_s", plain.timeout_s)
        memo = plain.memo and not side_effects and meta.get("cache", True) is not False
        return Terms(timeout_s, retry, side_effects, memo, bool(meta.get("approval", False)))


def _meta_fault(meta: Mapping[str, Any]) -> str | None:
    """What in a task's `meta` the executor cannot use; the rest of it is free."""
    retries, timeout_s = meta.get("retries", 0), meta.get("timeout_s", 1.0)
    if not isinstance(retries, int) or retries < 0:
        return f"its meta has retries {retries!r:.40}, which is no whole number from 0 on"
    if timeout_s is not None and not (isinstance(timeout_s, (int, float)) and timeout_s > 0):
        return f"its meta has timeout_s {timeout_s!r:.40}, which is no number above 0"
    return None


class Flight:
    """A handler that is waiting for something: the asyncio task that carries it, and why it was stopped, if it was."""

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


class Job:
    """A task of the plan, or one element of a `for_each` task, with all that the run knows about it.

    Plans of 100,000 tasks are real, and most tasks need few of these fields: what every task has is in slots, the rest
    are defaults of the class until they are set.
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
    charge = 0.0  # what its run was charged for the slot
    fan: Fan | None = None  # set on one element of a `for_each` task, with its place in the list
    item = -1
    spread: Fan | None = None  # set on the `for_each` task itself
    key: Any = None  # of an identical call
    followers: list[Job] | None = None
    same_as: str | None = None
    reserve: Reserve | None = None
    reused = False
    span: Any = None
    usage: Usage | None = None
    wake: Callable[[], object] | None = None  # ends a park early: cancels a timer or a question

    def __init__(self, run: Run, task: Task, deps: tuple[str, ...], terms: Terms) -> None:
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
            None if self.spread is None else self.spread.outcomes(origin),
        )
