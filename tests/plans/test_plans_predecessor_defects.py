"""What the predecessor got wrong, one test each: its planner dropped, merged or misnamed what it could not read."""

from __future__ import annotations

import pytest

from agent_forge.plans import ChangeBudget, ChangeRefused, Plan, PlanInvalid, Task, expand, insert, parse_plan


def plan_of(*lines: str) -> Plan:
    return parse_plan("\n".join(["<plan>", *lines, "</plan>"]))


def test_lower_case_dependencies_were_dropped() -> None:
    plan = plan_of("Task 1: a | Dependencies: none", "Task 2: b | Dependencies: task 1")
    assert plan.levels() == [["task_1"], ["task_2"]]


def test_only_the_first_of_two_joined_by_and_was_kept() -> None:
    plan = plan_of(
        "Task 1: a | Dependencies: none",
        "Task 2: b | Dependencies: none",
        "Task 3: c | Dependencies: Task 1 and Task 2",
    )
    assert plan.dependencies["task_3"] == ("task_1", "task_2")


def test_a_missing_task_was_called_a_circle() -> None:
    with pytest.raises(PlanInvalid) as refused:
        plan_of("Task 1: a | Dependencies: none", "Task 2: b | Dependencies: Task 9")
    assert [(fault.code, fault.task, fault.line) for fault in refused.value.errors] == [
        ("unknown_dependency", "task_2", 3)
    ]


def test_a_repeated_id_overwrote_a_result() -> None:
    with pytest.raises(PlanInvalid) as refused:
        plan_of("Task 1: a | Dependencies: none", "Task 1: b | Dependencies: none")
    assert refused.value.codes == ["duplicate_id"]


def test_bullets_bold_and_bars_were_skipped() -> None:
    plan = plan_of(
        "Task 1: either a | or b | Dependencies: none",
        "- Task 2: c | Dependencies: Task 1",
        "**Task 3**: d | Dependencies: Task 2",
    )
    assert [task.goal for task in plan] == ["either a | or b", "c", "d"]
    assert len(plan.levels()) == 3


def test_more_than_a_hundred_independent_tasks_were_cut_off() -> None:
    plan = plan_of(*(f"Task {number}: x | Dependencies: none" for number in range(1, 151)))
    assert [len(level) for level in plan.levels()] == [150]


def test_groups_ran_before_their_parts_and_without_an_order() -> None:
    """spec, build and deploy were all roots, and "parent before child" made an abstract task run before its pieces."""
    plan = Plan([Task("spec"), Task("build", depends_on=["spec"]), Task("deploy", depends_on=["build"])])
    plan = expand(plan, "spec", [Task("ask"), Task("write", depends_on=["ask"])])
    plan = expand(plan, "build", [Task("code"), Task("test", depends_on=["code"])])
    assert plan.order() == ["ask", "write", "code", "test", "deploy"]
    assert "spec" not in plan.dependencies


def test_what_was_expanded_was_expanded_again_and_paid_for_again() -> None:
    plan = expand(Plan([Task("a")]), "a", [Task("b")])
    budget = ChangeBudget()
    with pytest.raises(ChangeRefused, match="already expanded"):
        budget.reserve(plan, "a")
    assert budget.calls_used == 0


def test_a_task_limit_was_noticed_after_the_calls_were_paid_for() -> None:
    budget = ChangeBudget(tasks=1)
    with pytest.raises(ChangeRefused, match="the limit is 1"):
        budget.reserve(Plan([Task("a")]), "a")
    assert budget.calls_used == 0


def test_a_copy_shared_its_tasks_with_the_original() -> None:
    args = {"k": 1}
    old = Plan([Task("a", args=args), Task("b", depends_on=["a"])])
    new = insert(old, "a", [Task("c")], finished={"a"})
    args["k"] = 2
    assert old["a"].args == {"k": 1}
    assert old["b"].depends_on == ("a",)
    assert new["b"].depends_on == ("a", "c")
    with pytest.raises(AttributeError):
        old["a"].goal = "changed"  # type: ignore[misc]


def test_repeated_dependencies_were_counted_twice() -> None:
    plan = Plan([Task("a"), Task("b", "{a}", depends_on=["a", "a"])])
    assert plan.dependencies["b"] == ("a",)
    assert plan.dependents["a"] == ("b",)


@pytest.mark.parametrize(
    "goal", ["reset the password flow", "override the default credential", "ignore previous drafts", "rm -rf build/"]
)
def test_ordinary_words_collapsed_the_plan(goal: str) -> None:
    assert plan_of("Task 1: a", f"Task 2: {goal} | Dependencies: Task 1")["task_2"].goal == goal


def test_the_documented_example_with_an_undefined_reference_is_refused_by_name() -> None:
    with pytest.raises(PlanInvalid, match="country_1_from_s1") as refused:
        parse_plan(
            '<graph><node id="s1">search("x")</node>'
            '<node id="s2" depends="s1">search("{country_1_from_s1}")</node></graph>'
        )
    assert refused.value.codes == ["unknown_dependency"]
    assert (
        parse_plan(
            '<graph><node id="s2">search("a")</node><node id="s3">search("b")</node>'
            '<node id="s4" depends="s2,s3">compare_values({s2},{s3})</node></graph>'
        )["s4"].action
        == "compare_values"
    )


def test_the_authors_own_form_is_read() -> None:
    """Graph-based agent planning as trained: `T1: …`, then `- Dependencies: none` on the next line."""
    plan = parse_plan(
        "<think>\nTwo searches can run at once.\n</think>\n<plan>\nT1: Search who directed A\n- Dependencies: none\n"
        "T2: Search who directed B\n- Dependencies: none\nT3: Compare the two\n- Dependencies: T1, T2\n</plan>\n"
        "<wiki_search>director of A|director of B</wiki_search>"
    )
    assert plan.levels() == [["task_1", "task_2"], ["task_3"]]
    assert plan["task_1"].goal == "Search who directed A"
