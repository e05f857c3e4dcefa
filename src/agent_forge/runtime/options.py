"""What the caller may say about how a run is carried out, checked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from agent_forge.errors import UsageError
from agent_forge.plans import Plan, Task
from agent_forge.runtime.budget import Budget
from agent_forge.runtime.limits import Limits, Retry
from agent_forge.runtime.result import Event, TaskResult

if TYPE_CHECKING:
    from agent_forge.runtime.journal import Journal
    from agent_forge.runtime.workers import Workers
    from agent_forge.traces import Recorder

Handler = Callable[[Task, dict[str, Any]], Any]  # gives the result or something to await for it
# Yes, no, yes with these arguments instead, or None: nobody is there to ask now.
Approval = bool | Mapping[str, Any] | None
Approve = Callable[[Task], "Approval | Awaitable[Approval]"]
# After a failure: the tasks that take the place of all that has not begun, or None. Called with the plan, the task that
# failed, how, and the results so far.
Mend = Callable[[Plan, str, TaskResult, Mapping[str, Any]], Awaitable["Sequence[Task] | None"]]
Update = Callable[[Plan, str, TaskResult], Awaitable["Plan | None"]]
OnEvent = Callable[[Event], None]

FAILURE_POLICIES = {
    "skip": "what depends on the failed task is skipped, everything else continues",
    "fail_fast": "the first failure cancels what runs and starts nothing more",
    "continue": "what depends on the failed task runs without its result",
}


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The keyword arguments of `execute`, `start`, `execute_many` and `resume`; `execute` explains them."""

    concurrency: int | None = None
    limits: Limits | None = None
    retry: Retry | None = None
    timeout_s: float | None = None
    on_failure: str = "skip"
    budget: Budget | None = None
    journal: Journal | None = None
    run_id: str | None = None
    recorder: Recorder | None = None
    approve: Approve | None = None
    on_event: OnEvent | None = None
    update: Update | None = None
    mend: Mend | None = None
    known: Mapping[str, Any] = field(default_factory=dict)
    durations: Mapping[str, float] | None = None
    workers: Workers | None = None
    memo: bool = True
    order: str = "critical_path"
    stream_idle_s: float = 300.0
    grace_s: float = 5.0
    most_items: int = 10_000  # elements of a `for_each` without a limit of its own
    most_rounds: int = 100  # rounds of an `until` without a limit of its own
    most_parts: int = 100_000  # tasks that the `do`s of a run make, all together
    seed: int | None = None
    notes: Mapping[str, Any] | None = None  # JSON that the journal keeps for whoever resumes the run

    def __post_init__(self) -> None:
        if self.on_failure not in FAILURE_POLICIES:
            raise UsageError(f"on_failure is {self.on_failure!r}", fix=f"Use one of {', '.join(FAILURE_POLICIES)}")
        if self.order not in ("critical_path", "fifo"):
            raise UsageError(f"order is {self.order!r}", fix="Use critical_path or fifo")
        for name in ("timeout_s", "stream_idle_s", "grace_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"{name} must be above 0, got {value!r}")

    @property
    def all_limits(self) -> Limits:
        """The limits, with `concurrency` where it is given beside them."""
        limits = self.limits or Limits()
        return limits if self.concurrency is None else replace(limits, concurrency=self.concurrency)

    def describe(self) -> dict[str, Any]:
        """The settings that are data, for the journal: a resumed run continues under the same terms."""
        retry = None
        if self.retry is not None and self.retry.on == (Exception,):
            # Exceptions have no JSON: a retry that is limited to some of them must be given again.
            retry = {name: value for name, value in asdict(self.retry).items() if name != "on"}
        return {
            "on_failure": self.on_failure,
            "timeout_s": self.timeout_s,
            "concurrency": self.all_limits.concurrency,
            "memo": self.memo,
            "order": self.order,
            "seed": self.seed,
            "most_items": self.most_items,
            "most_rounds": self.most_rounds,
            "most_parts": self.most_parts,
            "budget": None if self.budget is None else asdict(self.budget),
            "retry": retry,
        }


def duration_of(task: Task, durations: Mapping[str, float]) -> float:
    """How long a task is expected to take: by id, by tool, by its own `est_s`, else 0 (unknown)."""
    value = durations.get(task.id)
    if value is None and task.action is not None:
        value = durations.get(task.action)
    if value is None:
        value = task.meta.get("est_s")
    return float(value) if isinstance(value, (int, float)) and value > 0 else 0.0


def ranks_of(plan: Plan, durations: Mapping[str, float]) -> dict[str, float]:
    """How much work lies behind each leaf, itself included; a task of unknown duration counts as an average one."""
    expected = {name: duration_of(plan.tasks[name], durations) for name in plan.leaves}
    measured = [value for value in expected.values() if value]
    usual = sum(measured) / len(measured) if measured else 1.0
    return plan.ranks({name: value or usual for name, value in expected.items()})
