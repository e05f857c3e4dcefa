"""Changes to a plan: made whole or not at all."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from agent_forge.plans import ChangeBudget, ChangeRefused, Plan, PlanInvalid, Task, expand, insert, replan, to_json

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


def test_expansion_puts_the_parts_between_what_came_before_and_after() -> None:
    plan = expand(PLAN, "build", [Task("code"), Task("docs"), Task("test", depends_on=["code"])])
    assert plan.version == 2
    assert plan.dependencies == {
        "spec": (),
        "code": ("spec",),
        "docs": ("spec",),
        "test": ("code",),
        "ship": ("docs", "test"),
        "note": ("spec",),
    }
    assert plan.children("build") == ("code", "docs", "test")
    assert plan.leaves_of("build") == ("code", "docs", "test")
    assert PLAN.composites == ()


def test_expansion_goes_as_deep_as_the_budget_and_no_deeper() -> None:
    plan = PLAN
    budget = ChangeBudget(depth=3, calls=10)
    name = "build"
    for depth in range(3):
        budget.reserve(plan, name)
        plan = expand(plan, name, [Task(f"part{depth}")], budget)
        name = f"part{depth}"
    assert plan.depth(name) == 3
    with pytest.raises(ChangeRefused, match="4 groups deep") as failed:
        budget.reserve(plan, name)
    assert failed.value.reason == "depth"
    with pytest.raises(ChangeRefused, match="4 groups deep"):
        expand(plan, name, [Task("deeper")], budget)
    assert budget.calls_used == 3


def test_the_budget_is_checked_before_the_model_is_asked() -> None:
    budget = ChangeBudget(calls=1)
    budget.reserve(PLAN, "build")
    assert refused(lambda: budget.reserve(PLAN, "build")) == "calls"
    assert refused(lambda: ChangeBudget(tasks=4).reserve(PLAN, "build")) == "tasks"
    assert refused(lambda: ChangeBudget(depth=0).reserve(PLAN, "build")) == "depth"
    assert refused(lambda: ChangeBudget(changes=0).reserve(PLAN, "build")) == "changes"
    assert refused(lambda: ChangeBudget().reserve(PLAN, "nobody")) == "unknown"
    assert refused(lambda: expand(PLAN, "build", [Task("x"), Task("y")], ChangeBudget(tasks=5))) == "tasks"
    assert refused(lambda: expand(PLAN, "build", [Task("x"), Task("y")], ChangeBudget(parts=1))) == "parts"


def test_an_expansion_that_makes_no_sense_is_refused() -> None:
    assert refused(lambda: expand(PLAN, "nobody", [Task("x")])) == "unknown"
    assert refused(lambda: expand(PLAN, "build", [])) == "parts"
    assert refused(lambda: expand(PLAN, "build", [Task("ship")])) == "taken"
    assert refused(lambda: expand(PLAN, "build", [Task("x", parent="spec")])) == "unknown"
    once = expand(PLAN, "build", [Task("x"), Task("y", parent="x")])
    assert refused(lambda: expand(once, "build", [Task("z")])) == "expanded"
    assert refused(lambda: expand(once, "x", [Task("z")])) == "expanded"
    for parts in ([Task("x", depends_on=["ship"])], [Task("x"), Task("x")], [Task("x", depends_on=["nowhere"])]):
        with pytest.raises(PlanInvalid):
            expand(PLAN, "build", parts)


def test_new_work_comes_between_a_finished_task_and_its_unstarted_successors() -> None:
    new = [Task("find"), Task("fix", depends_on=["find"]), Task("log", "about {spec}")]
    plan = insert(PLAN, "spec", new, finished={"spec"}, started={"note"})
    assert plan.version == 2
    assert plan.dependencies == {
        "spec": (),
        "build": ("spec", "fix", "log"),
        "ship": ("build",),
        "note": ("spec",),
        "find": ("spec",),
        "fix": ("find",),
        "log": ("spec",),
    }


def test_new_work_after_the_last_task_is_added_at_the_end() -> None:
    plan = insert(PLAN, "ship", [Task("party")], finished=set(PLAN.tasks))
    assert plan.dependencies["party"] == ("ship",)


def test_new_work_after_a_group_waits_for_all_of_it() -> None:
    grouped = expand(PLAN, "spec", [Task("s1"), Task("s2")])
    plan = insert(grouped, "spec", [Task("more")], finished={"s1", "s2"})
    assert plan.version == 3
    assert plan.dependencies["more"] == ("s1", "s2")
    assert "more" in plan.dependencies["build"]


def test_new_work_that_cannot_come_in_time_is_refused() -> None:
    new = [Task("x")]
    assert refused(lambda: insert(PLAN, "spec", new, finished=set())) == "unfinished"
    assert refused(lambda: insert(PLAN, "spec", new, finished={"spec"}, started={"build", "note"})) == "begun"
    assert refused(lambda: insert(PLAN, "nobody", new, finished={"spec"})) == "unknown"
    assert refused(lambda: insert(PLAN, "spec", [], finished={"spec"})) == "parts"
    assert refused(lambda: insert(PLAN, "spec", [Task("ship")], finished={"spec"})) == "taken"
    assert refused(lambda: insert(PLAN, "spec", new, finished={"spec"}, budget=ChangeBudget(tasks=4))) == "tasks"
    with pytest.raises(PlanInvalid) as failed:
        insert(PLAN, "spec", [Task("x", depends_on=["ship"])], finished={"spec"})
    assert failed.value.codes == ["cycle"]


def test_a_replan_keeps_what_has_begun() -> None:
    plan = replan(PLAN, [Task("ship", "faster", depends_on=["build"])], begun={"spec", "build"})
    assert [task.id for task in plan] == ["spec", "build", "ship"]
    assert plan["ship"].goal == "faster"
    assert plan.version == 2
    assert refused(lambda: replan(PLAN, [Task("spec")], begun={"spec"})) == "taken"
    assert refused(lambda: replan(PLAN, [], begun={"nobody"})) == "unknown"
    assert refused(lambda: replan(PLAN, [Task("x")], begun={"spec"}, budget=ChangeBudget(tasks=1))) == "tasks"
    grouped = expand(PLAN, "build", [Task("b1"), Task("b2")])
    kept = replan(grouped, [Task("end", depends_on=["build"])], begun={"spec", "b1"})
    assert kept.dependencies == {"spec": (), "b1": ("spec",), "end": ("b1",)}
