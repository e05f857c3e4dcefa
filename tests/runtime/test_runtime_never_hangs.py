"""What a handler, a stream or a plan may do wrong so that a careless executor would wait for ever."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from runtime_plans import states

from agent_forge.errors import ToolTimeout, UsageError
from agent_forge.plans import Task
from agent_forge.runtime import Budget, Journal, RunResult, execute, start
from agent_forge.traces import Recorder, Store


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words for it")


async def stubborn() -> None:
    while True:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            continue


def run(plan: Any, handler: Any, **settings: Any) -> RunResult:
    async def bounded() -> RunResult:
        return await asyncio.wait_for(execute(plan, handler, **settings), 20)

    return asyncio.run(bounded())


def test_an_exception_that_cannot_say_what_it_is_fails_its_task(tmp_path: Path) -> None:
    async def handler(task: Task, inputs: dict[str, Any]) -> str:
        await asyncio.sleep(0)
        if task.id == "a":
            raise Unspeakable
        return task.id

    recorder = Recorder(Store.open(tmp_path))
    result = run([Task("a"), Task("b", depends_on=["a"]), Task("c")], handler, recorder=recorder)
    recorder.close()
    assert states(result) == {"a": "failed", "b": "skipped", "c": "done"}
    assert result.tasks["a"].error == "Unspeakable: (its message cannot be shown)"
    assert isinstance(result.tasks["a"].exception, Unspeakable)


def test_asyncio_run_does_not_wait_for_a_handler_that_was_left_behind() -> None:
    async def handler(task: Task, inputs: dict[str, Any]) -> None:
        await (stubborn() if task.id == "a" else asyncio.sleep(0))

    result = run([Task("a"), Task("b")], handler, timeout_s=0.05, grace_s=0.05)
    assert (result.tasks["a"].state, result.tasks["b"].state) == ("timed_out", "done")


def test_a_stalled_stream_that_ignores_its_cancellation_is_left_behind() -> None:
    async def source() -> AsyncIterator[Task]:
        yield Task("a")
        yield Task("asked", meta={"approval": True})
        await stubborn()

    async def approve(task: Task) -> bool:
        await asyncio.sleep(0.5)
        return True

    async def handler(task: Task, inputs: dict[str, Any]) -> str:
        return task.id

    async def main() -> RunResult:
        given = source()
        running = start(given, handler, stream_idle_s=0.05, grace_s=0.05, approve=approve)
        found = await asyncio.wait_for(running.result(), 20)
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)  # it cannot be closed either
        return found

    result = asyncio.run(main())
    assert [fault.code for fault in result.faults] == ["malformed"]
    assert states(result) == {"a": "done", "asked": "done"}
    assert result.warnings == ["a stream or a callback ignored its cancellation and was left running"]


@pytest.mark.parametrize("limit", [{}, {"concurrency": 1}], ids=["unlimited", "limited"])
@pytest.mark.parametrize("meta", [{"retries": "x"}, {"retries": -1}, {"timeout_s": "soon"}, {"timeout_s": 0}])
def test_meta_that_cannot_be_used_fails_its_task_alone(meta: dict[str, Any], limit: dict[str, Any]) -> None:
    async def handler(task: Task, inputs: dict[str, Any]) -> str:
        return task.id

    result = run([Task("a", meta=meta), Task("b", depends_on=["a"]), Task("c")], handler, **limit)
    assert states(result) == {"a": "failed", "b": "skipped", "c": "done"}
    assert next(iter(meta)) in (result.tasks["a"].error or "")


def test_the_time_limit_of_a_tool_itself_is_a_time_out() -> None:
    async def handler(task: Task, inputs: dict[str, Any]) -> None:
        raise ToolTimeout("no result within 1 s", where="tool 'x'")

    assert run([Task("a")], handler).tasks["a"].state == "timed_out"


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), [1, {"x": float("inf")}]], ids=["nan", "inf", "inside"])
def test_a_number_that_json_does_not_have(value: Any, tmp_path: Path) -> None:
    async def handler(task: Task, inputs: dict[str, Any]) -> Any:
        return value

    free = run([Task("a")], handler)
    assert free.ok
    json.dumps(free.as_dict(), allow_nan=False)
    journal = Journal.open(tmp_path)
    kept = run([Task("a"), Task("b", depends_on=["a"])], handler, journal=journal)
    journal.close()
    assert (kept.tasks["a"].state, kept.tasks["b"].state) == ("failed", "skipped")
    assert "not JSON" in (kept.tasks["a"].error or "")


def test_a_result_without_a_repr_is_reported_all_the_same() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise ValueError("no")

    async def handler(task: Task, inputs: dict[str, Any]) -> Any:
        return Shy()

    assert "Shy" in run([Task("a")], handler).as_dict()["tasks"]["a"]["result"]


def test_a_fault_inside_of_the_executor_raises_rather_than_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        running = start([Task("a")], lambda task, inputs: 1)
        monkeypatch.setattr(running._run, "returned", None)
        monkeypatch.setattr(running._run.board, "under_way", None)
        with pytest.raises(TypeError):
            await asyncio.wait_for(running.result(), 20)

    asyncio.run(main())


def test_a_budget_is_a_number() -> None:
    with pytest.raises(UsageError, match="cost"):
        Budget(cost=float("nan"))
