"""A plan that changes while it runs: the unstarted rest is replaced, what has started stays as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_forge.errors import PlanError
from agent_forge.plans import Plan

if TYPE_CHECKING:
    from agent_forge.runtime.run import Run


def change(run: Run, plan: Plan) -> None:
    """Carries on with `plan`. Raises PlanError, and changes nothing, if it touches a task that has started."""
    _check(run, plan)
    new = [task for name, task in plan.tasks.items() if name not in run.tasks]
    outcomes = run.outcomes()
    for name in [name for name in outcomes if name not in plan.dependencies or _is_changed(run, plan, name)]:
        del run.places[name], outcomes[name]  # skipped before, and not the same task now
        run.closed -= 1
        run.undone -= 1
    run.adopt(plan)
    run.missing = {
        name: sum(1 for dep in deps if dep not in outcomes or not run.lets_pass(outcomes[dep]))
        for name, deps in plan.dependencies.items()
    }
    if run.groups is not None:
        for name in outcomes:
            run.groups.ended(name)
    if run.watch is not None:
        run.watch.replanned(plan, new)
    for name in plan.dependencies:
        run.place(name)


def _check(run: Run, plan: Plan) -> None:
    """Refuses a plan that lacks or alters a task that runs or ran; one that was skipped may go or change."""
    ended = [name for name, outcome in run.outcomes().items() if outcome.state != "skipped"]
    started = [*run.under_way(), *ended]
    for name in started:
        if name not in plan.dependencies:
            raise PlanError(f"the new plan lacks task {name!r}, which has started", fix="keep what has started")
        if _is_changed(run, plan, name):
            raise PlanError(f"the new plan changes task {name!r}, which has started", fix="give the new task a new id")


def _is_changed(run: Run, plan: Plan, name: str) -> bool:
    return plan.tasks[name] != run.tasks[name] or set(plan.dependencies[name]) != set(run.needs[name])
