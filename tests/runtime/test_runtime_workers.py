from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from agent_forge.errors import UsageError
from agent_forge.plans import Task
from agent_forge.runtime import Inline, Processes, RunResult, Threads, WorkerDied, execute
from agent_forge.runtime.workers import RemoteError, reference

FLAVOUR = contextvars.ContextVar("flavour", default="none")


def add(task: Task, inputs: dict[str, Any]) -> dict[str, Any]:
    print("this must not disturb the answers")
    return {"pid": os.getpid(), "sum": sum(value["sum"] for value in inputs.values()) + task.args["n"]}


def misbehave(task: Task, inputs: dict[str, Any]) -> Any:
    if task.action == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if task.action == "exit":
        os._exit(3)
    if task.action == "hang":
        time.sleep(1000)
    if task.action == "raise":
        raise ValueError("from afar")
    if task.action == "odd":
        return object()
    if task.action == "sys.exit":
        sys.exit(3)
    if task.action == "fork" and os.fork() == 0:
        time.sleep(1000)
    if task.action == "start":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        time.sleep(1000)
    if task.action == "big":
        return "x" * 3_000_000
    return "fine"


async def asynchronous(task: Task, inputs: dict[str, Any]) -> None:
    return None


SUM = [Task("a", args={"n": 1}), Task("b", args={"n": 2}), Task("c", args={"n": 3}, depends_on=["a", "b"])]


async def run(workers: Any, plan: list[Task], handler: Any, **settings: Any) -> RunResult:
    async with workers:
        return await execute(plan, handler, workers=workers, **settings)


def test_the_same_plan_in_all_workers_gives_the_same_results() -> None:
    async def scenario() -> None:
        inline = Inline()
        results = [
            await execute(SUM, add),
            await execute(SUM, add, workers=inline),
            await run(Threads(2), SUM, add),
            await run(Processes(2), SUM, add),
        ]
        await inline.close()
        assert [result.tasks["c"].result["sum"] for result in results] == [6, 6, 6, 6]
        assert [result.tasks["c"].result["pid"] == os.getpid() for result in results] == [True, True, True, False]

    asyncio.run(scenario())


def test_threads_run_at_once_with_the_context_of_their_task() -> None:
    barrier = threading.Barrier(3, timeout=30)

    def meet(task: Task, inputs: dict[str, Any]) -> str:
        barrier.wait()
        return FLAVOUR.get()

    async def scenario() -> RunResult:
        FLAVOUR.set("caller")
        return await run(Threads(3), [Task(f"t{n}") for n in range(3)], meet)

    assert set(asyncio.run(scenario()).results.values()) == {"caller"}


def test_no_more_threads_than_asked_for() -> None:
    running = most = 0
    guard, both = threading.Lock(), threading.Barrier(2)

    def work(task: Task, inputs: dict[str, Any]) -> None:
        nonlocal running, most
        with guard:
            running += 1
            most = max(most, running)
        if task.id in ("t0", "t1"):
            both.wait(60)
        time.sleep(0.002)
        with guard:
            running -= 1

    assert asyncio.run(run(Threads(2), [Task(f"t{n}") for n in range(12)], work)).state == "done"
    assert most == 2


def test_a_thread_that_is_stuck_does_not_take_the_place_of_others() -> None:
    free = threading.Event()

    def work(task: Task, inputs: dict[str, Any]) -> str:
        if task.id == "stuck":
            free.wait(60)
        return task.id

    plan = [Task("stuck", meta={"timeout_s": 0.05}), Task("next")]
    result = asyncio.run(run(Threads(1), plan, work))
    free.set()
    assert result.tasks["stuck"].state == "timed_out"
    assert result.tasks["next"].state == "done"


def test_errors_in_threads_belong_to_their_task() -> None:
    def stop(task: Task, inputs: dict[str, Any]) -> Any:
        return next(iter(()))

    assert asyncio.run(run(Threads(1), [Task("a", action="raise"), Task("b")], misbehave)).tasks["a"].state == "failed"
    assert asyncio.run(run(Threads(1), [Task("a")], stop)).tasks["a"].state == "failed"
    assert "asynchronous" in str(asyncio.run(run(Threads(1), [Task("a")], asynchronous)).tasks["a"].error)


@pytest.mark.parametrize("action", ["die", "exit"])
def test_a_process_that_dies_is_a_typed_failure_and_the_rest_goes_on(action: str) -> None:
    plan = [Task("bad", action=action), *(Task(f"good{n}") for n in range(4))]
    result = asyncio.run(asyncio.wait_for(run(Processes(1), plan, misbehave), 120))
    assert isinstance(result.tasks["bad"].exception, WorkerDied)
    assert "code" in (result.tasks["bad"].error or "")
    assert all(result.tasks[f"good{n}"].state == "done" for n in range(4))


def test_a_process_that_hangs_is_killed() -> None:
    async def scenario() -> None:
        async with Processes(1) as workers:
            result = await execute([Task("a", action="hang")], misbehave, workers=workers, timeout_s=1.5)
            assert result.tasks["a"].state == "timed_out"
            result = await execute([Task("a", action="big")], misbehave, workers=workers)
            assert len(result.tasks["a"].result) == 3_000_000

    asyncio.run(asyncio.wait_for(scenario(), 120))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_what_a_handler_started_ends_with_its_worker() -> None:
    """A child that holds the worker's output open must not keep its end from being seen."""

    async def scenario() -> None:
        async with Processes(1) as workers:
            result = await execute([Task("a", action="fork")], misbehave, workers=workers)
            assert result.tasks["a"].result == "fine"
            result = await execute([Task("a", action="start")], misbehave, workers=workers, timeout_s=1.5)
            assert result.tasks["a"].state == "timed_out"
            result = await execute([Task("a", action="sys.exit")], misbehave, workers=workers)
            assert result.tasks["a"].error == "SystemExit: 3"
            group = workers._idle[0].pid
        with pytest.raises(ProcessLookupError):
            os.killpg(group, 0)

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_errors_in_processes_come_back_with_their_trace() -> None:
    plan = [Task("a", action="raise"), Task("b", action="odd")]
    result = asyncio.run(run(Processes(1), plan, misbehave))
    error = result.tasks["a"].exception
    assert isinstance(error, RemoteError)
    assert error.kind == "ValueError"
    assert "misbehave" in error.trace
    assert result.tasks["a"].error == "ValueError: from afar"
    assert "JSON" in (result.tasks["b"].error or "")
    assert "asynchronous" in str(asyncio.run(run(Processes(1), [Task("a")], asynchronous)).tasks["a"].error)


def test_what_cannot_be_sent_is_refused() -> None:
    with pytest.raises(UsageError, match="top of a module"):
        reference(lambda task, inputs: None)
    result = asyncio.run(run(Processes(1), [Task("a"), Task("b", depends_on=["a"])], misbehave, known={"a": object()}))
    assert "must be JSON" in (result.tasks["b"].error or "")
    with pytest.raises(UsageError):
        Threads(0)
    with pytest.raises(UsageError):
        Processes(-1)


def test_functions_of_a_script_are_found(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import asyncio\n"
        "from agent_forge.plans import Task\n"
        "from agent_forge.runtime import Processes, execute\n"
        "def double(task, inputs):\n    return task.args['n'] * 2\n"
        "async def main():\n"
        "    async with Processes(1) as workers:\n"
        "        print((await execute([Task('a', args={'n': 21})], double, workers=workers)).results)\n"
        "if __name__ == '__main__':\n    asyncio.run(main())\n"
    )
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert ran.stdout.strip() == "{'a': 42}", ran.stderr


def test_the_worker_process_itself(tmp_path: Path) -> None:
    import io
    import json

    from agent_forge.runtime.process_worker import find, serve

    request = json.dumps({"function": reference(add), "task": {"id": "a", "args": {"n": 4}}, "inputs": {}}).encode()
    answers = io.BytesIO()
    serve(io.BytesIO(len(request).to_bytes(8, "big") + request), answers)
    assert json.loads(answers.getvalue()[8:])["result"]["sum"] == 4
    script = tmp_path / "other.py"
    script.write_text("class Tools:\n    def go(task, inputs):\n        return 1\n")
    assert find({"module": "__main__", "name": "Tools.go", "file": str(script)})(Task("a"), {}) == 1
    with pytest.raises(AttributeError):
        find({"module": "textwrap", "name": "nothing"})
