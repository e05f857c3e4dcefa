"""Streamed plans, and plans that change while they run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from runtime_plans import Lab, states

from agent_forge.plans import Plan, Task
from agent_forge.runtime import RunResult, TaskResult, execute, run_simulated, start


async def slowly(tasks: Iterable[Any], each_s: float = 1.0) -> AsyncIterator[Any]:
    for task in tasks:
        await asyncio.sleep(each_s)
        yield task


def codes(result: RunResult) -> list[str]:
    return [fault.code for fault in result.faults]


def test_tasks_start_while_the_plan_is_still_being_written() -> None:
    lab = Lab({"a": 0.5, "b": 0.5, "c": 0.5})
    plan = [Task("a"), Task("b", depends_on=["a"]), Task("c", depends_on=["b"])]
    result = run_simulated(execute(slowly(plan), lab))
    assert [lab.spans[name] for name in "abc"] == [(1.0, 1.5), (2.0, 2.5), (3.0, 3.5)]
    assert result.state == "done"
    assert result.plan == Plan(plan)
    assert result.critical_path_s == pytest.approx(1.5)


def test_a_child_starts_when_its_parent_ends_even_while_the_planner_pauses() -> None:
    async def pausing() -> AsyncIterator[Task]:
        yield Task("a")
        yield Task("b", depends_on=["a"])
        await asyncio.sleep(100)
        yield Task("c")

    lab = Lab({"a": 0.2})
    run_simulated(execute(pausing(), lab))
    assert lab.spans["b"][0] == pytest.approx(0.2)


def test_a_task_may_come_before_what_it_needs() -> None:
    lab = Lab({})
    result = run_simulated(execute(slowly([Task("late", args={"x": "{early}"}), Task("early")]), lab))
    assert lab.calls == ["early", "late"]
    assert result.state == "done"


@pytest.mark.parametrize(
    ("tasks", "code", "expected"),
    [
        ([Task("a"), Task("b", depends_on=["ghost"])], "unknown_dependency", {"a": "done", "b": "failed"}),
        (
            [Task("a"), Task("b", depends_on=["c"]), Task("c", depends_on=["b"]), Task("d", depends_on=["c"])],
            "cycle",
            {"a": "done", "b": "failed", "c": "skipped", "d": "skipped"},
        ),
        ([Task("a", depends_on=["a"])], "cycle", {"a": "failed"}),
        ([Task("a"), Task("a", "again"), Task("b", depends_on=["a"])], "duplicate_id", {"a": "done", "b": "done"}),
        ([Task("a"), "no task at all"], "malformed", {"a": "done"}),
        ([Task("a", args={"x": "{ghost.y}"})], "unknown_dependency", {"a": "failed"}),
        ([Task("a", parent="ghost")], "unknown_dependency", {"a": "failed"}),
        ([], "empty_plan", {}),
    ],
)
@pytest.mark.parametrize("slots", [None, 1])
def test_a_faulty_stream_ends_in_a_typed_result(
    tasks: list[Any], code: str, expected: dict[str, str], slots: int | None
) -> None:
    result = run_simulated(execute(slowly(tasks), Lab({}), concurrency=slots))
    assert result.state == "failed"
    assert code in codes(result)
    assert states(result) == expected
    assert result.error
    assert result.critical_path_s <= result.wall_s + 1e-9


def test_a_stream_that_raises_ends_in_a_typed_result_and_keeps_what_was_done() -> None:
    async def broken() -> AsyncIterator[Task]:
        yield Task("a")
        yield Task("b", depends_on=["a"])
        yield Task("c", depends_on=["never written"])
        raise ConnectionError("the model went away")

    result = run_simulated(execute(broken(), Lab({})))
    assert result.state == "failed"
    assert states(result) == {"a": "done", "b": "done", "c": "failed"}
    assert result.error == "the plan broke off: ConnectionError: the model went away"
    assert isinstance(result.exception, ConnectionError)


def test_a_stream_that_stalls_is_cut_off() -> None:
    closed = False

    async def stalling() -> AsyncIterator[Task]:
        nonlocal closed
        try:
            yield Task("a")
            await asyncio.sleep(10**9)
        finally:
            closed = True

    result = run_simulated(execute(stalling(), Lab({}), stream_idle_s=30))
    assert result.state == "failed"
    assert result.wall_s == pytest.approx(30)
    assert "nothing came for 30 s" in (result.error or "")
    assert closed
    assert states(result) == {"a": "done"}


def test_cancelling_a_streamed_run_closes_the_stream() -> None:
    closed = False

    async def endless() -> AsyncIterator[Task]:
        nonlocal closed
        try:
            for number in range(10**9):
                await asyncio.sleep(1)
                yield Task(f"t{number}")
        finally:
            closed = True

    async def scenario() -> RunResult:
        lab = Lab({f"t{n}": 5.0 for n in range(100)})
        running = start(endless(), lab)
        await asyncio.sleep(4.5)
        running.cancel()
        result = await running.result()
        assert closed
        assert not lab.running
        assert len(asyncio.all_tasks()) == 1
        return result

    result = run_simulated(scenario())
    assert result.state == "cancelled"
    assert len(result.tasks) == 4


def test_fail_fast_ends_a_streamed_run() -> None:
    lab = Lab({}, frozenset({"a"}))
    result = run_simulated(execute(slowly([Task("a"), Task("b"), Task("c")], 5), lab, on_failure="fail_fast"))
    assert result.state == "failed"
    assert states(result) == {"a": "failed"}


def test_what_comes_after_a_failure_it_needs_is_skipped() -> None:
    lab = Lab({}, frozenset({"a"}))
    plan = [Task("a"), Task("x"), Task("y"), Task("b", depends_on=["a"])]
    assert states(run_simulated(execute(slowly(plan), lab)))["b"] == "skipped"
    lab = Lab({}, frozenset({"a"}))
    assert states(run_simulated(execute(slowly(plan), lab, on_failure="continue")))["b"] == "done"


def test_known_results_hold_for_streams_too() -> None:
    lab = Lab({})
    result = run_simulated(execute(slowly([Task("a"), Task("b", depends_on=["a"])]), lab, known={"a": 1}))
    assert lab.calls == ["b"]
    assert result.state == "done"


def test_groups_in_a_stream() -> None:
    tasks = [
        Task("one", parent="early"),
        Task("early", depends_on=["first"]),
        Task("first"),
        Task("late", meta={"group": True}),
        Task("after", "{early.one} {late.two}", depends_on=["late"]),
        Task("two", parent="late"),
        Task("three", parent="late", depends_on=["two"]),
    ]
    lab = Lab({})
    result = run_simulated(execute(slowly(tasks), lab))
    assert result.state == "done"
    assert set(lab.calls) == {"first", "one", "two", "three", "after"}
    assert lab.calls[-1] == "after"
    assert lab.calls.index("first") < lab.calls.index("one")
    assert result.tasks["late"].result == {"two": "result of two", "three": "result of three"}


def test_a_waiting_task_becomes_a_group_and_a_started_one_cannot() -> None:
    tasks = [Task("g", depends_on=["a"]), Task("child", parent="g"), Task("a"), Task("end", depends_on=["g"])]
    lab = Lab({})
    result = run_simulated(execute(slowly(tasks), lab))
    assert lab.calls == ["a", "child", "end"]
    assert result.state == "done"
    result = run_simulated(execute(slowly([Task("g"), Task("child", parent="g")]), Lab({})))
    assert result.state == "failed"
    assert "malformed" in codes(result)
    assert result.tasks["child"].state == "failed"


def test_a_failed_child_of_a_streamed_group() -> None:
    tasks = [Task("a", parent="g"), Task("g"), Task("end", depends_on=["g"])]
    result = run_simulated(execute(slowly(tasks), Lab({}, frozenset({"a"}))))
    assert states(result) == {"a": "failed", "g": "failed", "end": "skipped"}


# Plans that change


def test_new_work_goes_between_a_finished_task_and_what_waits() -> None:
    lab = Lab({})

    async def update(plan: Plan, name: str, outcome: TaskResult) -> Plan | None:
        if name != "find":
            return None
        assert outcome.result == "result of find"
        return Plan([Task("find"), Task("check", depends_on=["find"]), Task("write", depends_on=["check"])])

    result = run_simulated(execute([Task("find"), Task("write", depends_on=["find"])], lab, update=update))
    assert lab.calls == ["find", "check", "write"]
    assert result.state == "done"
    assert list(result.tasks) == ["find", "check", "write"]


def test_a_failed_task_is_replaced_and_finished_work_is_kept() -> None:
    lab = Lab({"slow": 9.0}, frozenset({"search"}))

    async def update(plan: Plan, name: str, outcome: TaskResult) -> Plan | None:
        if outcome.state != "failed":
            return None
        kept = [task for task in plan if task.id != "answer"]
        return Plan([*kept, Task("other source"), Task("answer", depends_on=["slow", "other source"])])

    plan = [Task("slow"), Task("search"), Task("answer", depends_on=["slow", "search"])]
    result = run_simulated(execute(plan, lab, update=update))
    assert states(result) == {"slow": "done", "search": "failed", "other source": "done", "answer": "done"}
    assert lab.calls.count("slow") == 1
    assert result.wall_s == pytest.approx(10.0)


def test_an_update_that_touches_started_work_changes_nothing() -> None:
    for changed in ([Task("b", depends_on=["a"])], [Task("a", "other"), Task("b", depends_on=["a"])]):
        if len(changed) == 1:
            changed = [Task("b"), Task("c")]
        lab = Lab({})

        async def update(plan: Plan, name: str, outcome: TaskResult, new: list[Task] = changed) -> Plan | None:
            return Plan(new)

        result = run_simulated(execute([Task("a"), Task("b", depends_on=["a"])], lab, update=update))
        assert result.state == "done"
        assert lab.calls == ["a", "b"]
        assert "which has started" in result.warnings[0]


def test_an_update_that_raises_is_a_warning() -> None:
    async def update(plan: Plan, name: str, outcome: TaskResult) -> Plan | None:
        raise RuntimeError("no idea")

    result = run_simulated(execute([Task("a"), Task("b", depends_on=["a"])], Lab({}), update=update))
    assert result.state == "done"
    assert len(result.warnings) == 2


def test_skipped_work_can_come_back_in_another_shape() -> None:
    lab = Lab({"x": 5.0}, frozenset({"a"}))

    async def update(plan: Plan, name: str, outcome: TaskResult) -> Plan | None:
        if name != "x":
            return None
        return Plan([Task("a"), Task("x"), Task("g"), Task("b", parent="g", depends_on=["x"])])

    result = run_simulated(execute([Task("a"), Task("b", depends_on=["a"]), Task("x")], lab, update=update))
    assert states(result) == {"a": "failed", "x": "done", "g": "done", "b": "done"}


def test_partial_replan_with_the_results_so_far() -> None:
    lab = Lab({}, frozenset({"b"}))
    first = run_simulated(execute([Task("a"), Task("b", depends_on=["a"])], lab))
    again = Lab({})
    second = run_simulated(execute([Task("a"), Task("b2", depends_on=["a"])], again, known=first.results))
    assert second.state == "done"
    assert again.calls == ["b2"]
