"""The line format as models write it: taken whole, or refused with the line and the reason."""

from __future__ import annotations

import pytest

from agent_forge.plans import Plan, PlanInvalid, parse_plan


def plan_of(*lines: str) -> Plan:
    return parse_plan("\n".join(["<plan>", *lines, "</plan>"]))


def edges(plan: Plan) -> dict[str, tuple[str, ...]]:
    return {
        name.removeprefix("task_"): tuple(n.removeprefix("task_") for n in needs)
        for name, needs in plan.dependencies.items()
    }


FIRST_TWO = ["Task 1: a | Dependencies: none", "Task 2: b | Dependencies: none"]


@pytest.mark.parametrize(
    "written",
    [
        "Task 1, Task 2",
        "task 1, TASK 2",
        "Task 1 and Task 2",
        "Task 1, and Task 2",
        "Task 1 & Task 2",
        "Task 1; Task 2;",
        "Task 1 Task 2.",
        "Tasks 1, 2",
        "tasks 1 and 2",
        "Tasks 1-2",
        "Task 1 to Task 2",
        "T1, T2",
        "T1–T2",
        "#1 + #2",
        "1,2",
        "[1, 2]",
        "(Task 1, Task 2)",
        "task_1, task-2",
        "Task #1, Task #2",
        "**Task 1**, `Task 2`",
        "Step 1, Subtask 2",
        "Task 01, Task 02",
        '"task_1", "task_2"',
        "Task 1, Task 1, Task 2",
    ],
)
def test_ways_to_write_two_dependencies(written: str) -> None:
    plan = plan_of(*FIRST_TWO, f"Task 3: c | Dependencies: {written}")
    assert edges(plan)["3"] == ("1", "2")


@pytest.mark.parametrize(
    "written", ["none", "None", "NONE.", "-", "—", "n/a", "N/A", "[]", "()", "(none)", "nil", "null", "no", "nothing"]
)
def test_ways_to_write_no_dependencies(written: str) -> None:
    assert edges(plan_of(*FIRST_TWO, f"Task 3: c | Dependencies: {written}"))["3"] == ()


@pytest.mark.parametrize(
    "line",
    [
        "Task 3: c | Dependencies: Task 1",
        "task 3: c | dependencies: task 1",
        "TASK 3: c | DEPENDENCIES: TASK 1",
        "- Task 3: c | Dependencies: Task 1",
        "* Task 3: c | Dependencies: Task 1",
        "• Task 3: c | Dependencies: Task 1",
        "3. Task 3: c | Dependencies: Task 1",
        "1) Task 3: c | Dependencies: Task 1",
        "- [ ] Task 3: c | Dependencies: Task 1",
        "**Task 3**: c | Dependencies: Task 1",
        "**Task 3:** c | **Dependencies:** Task 1",
        "**Task 3: c** | Dependencies: Task 1",
        "- **Task 3** - c | Dependencies: Task 1",
        "### Task 3: c | Dependencies: Task 1",
        "> Task 3: c | Dependencies: Task 1",
        "`Task 3`: c | Dependencies: Task 1",
        "T3: c | Dependencies: T1",
        "t3. c | deps: t1",
        "#3: c | Dependencies: #1",
        "3. c | Dependencies: 1",
        "3) c | Depends on: 1",
        "Step 3: c | Requires: Step 1",
        "Task_3: c | depends_on: task_1".replace("depends_on", "depends on"),
        "Task 3 : c | Dependencies = Task 1",
        "Task 3 – c | Dependencies: Task 1",
        "Task 3： c | Dependencies: Task 1",
        "\tTask 3:\tc\t|\tDependencies:\tTask 1",
        "Task 3: c (depends on Task 1)",
        "Task 3: c [dependencies: Task 1]",
        "Task 3: c - Dependencies: T1",
        "Task 3: c, depends on Task 1.",
        "Task 3: c. Dependencies: Task 1",
        "Task 3: c\n- Dependencies: Task 1",
        "Task 3: c\n  * **Dependencies**: Task 1",
        "Task 3: c\n  Dependencies: Task 1\n",
        "Task 3: c\r\n- Dependencies: Task 1\r",
    ],
)
def test_ways_to_write_a_task(line: str) -> None:
    plan = plan_of(*FIRST_TWO, line)
    assert edges(plan) == {"1": (), "2": (), "3": ("1",)}
    assert plan["task_3"].goal == "c"


@pytest.mark.parametrize(
    "text",
    [
        "Sure, here is the plan!\n<plan>\nTask 1: a | Dependencies: none\n</plan>\nAnything else?",
        "<think>\nTask 9: thought | Dependencies: none\n</think>\n<plan>\nTask 1: a | Dependencies: none\n</plan>",
        "<THINK>x</THINK><PLAN>Task 1: a | Dependencies: none</PLAN>",
        "<think>never closed\n<plan>\nTask 1: a | Dependencies: none\n</plan>",
        '<plan version="1">\n\n\nTask 1: a | Dependencies: none\n\n</plan >',
        "<plan>\nTask 1: a | Dependencies: none",
        "<plan>\n```\n## Plan\nTask 1: a | Dependencies: none\n---\n```\n</plan>",
        "Here are the tasks:\n\nTask 1: a | Dependencies: none\n\nThat is all.",
        "<think>hm</think>\nTask 1: a | Dependencies: none",
        "# Plan\nTask 1: a",
        "A page begins with <!DOCTYPE html>.\n<plan>\nTask 1: a | Dependencies: none\n</plan>",
        "\ufeff<plan>\nTask 1: a | Dependencies: none\n</plan>",
    ],
)
def test_text_around_the_plan_is_passed_over(text: str) -> None:
    plan = parse_plan(text)
    assert [(task.id, task.goal) for task in plan] == [("task_1", "a")]


def test_a_bar_in_the_goal_stays_there() -> None:
    plan = plan_of("Task 1: compare a | b || c | Dependencies: none", 'Task 2: "a | Limit: 3" | Dependencies: none')
    assert [task.goal for task in plan] == ["compare a | b || c", "a | Limit: 3"]


def test_fields_beside_the_plain_ones() -> None:
    plan = plan_of(
        "Task 1: all | Dependencies: none",
        'Task 2: a | Dependencies: none | Action: search("x | y") | Parent: Task 1 | Meta: {"agent": "qa|x"}',
        "Task 3: b | For each: task_2.rows | Limit: 5 | Action: compare({item}, 2) | Dependencies: none",
        'Task 4: c\n  Action: "odd name"\n  Args: {"q": "a | Limit: 3"}\n  Dependencies: Task 3',
        "Task 5: d | Action: wait | Dependencies: Task 1",
    )
    assert plan["task_2"].args == {"queries": ["x", "y"]}
    assert plan["task_2"].parent == "task_1"
    assert plan["task_2"].meta == {"agent": "qa|x"}
    assert (plan["task_3"].for_each, plan["task_3"].limit) == ("{task_2.rows}", 5)
    assert plan["task_3"].args == {"args": ["{item}", 2]}
    assert (plan["task_4"].action, plan["task_4"].args) == ("odd name", {"q": "a | Limit: 3"})
    assert plan["task_5"].action == "wait"
    assert edges(plan) == {"2": (), "3": ("2",), "4": ("3",), "5": ("2",)}


def test_words_as_ids_whatever_their_case() -> None:
    plan = plan_of(
        "s1: a | Dependencies: none", "Task fetch: b | Dependencies: S1", 'Task "a b": c | Dependencies: fetch, "s1"'
    )
    assert plan.dependencies == {"s1": (), "fetch": ("s1",), "a b": ("fetch", "s1")}


def test_references_follow_the_names_of_the_format() -> None:
    plan = plan_of("Task 1: a", "Task 2: of {T1} and {Task 1.rows[0]} | Dependencies: none")
    assert plan["task_2"].goal == "of {task_1} and {task_1.rows[0]}"
    assert edges(plan)["2"] == ("1",)


def test_a_goal_may_run_over_several_lines() -> None:
    plan = plan_of(
        "Task 1: find", "  the thing", "and its parts | Dependencies: none", "Task 2: prose that depends on luck"
    )
    assert [task.goal for task in plan] == ["find\nthe thing\nand its parts", "prose that depends on luck"]


def test_numbered_parts() -> None:
    assert edges(plan_of("Task 1: a", "Task 1.1: b | Dependencies: Task 1", "Task 2: c | Dependencies: 1.1")) == {
        "1": (),
        "1_1": ("1",),
        "2": ("1_1",),
    }


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("Task 3: c | Dependencies: Task 9", "unknown_dependency", "depends on 'task_9'"),
        ("Task 3: c | Dependencies: the first one", "malformed", "cannot be read"),
        ("Task 3: c | Dependencies: Task 1 (for its name)", "malformed", "cannot be read"),
        ("Task 3: c | Dependencies: all previous tasks", "malformed", "'all'"),
        ("Task 3: c | Dependencies: none, Task 1", "malformed", "'none'"),
        ("Task 3: c | Dependencies: Task 1,", "malformed", "breaks off"),
        ("Task 3: c | Dependencies: Task 1 and", "malformed", "breaks off"),
        ("Task 3: c | Dependencies:", "malformed", "empty"),
        ("Task 3: c | Dependencies: ,", "malformed", "names no task"),
        ("Task 3: c | Dependencies: Task 5-2", "malformed", "range"),
        ("Task 3: c | Dependencies: 1-99999", "malformed", "range"),
        ('Task 3: c | Dependencies: "\\x"', "malformed", "JSON string"),
        ('Task "\\x": c | Dependencies: none', "malformed", "JSON string"),
        ("Task 3: c | Dependencies: none | Dependencies: Task 1", "malformed", "twice"),
        ("Task 3: c (depends on Task 1 or so)", "malformed", "'or'"),
        ("Task 3: c | Limit: many | Dependencies: none", "malformed", "whole number"),
        ("Task 3: c | Args: [1] | Dependencies: none", "malformed", "object"),
        ("Task 3: c | Args: {x | Dependencies: none", "malformed", "not JSON"),
        ("Task 3: c | Action: f(x | Dependencies: none", "malformed", "not a value"),
        ("Task 3: c | Parent: Task 1, Task 2 | Dependencies: none", "malformed", "not one task"),
        ("Task 3: c | Dependencies: none | Args: {} more", "malformed", "cannot be read"),
        ("Task 3 c | Dependencies: none", "malformed", "colon"),
        ("- c without a number | Dependencies: none", "malformed", "is not a task"),
        ("- one more thing", "malformed", "is not a task"),
        ("and then we are done", "malformed", "is not a task"),
        ("- Dependencies: Task 1", "malformed", "still open"),
        ("Task 2: again | Dependencies: none", "duplicate_id", "more than one"),
        ("Task 3: c | Dependencies: Task 3", "cycle", "task_3 → task_3"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(line: str, code: str, says: str) -> None:
    with pytest.raises(PlanInvalid) as refused:
        plan_of(*FIRST_TWO, line)
    fault = refused.value.errors[0]
    assert (fault.code, fault.line) == (code, 4)
    assert says in fault.message


def test_nobody_is_blamed_for_depending_on_a_task_that_could_not_be_read() -> None:
    with pytest.raises(PlanInvalid) as refused:
        plan_of("Task 1: a | Dependencies: of course", "Task 2: b {task_1} | Dependencies: Task 1")
    assert [(fault.code, fault.line) for fault in refused.value.errors] == [("malformed", 2)]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "empty_plan"),
        (" \n ", "empty_plan"),
        ("<plan>", "empty_plan"),
        ("<plan>\n</plan>", "empty_plan"),
        ("<plan>\n<think>x</think></plan>", "malformed"),
        ("I am sorry, I cannot.", "malformed"),
        ("<think>for ever", "malformed"),
        ("<plan>Task 1: a | Dependencies: none</plan><plan>Task 2: b | Dependencies: none</plan>", "malformed"),
        ("<plan>Task 1: about </plan> | Dependencies: none\n</plan>", "malformed"),
        ("<plan>\nTask 1: a | Dependencies: none\nTask 2: b | Depend", "malformed"),
        ("<plan>\nTask 1: a | Dependencies: none</plan></plan>", "malformed"),
    ],
)
def test_texts_without_one_whole_plan(text: str, code: str) -> None:
    with pytest.raises(PlanInvalid) as refused:
        parse_plan(text)
    assert refused.value.codes == [code]


def test_too_many_tasks_and_too_much_text() -> None:
    rows = [f"Task {number}: x | Dependencies: none" for number in range(10_001)]
    with pytest.raises(PlanInvalid) as refused:
        plan_of(*rows)
    assert refused.value.codes == ["too_large"]
    with pytest.raises(PlanInvalid) as refused:
        parse_plan("\n".join(rows))
    assert refused.value.codes == ["too_large"]
    with pytest.raises(PlanInvalid) as refused:
        parse_plan("<plan>\nTask 1: " + "x" * 9_000_000)
    assert refused.value.codes == ["too_large"]
    assert len(plan_of(*rows[:10_000])) == 10_000


@pytest.mark.parametrize(
    "tail",
    [
        "| Dependecies: Task 1",
        "| Needs: T1",
        "| Blocked by: Task 1 and Task 1",
        "| **Dependencies (tasks):** #1",
        "(Dependecies: Task 1)",
        "\n  Waits for: Task 1",
        "| After: Task 1 | Limit: 3",
    ],
)
def test_a_dependency_under_a_name_that_is_not_known_is_refused_not_lost(tail: str) -> None:
    with pytest.raises(PlanInvalid) as refused:
        parse_plan(f"<plan>\nTask 1: look | Dependencies: none\nTask 2: tell {tail}\n</plan>")
    (fault,) = refused.value.errors
    assert (fault.code, fault.task) == ("malformed", "task_2")
    assert "Dependencies:" in fault.message


@pytest.mark.parametrize(
    "tail",
    [
        "| depends_on: Task 1",
        "| Depends-On: 1",
        "[depends: T1]",
        "(requires Task 1)",
        "(after: Task 1)",
        "{depends: 1}",
    ],
)
def test_more_names_of_the_dependencies(tail: str) -> None:
    plan = parse_plan(f"<plan>\nTask 1: look | Dependencies: none\nTask 2: tell {tail}\n</plan>")
    assert (plan["task_2"].goal, plan["task_2"].depends_on) == ("tell", ("task_1",))


@pytest.mark.parametrize(
    "goal", ["sort by size | order: largest first", "compare (focus: price)", "cat a | wc: lines", "see (after lunch)"]
)
def test_colons_in_a_goal_are_text(goal: str) -> None:
    assert parse_plan(f"<plan>\nTask 1: {goal}\n</plan>")["task_1"].goal == goal
