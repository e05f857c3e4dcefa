"""Budgets: tokens, money, calls and wall time, reserved before a task starts."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent_forge.errors import UsageError
from agent_forge.runtime.job import CURRENT, Job, Reserve
from agent_forge.runtime.result import Usage

WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Budget:
    """The most a run may use. None: no limit.

    Before a task starts, one call and its estimate (`est_tokens`, `est_cost` in its meta, else
    `task_tokens`, `task_cost` here) are set aside; a task whose estimate no longer fits is not
    started. What its handler reports with `spend` replaces the estimate when it ends. A running task
    is never cut short by tokens, cost or calls; `wall_s` does stop what is running, and a task whose
    `est_s` is longer than the time left is not started.
    """

    tokens: int | None = None
    cost: float | None = None
    calls: int | None = None
    wall_s: float | None = None
    task_tokens: int = 0
    task_cost: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise UsageError(f"Budget: {name} must be a number of at least 0, got {value}")


class Ledger:
    """The live state of a budget; one ledger may serve many runs."""

    __slots__ = ("_reserved_cost", "_reserved_tokens", "_short", "budget", "used")

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.used = Usage()
        self._short: deque[Job] = deque()  # they would fit if those that run used less than was set aside
        self._reserved_tokens = 0
        self._reserved_cost = 0.0

    def estimate(self, meta: Mapping[str, Any]) -> Reserve:
        """What a task says it will use."""
        tokens, cost = meta.get("est_tokens"), meta.get("est_cost")
        return Reserve(
            int(tokens) if isinstance(tokens, (int, float)) else self.budget.task_tokens,
            float(cost) if isinstance(cost, (int, float)) else self.budget.task_cost,
        )

    def refusal(self, need: Reserve) -> str | None:
        """Why such a task can never start any more (use only grows), or None."""
        limit, used = self.budget, self.used
        if limit.calls is not None and used.calls >= limit.calls:
            return f"the budget of {limit.calls} calls is used up"
        if limit.tokens is not None and _exceeds(used.tokens or 0, need.tokens, limit.tokens):
            return f"the budget of {limit.tokens} tokens does not allow {need.tokens} more after {used.tokens or 0}"
        if limit.cost is not None and _exceeds(used.cost or 0.0, need.cost, limit.cost):
            return f"the budget of {limit.cost:g} does not allow {need.cost:g} more after {used.cost or 0.0:g}"
        return None

    def fits(self, need: Reserve) -> bool:
        """Whether the task fits beside what is set aside for those that run."""
        limit, used = self.budget, self.used
        tokens, cost = (used.tokens or 0) + self._reserved_tokens, (used.cost or 0.0) + self._reserved_cost
        if limit.tokens is not None and _exceeds(tokens, need.tokens, limit.tokens):
            return False
        return limit.cost is None or not _exceeds(cost, need.cost, limit.cost)

    def admit(self, job: Job, left_s: float | None) -> str | None:
        """Sets aside what a job needs: None. WAIT: it may fit when others have ended. Else why it can never start."""
        meta = job.task.meta
        need, est_s = self.estimate(meta), meta.get("est_s")
        if left_s is not None and isinstance(est_s, (int, float)) and est_s > left_s:
            return f"it needs {est_s:g} s and only {left_s:.3g} s of the wall time are left"
        if (refusal := self.refusal(need)) is not None:
            return refusal
        if not self.fits(need):
            self._short.append(job)
            return WAIT
        self.used.calls += 1
        self._reserved_tokens += need.tokens
        self._reserved_cost += need.cost
        job.reserve = need
        return None

    def land(self, job: Job) -> list[Job]:
        """Gives back what was set aside for a job (what it really used has been added by then); returns the jobs that
        were short and are worth another look."""
        if job.reserve is not None:
            self._reserved_tokens -= job.reserve.tokens
            self._reserved_cost -= job.reserve.cost
            job.reserve = None
        jobs: list[Job] = []
        ahead = Reserve(0, 0.0)  # the needs of those that are let go together
        while self._short:
            need = self.estimate(self._short[0].task.meta)
            ahead = Reserve(ahead.tokens + need.tokens, ahead.cost + need.cost)
            if self.refusal(need) is None and not self.fits(ahead):
                break
            jobs.append(self._short.popleft())
        return jobs


def _exceeds(used: float, need: float, limit: float) -> bool:
    return used + need > limit or (used >= limit and not need)


def spend(tokens: int | None = None, cost: float | None = None, *, unpriced: str | None = None) -> None:
    """Reports, from inside a handler, what the task has used. Calls add up; outside of a run it does nothing.

    `unpriced` names what was used at a cost that is not known. Raises UsageError then if the run has a budget on cost,
    which could not be kept.
    """
    job = CURRENT.get()
    if job is not None:
        job.run.spend(job, tokens, cost, unpriced)
