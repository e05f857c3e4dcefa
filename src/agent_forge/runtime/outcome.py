"""From the live run to the typed result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agent_forge.runtime.groups import Groups
from agent_forge.runtime.result import ENDED, RunResult, TaskResult, TaskResults

if TYPE_CHECKING:
    from agent_forge.runtime.run import Run


def outcome_of(run: Run) -> RunResult:
    """The result of a run that has ended."""
    tasks: Mapping[str, TaskResult] = TaskResults(run.needs, run.places, run.results, run.origin)
    state, error = _state(run, tasks)
    plan = run.plan
    if plan is not None and plan.composites:
        groups = (run.groups or Groups(run, plan)).outcomes(tasks)
        both = {**tasks, **groups}
        tasks = {name: both[name] for name in plan.tasks}
    return RunResult(
        run.name,
        state,
        tasks,
        run.clock() - run.origin,
        plan,
        run.usage,
        run.watch.trace_id if run.watch is not None else None,
        error,
        run.exception,
        run.faults,
        run.warnings,
        {} if plan is not None else run.needs,
    )


def _state(run: Run, tasks: Mapping[str, TaskResult]) -> tuple[str, str | None]:
    if len(tasks) and not run.undone and not run.faults and run.exception is None:
        return "done", None
    if run.stopping is not None:
        return run.stopping, run.error
    if run.faults:
        return "failed", str(run.faults[0])
    if any(task.state == "not_started" for task in tasks.values()):
        return "over_budget", run.error
    return "failed", _first_reason(tasks)


def _first_reason(tasks: Mapping[str, TaskResult]) -> str:
    """The first task that failed by itself explains the run; those it took with it do not."""
    bad = [(name, task) for name, task in tasks.items() if task.state not in ("done", "skipped")]
    bad = bad or [(name, task) for name, task in tasks.items() if task.state != "done"]
    name, task = min(bad, key=lambda pair: pair[1].ended_s if pair[1].ended_s is not None else 0.0)
    return f"task {name!r} {ENDED[task.state]}: {task.error}"
