from __future__ import annotations

import asyncio
import contextvars
import sys
from typing import Any

import pytest
from runtime_plans import Lab, states

from agent_forge.errors import UsageError
from agent_forge.plans import Plan, PlanInvalid, Task
from agent_forge.runtime import RunResult, execute, run_simulated, start


async def echo(task: Task, inputs: dict[str, Any]) -> Any:
    await asyncio.sleep(0)
    return {"id": task.id, "args": dict(task.args), "goal": task.goal, "inputs": inputs}


def run(plan: Any, handler: Any = echo, **settings: Any) -> RunResult:
    return asyncio.run(execute(plan, handler, **settings))


def test_inputs_are_the_results_by_dependency() -> None:
    result = run([Task("a"), Task("b"), Task("c", depends_on=["a", "b"])])
    assert set(result.tasks["c"].result["inputs"]) == {"a", "b"}
    assert result.state == "done"
    assert result.ok
    assert result.counts() == {"done": 3}
    assert result.usage.calls == 3
    assert result.usage.tokens is None


def test_references_are_resolved_before_the_handler_is_called() -> None:
    plan = [
        Task("a", "costs $15"),
        Task("b", "goal of {a.id}", action="f", args={"whole": "{a}", "text": "<{a.id}> and {nothing here}", "n": 3}),
    ]
    seen = run(plan).tasks["b"].result
    assert seen["args"]["whole"]["goal"] == "costs $15"
    assert seen["args"]["text"] == "<a> and {nothing here}"
    assert seen["goal"] == "goal of a"


def test_a_reference_that_finds_nothing_fails_its_task_alone() -> None:
    result = run([Task("a"), Task("b", args={"x": "{a.missing}"}), Task("c", depends_on=["a"])])
    assert result.tasks["b"].state == "failed"
    assert "missing" in (result.tasks["b"].error or "")
    assert result.tasks["c"].state == "done"


def test_a_plain_function_is_a_handler_too() -> None:
    assert run([Task("a"), Task("b", depends_on=["a"])], lambda task, inputs: len(inputs)).results == {"a": 0, "b": 1}


def test_an_awaitable_that_is_no_coroutine_is_awaited() -> None:
    def handler(task: Task, inputs: dict[str, Any]) -> Any:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, task.id)
        return future

    assert run([Task("a")], handler).results == {"a": "a"}


@pytest.mark.parametrize("suspend", [True, False])
def test_a_raising_handler_is_a_typed_result(suspend: bool) -> None:
    async def handler(task: Task, inputs: dict[str, Any]) -> None:
        if suspend:
            await asyncio.sleep(0)
        raise ValueError("no such city")

    result = run([Task("a"), Task("b", depends_on=["a"])], handler)
    assert result.state == "failed"
    assert result.tasks["a"].error == "ValueError: no such city"
    assert isinstance(result.tasks["a"].exception, ValueError)
    assert result.tasks["b"].state == "skipped"
    assert result.tasks["b"].started_s is None
    assert "'a'" in (result.tasks["b"].error or "")
    assert result.error == "task 'a' failed: ValueError: no such city"


def test_a_plain_function_that_raises_stop_iteration_fails_its_task() -> None:
    def handler(task: Task, inputs: dict[str, Any]) -> Any:
        return next(iter(()))

    assert run([Task("a")], handler).tasks["a"].state == "failed"


def test_continue_runs_what_depends_on_a_failure_without_its_result() -> None:
    lab = Lab({}, frozenset({"a"}))
    plan = [Task("a"), Task("b"), Task("c", depends_on=["a", "b"]), Task("d", args={"x": "{a}"})]
    seen: dict[str, Any] = {}

    async def handler(task: Task, inputs: dict[str, Any]) -> Any:
        seen[task.id] = inputs
        return await lab(task, inputs)

    result = run_simulated(execute(plan, handler, on_failure="continue"))
    assert result.tasks["c"].state == "done"
    assert set(seen["c"]) == {"b"}
    assert result.tasks["d"].state == "skipped", "a call whose argument is missing cannot be made"


def test_fail_fast_cancels_what_runs_and_starts_nothing_more() -> None:
    lab = Lab({"bad": 1.0, "slow": 50.0}, frozenset({"bad"}))
    plan = [Task("bad"), Task("slow"), Task("later", depends_on=["slow"])]
    result = run_simulated(execute(plan, lab, on_failure="fail_fast"))
    assert result.state == "failed"
    assert result.wall_s == pytest.approx(1.0)
    assert states(result) == {"bad": "failed", "slow": "cancelled", "later": "cancelled"}
    assert lab.calls == ["bad", "slow"]
    assert not lab.running


def test_a_hanging_handler_times_out_and_is_really_cancelled() -> None:
    lab = Lab({"hang": 10**9})
    result = run_simulated(execute([Task("hang"), Task("after", depends_on=["hang"]), Task("other")], lab, timeout_s=3))
    assert result.tasks["hang"].state == "timed_out"
    assert result.tasks["hang"].ended_s == pytest.approx(3.0)
    assert result.tasks["hang"].error == "no result within its limit of 3 s"
    assert result.tasks["after"].state == "skipped"
    assert result.tasks["other"].state == "done"
    assert not lab.running


def test_a_task_may_have_its_own_time_limit() -> None:
    lab = Lab({"a": 5.0, "b": 5.0})
    result = run_simulated(execute([Task("a", meta={"timeout_s": 2}), Task("b")], lab, timeout_s=6))
    assert result.tasks["a"].state == "timed_out"
    assert result.tasks["b"].state == "done"


def test_a_handler_that_swallows_its_cancellation_cannot_hang_the_run() -> None:
    async def stubborn(task: Task, inputs: dict[str, Any]) -> None:
        while True:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                if asyncio.get_running_loop().time() > 5000:  # the end of the test
                    raise

    async def scenario() -> RunResult:
        result = await execute([Task("a"), Task("b", depends_on=["a"])], stubborn, timeout_s=1, grace_s=2)
        await asyncio.sleep(9000)
        return result

    result = run_simulated(scenario())
    assert result.tasks["a"].state == "timed_out"
    assert result.wall_s == pytest.approx(3.0)
    assert result.warnings == ["task 'a' ignored its cancellation and was left running"]


def test_a_handler_that_answers_after_its_limit_has_timed_out() -> None:
    async def late(task: Task, inputs: dict[str, Any]) -> str:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            return "too late"
        return "never"

    result = run_simulated(execute([Task("a")], late, timeout_s=1))
    assert result.tasks["a"].state == "timed_out"
    assert result.tasks["a"].result is None


def test_what_one_handler_sets_in_its_context_no_other_sees() -> None:
    flavour = contextvars.ContextVar("flavour", default="none")
    seen: dict[str, str] = {}

    async def handler(task: Task, inputs: dict[str, Any]) -> None:
        seen[task.id] = flavour.get()
        flavour.set(task.id)
        if task.id != "a":
            await asyncio.sleep(0)
        seen[f"{task.id} later"] = flavour.get()

    async def scenario() -> None:
        flavour.set("caller")
        await execute([Task("a"), Task("b", depends_on=["a"]), Task("c", depends_on=["b"])], handler)
        assert flavour.get() == "caller"

    asyncio.run(scenario())
    assert seen == {"a": "caller", "b": "caller", "c": "caller", "a later": "a", "b later": "b", "c later": "c"}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.timeout came with Python 3.11")
def test_timeouts_inside_of_handlers_are_their_own() -> None:
    async def handler(task: Task, inputs: dict[str, Any]) -> str:
        try:
            async with asyncio.timeout(1):
                await asyncio.sleep(100)
        except TimeoutError:
            return "noticed"
        return "missed"

    result = run_simulated(execute([Task("a"), Task("b", depends_on=["a"]), Task("c")], handler))
    assert set(result.results.values()) == {"noticed"}
    assert result.wall_s == pytest.approx(2.0)


def test_cancel_scopes_of_anyio_work_inside_of_handlers() -> None:
    anyio = pytest.importorskip("anyio")

    async def handler(task: Task, inputs: dict[str, Any]) -> str:
        with anyio.move_on_after(0.01) as scope:
            await anyio.sleep(100)
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 0)
        return "cut" if scope.cancelled_caught else "whole"

    result = run([Task("a"), Task("b", depends_on=["a"]), Task("c")], handler)
    assert set(result.results.values()) == {"cut"}


def test_a_handler_that_cancels_itself_ends_only_its_own_task() -> None:
    async def handler(task: Task, inputs: dict[str, Any]) -> str:
        if task.id == "a":
            current = asyncio.current_task()
            assert current is not None
            current.cancel()
            await asyncio.sleep(1)
        return task.id

    result = run([Task("a"), Task("b"), Task("c", depends_on=["b"]), Task("d", depends_on=["a"])], handler)
    assert states(result) == {"a": "cancelled", "b": "done", "c": "done", "d": "skipped"}


def test_the_caller_being_cancelled_leaves_nothing_running() -> None:
    lab = Lab({"a": 50.0})

    async def scenario() -> None:
        waiting = asyncio.ensure_future(execute([Task("a"), Task("b", depends_on=["a"])], lab))
        await asyncio.sleep(1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not lab.running
        assert len(asyncio.all_tasks()) == 1

    run_simulated(scenario())


def test_one_task_can_be_cancelled_by_itself() -> None:
    lab = Lab({"a": 50.0, "b": 3.0})

    async def scenario() -> RunResult:
        running = start([Task("a"), Task("b"), Task("c", depends_on=["a"]), Task("d", depends_on=["b"])], lab)
        await asyncio.sleep(1)
        running.cancel_task("a")
        running.cancel_task("d")
        with pytest.raises(UsageError):
            running.cancel_task("nobody")
        await asyncio.sleep(1)
        running.cancel_task("a")
        return await running.result()

    assert states(run_simulated(scenario())) == {"a": "cancelled", "b": "done", "c": "skipped", "d": "cancelled"}


def test_a_group_is_done_when_its_leaves_are() -> None:
    plan = Plan(
        [
            Task("group"),
            Task("one", parent="group"),
            Task("two", parent="group", depends_on=["one"]),
            Task("after", "use {group.two}", depends_on=["group"]),
        ]
    )
    lab = Lab({})
    seen: dict[str, Any] = {}

    async def handler(task: Task, inputs: dict[str, Any]) -> str:
        seen[task.id] = (task.goal, inputs)
        return await lab(task, inputs)

    result = run_simulated(execute(plan, handler))
    assert lab.calls == ["one", "two", "after"]
    assert result.tasks["group"].state == "done"
    assert result.tasks["group"].result == {"one": "result of one", "two": "result of two"}
    assert (result.tasks["group"].started_s, result.tasks["group"].ended_s) == (0.0, pytest.approx(2.0))
    assert seen["after"][0] == "use result of two"
    assert seen["after"][1]["group"] == result.tasks["group"].result
    assert list(result.tasks) == ["group", "one", "two", "after"]


def test_a_group_with_a_failed_leaf_has_failed() -> None:
    plan = [Task("g"), Task("a", parent="g"), Task("b", parent="g", depends_on=["a"]), Task("c", depends_on=["g"])]
    result = run_simulated(execute(plan, Lab({}, frozenset({"a"}))))
    assert states(result) == {"g": "failed", "a": "failed", "b": "skipped", "c": "skipped"}


def test_known_results_are_not_worked_out_again() -> None:
    lab = Lab({})
    plan = [Task("a"), Task("b", depends_on=["a"]), Task("c", depends_on=["b"])]
    result = run_simulated(execute(plan, lab, known={"a": 1, "b": 2, "elsewhere": 3}))
    assert lab.calls == ["c"]
    assert result.tasks["a"].reused
    assert result.tasks["a"].result == 1
    assert result.state == "done"
    everything = run_simulated(execute(plan, lab, known={"a": 1, "b": 2, "c": 3}))
    assert everything.state == "done"
    assert lab.calls == ["c"]


def test_a_faulty_plan_is_refused_before_anything_runs() -> None:
    lab = Lab({})
    with pytest.raises(PlanInvalid) as caught:
        run([Task("a", depends_on=["b"]), Task("b", depends_on=["a"])], lab)
    assert caught.value.codes == ["cycle"]
    assert not lab.calls
    with pytest.raises(UsageError):
        run(3)


@pytest.mark.parametrize(
    "settings",
    [
        {"on_failure": "panic"},
        {"order": "random"},
        {"timeout_s": 0},
        {"concurrency": 0},
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        run([Task("a")], **settings)


def test_handlers_that_never_wait_do_not_starve_the_event_loop() -> None:
    ticks = 0

    async def scenario() -> RunResult:
        async def clock() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        beside = asyncio.ensure_future(clock())
        result = await execute([Task(f"t{n}") for n in range(3000)], lambda task, inputs: None)
        beside.cancel()
        return result

    assert asyncio.run(scenario()).state == "done"
    assert ticks > 5


def test_a_chain_of_many_thousand_tasks_needs_no_deep_stack() -> None:
    count = 5000
    tasks = [
        Task(f"t{n}", action="same", args={"x": 1}, depends_on=[f"t{n - 1}"] if n else [], meta={"k": 1})
        for n in range(count)
    ]
    result = run(tasks, lambda task, inputs: 7)
    assert result.counts() == {"done": count}


def test_the_result_as_json() -> None:
    document = run([Task("a"), Task("b")], lambda task, inputs: object() if task.id == "b" else 1).as_dict()
    assert set(document) >= {"run", "state", "wall_s", "critical_path_s", "tasks"}
    assert set(document["tasks"]["a"]) == {"state", "started_s", "ended_s", "result", "error"}
    assert document["tasks"]["a"]["result"] == 1
    assert document["tasks"]["b"]["result"].startswith("<object")
    assert repr(run([Task("a")])).startswith("RunResult(")


def test_a_broken_executor_ends_the_run_instead_of_hanging(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> RunResult:
        running = start([Task("a"), Task("b", depends_on=["a"])], echo, grace_s=0.05)
        running._run.returned = None  # type: ignore[assignment]
        return await running.result()

    result = asyncio.run(asyncio.wait_for(scenario(), 20))
    assert result.state == "failed"
    assert isinstance(result.exception, TypeError)
