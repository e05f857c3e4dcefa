"""Changes to a plan: made whole or not at all."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from agent_forge.plans import ChangeRefused, Plan, PlanInvalid, Task, replan, to_json

PLAN = Plan(
    [
        Task("spec"),
        Task("build", depends_on=["spec"]),
        Task("ship", depends_on=["build"]),
        Task("note", depends_on=["spec"]),
    ]
)


def refused(change: Callable[[], object]) -> str:
    """The reason of a refusal; the plan is as it was."""
    before = to_json(PLAN)
    with pytest.raises(ChangeRefused) as failed:
        change()
    assert to_json(PLAN) == before
    assert PLAN.version == 1
    again = pickle.loads(pickle.dumps(failed.value))
    assert (again.reason, str(again)) == (failed.value.reason, str(failed.value))
    return failed.value.reason


def test_a_replan_keeps_what_has_begun() -> None:
    plan = replan(PLAN, [Task("ship", "faster", depends_on=["build"])], begun={"spec", "build"})
    assert [task.id for task in plan] == ["spec", "build", "ship"]
    assert plan["ship"].goal == "faster"
    assert plan.version == 2
    assert refused(lambda: replan(PLAN, [Task("spec")], begun={"spec"})) == "taken"
    assert refused(lambda: replan(PLAN, [], begun={"nobody"})) == "unknown"
    with pytest.raises(PlanInvalid):
        replan(PLAN, [Task("x", depends_on=["ship"])], begun={"spec"})
    grouped = Plan([*PLAN, Task("b1", parent="build"), Task("b2", parent="build")])
    kept = replan(grouped, [Task("end", depends_on=["build"])], begun={"spec", "b1"})
    assert kept.dependencies == {"spec": (), "b1": ("spec",), "end": ("b1",)}
