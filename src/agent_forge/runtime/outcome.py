"""From the live run to the typed result."""

from __future__ import annotations

from collections.abc import Mapping

from agent_forge.runtime.groups import Composites
from agent_forge.runtime.result import ENDED, RunResult, TaskResult, TaskResults
from agent_forge.runtime.run import Run


def outcome_of(run: Run) -> RunResult:
    """The result of a run that has ended."""
    board, plan = run.board, run.board.plan
    tasks: Mapping[str, TaskResult] = TaskResults(board.needs, board.places, board.results, run.origin)
    state, error = _state(run, tasks)
    if plan is not None and plan.composites:
        composites = board.composites or Composites(plan, board.results)
        groups = {name: composites.outcome(name, tasks) for name in plan.composites}
        tasks = {name: groups[name] if name in groups else tasks[name] for name in plan.tasks}
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
        run.life.warnings,
        {} if plan is not None else board.needs,
    )


def _state(run: Run, tasks: Mapping[str, TaskResult]) -> tuple[str, str | None]:
    if len(tasks) and not run.board.undone and not run.faults and run.exception is None:
        return "done", None
    if run.stopping is not None:
        return run.stopping, run.error
    if run.faults:
        return "failed", str(run.faults[0])
    if any(task.state == "not_started" for task in tasks.values()):
        return "over_budget", run.error
    # The first task that failed by itself explains the run; those it took with it do not.
    bad = [(name, task) for name, task in tasks.items() if task.state not in ("done", "skipped")]
    bad = bad or [(name, task) for name, task in tasks.items() if task.state != "done"]
    name, task = min(bad, key=lambda pair: pair[1].ended_s if pair[1].ended_s is not None else 0.0)
    return "failed", f"task {name!r} {ENDED[task.state]}: {task.error}"
