"""Mending: after a failure, what has not begun gives way to other tasks, as a transaction; the run is not failed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_forge.errors import UsageError
from agent_forge.plans import Plan, Task
from agent_forge.runtime import Limits, ToolRules, execute, resume
from agent_forge.runtime.journal import Journal
from agent_forge.runtime.result import TaskResult

PLAN = [Task("a"), Task("bad", depends_on=["a"]), Task("c", "use {bad}", args={"x": "{bad}"}), Task("side")]


def handler(calls: list[str]) -> Any:
    async def work(task: Task, inputs: dict[str, Any]) -> Any:
        calls.append(task.id)
        if task.id.startswith("bad"):
            raise ValueError("no such city")
        return f"result of {task.id}"

    return work


def mend_with(*tasks: Task) -> Any:
    async def mend(plan: Plan, name: str, outcome: TaskResult, results: Mapping[str, Any]) -> Sequence[Task] | None:
        assert name in plan
        assert outcome.state == "failed"
        assert results["a"] == "result of a"
        return tasks or None

    return mend


def test_a_mended_failure_does_not_fail_the_run() -> None:
    calls: list[str] = []
    mend = mend_with(Task("good", args={"x": "{a}"}), Task("c", "use {good}", args={"x": "{good}"}), Task("side"))
    result = asyncio.run(execute(PLAN, handler(calls), mend=mend))
    states = {name: task.state for name, task in result.tasks.items()}
    assert states == {"a": "done", "bad": "replaced", "side": "done", "good": "done", "c": "done"}
    assert result.state == "done"
    assert sorted(calls) == ["a", "bad", "c", "good", "side"]  # each once
    assert "'bad' failed and was replaced" in result.warnings[0]


@pytest.mark.parametrize(
    "tasks",
    [
        [],
        [Task("new", depends_on=["bad"])],  # waits for what failed
        [Task("a", "another")],  # has begun
        [Task("x", depends_on=["y"]), Task("y", depends_on=["x"])],
        [Task("x", depends_on=["nowhere"])],
    ],
)
def test_a_change_that_cannot_be_made_changes_nothing(tasks: list[Task]) -> None:
    calls: list[str] = []
    result = asyncio.run(execute(PLAN, handler(calls), mend=mend_with(*tasks)))
    states = {name: task.state for name, task in result.tasks.items()}
    assert states == {"a": "done", "bad": "failed", "c": "skipped", "side": "done"}
    assert result.state == "failed"
    assert bool(result.warnings) is bool(tasks)


def test_a_mender_that_raises_is_a_warning() -> None:
    async def mend(*_: Any) -> None:
        raise RuntimeError("no idea")

    result = asyncio.run(execute(PLAN, handler([]), mend=mend))
    assert result.state == "failed"
    assert "no idea" in result.warnings[0]


def test_a_failure_in_a_plan_that_is_still_written_waits_for_its_end() -> None:
    async def stream() -> AsyncIterator[Task]:
        for task in PLAN:
            yield task
            await asyncio.sleep(0.005)

    mend = mend_with(Task("c2", args={"x": "{a}"}))
    result = asyncio.run(execute(stream(), handler([]), mend=mend))
    assert result.state == "done"
    assert result.tasks["bad"].state == "replaced"
    assert result.tasks["c2"].state == "done"


def test_an_element_that_fails_lets_the_whole_be_mended() -> None:
    async def work(task: Task, inputs: dict[str, Any]) -> Any:
        if task.id == "list":
            return [1, 2, 3]
        if task.id == "each[1]":
            raise ValueError("not this one")
        return task.args.get("n")

    async def mend(plan: Plan, name: str, outcome: TaskResult, results: Mapping[str, Any]) -> list[Task]:
        assert name == "each"
        return [Task("instead", args={"n": 7})]

    plan = [Task("list"), Task("each", args={"n": "{item}"}, for_each="{list}")]
    result = asyncio.run(execute(plan, work, mend=mend))
    assert result.state == "done"
    assert result.tasks["instead"].result == 7


def test_what_was_replaced_is_not_tried_again_after_a_resume(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    calls: list[str] = []
    first = asyncio.run(
        execute(PLAN, handler(calls), mend=mend_with(Task("bad2"), Task("c", depends_on=["bad2"])), journal=journal)
    )
    assert first.state == "failed"  # the mended plan failed too: `mend` is for "a" to have ended
    calls.clear()
    again = asyncio.run(resume(first.run, handler(calls), journal=journal))
    assert again.tasks["bad"].state == "replaced"
    assert "bad" not in calls
    journal.close()


@pytest.mark.parametrize(
    ("how", "value", "state", "sent"),
    [("done", "ok", "done", 0), ("retry", None, "done", 1), ("failed", None, "failed", 0)],
)
def test_a_task_in_doubt_is_settled(tmp_path: Path, how: str, value: Any, state: str, sent: int) -> None:
    journal = Journal.open(tmp_path)
    calls: list[str] = []

    async def send(task: Task, inputs: dict[str, Any]) -> Any:
        calls.append(task.id)
        return "sent"

    limits = Limits(tools={"send": ToolRules(side_effects=True)})
    plan = Plan([Task("a", action="send"), Task("b", args={"x": "{a}"})])
    _leave_in_doubt(journal, plan)
    doubtful = asyncio.run(resume("r1", send, journal=journal, limits=limits))
    assert doubtful.tasks["a"].state == "in_doubt"
    assert "--settle TASK=done:VALUE|retry|failed" in (doubtful.tasks["a"].error or "")
    with pytest.raises(UsageError, match="'b' is not in doubt"):
        asyncio.run(resume("r1", send, journal=journal, limits=limits, settle={"b": ("retry", None)}))
    result = asyncio.run(resume("r1", send, journal=journal, limits=limits, settle={"a": (how, value)}))
    assert result.tasks["a"].state == state
    assert calls.count("a") == sent
    assert ("b" in calls) is (state == "done")
    journal.close()


def _leave_in_doubt(journal: Journal, plan: Plan) -> None:
    """What a process leaves that was killed while task "a" ran."""
    from agent_forge.runtime.job import Job
    from agent_forge.runtime.terms import Terms

    log = journal.begin("r1", plan, {"on_failure": "skip"})
    job: Any = Job(None, plan["a"], (), Terms(side_effects=True))  # type: ignore[arg-type]
    job.started, job.attempts = 0.0, 1
    log.started(job)
    log.commit()
    log.close()
