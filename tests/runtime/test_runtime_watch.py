"""Spans and events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent_forge.plans import Task
from agent_forge.runtime import Event, Journal, Retry, RunResult, execute, spend
from agent_forge.traces import Recorder, Span, Store, current_span


@pytest.fixture
def recorder() -> Any:
    opened = Recorder(Store.open(":memory:"))
    yield opened
    opened.close()


def spans_of(recorder: Recorder, result: RunResult) -> dict[str, Span]:
    recorder.flush()
    assert result.trace_id is not None
    return {str(span.attributes.get("task", span.name)): span for span in recorder.store.trace(result.trace_id)}


async def handler(task: Task, inputs: dict[str, Any]) -> Any:
    span = current_span()
    if task.id != "b":
        await asyncio.sleep(0)
    assert current_span() is span
    if task.action == "fail":
        raise ValueError("no")
    spend(tokens=5, cost=0.25)
    return {"span": span.span_id if span else None}


def test_one_span_a_task_under_the_run_linked_to_what_it_used(recorder: Recorder) -> None:
    plan = [
        Task("a", "first", action="search", args={"q": "otters"}),
        Task("b", depends_on=["a"]),
        Task("c", depends_on=["a", "b"]),
        Task("d", action="fail"),
        Task("e", depends_on=["d"]),
    ]
    result = asyncio.run(execute(plan, handler, recorder=recorder))
    spans = spans_of(recorder, result)
    run = spans["run"]
    assert run.kind == "run"
    assert run.parent_id is None
    assert run.attributes["run"] == result.run
    assert set(spans) == {"run", "a", "b", "c", "d"}, "a task that never started has no span"
    for name in "abc":
        assert spans[name].parent_id == run.span_id
        assert spans[name].status == "ok"
        assert spans[name].outputs == {"span": spans[name].span_id}, "the handler ran with its span current"
    assert spans["a"].name == "search"
    assert spans["a"].inputs == {"q": "otters"}
    assert spans["a"].attributes["goal"] == "first"
    assert spans["a"].cost == 0.25
    assert spans["a"].attributes["tokens"] == 5
    assert sorted(spans["c"].links) == sorted((spans[name].trace_id, spans[name].span_id) for name in "ab")
    assert spans["d"].status == "error"
    assert "no" in str(spans["d"].error)
    assert run.status == "error"


def test_the_run_joins_the_span_around_it(recorder: Recorder) -> None:
    async def scenario() -> tuple[Span, RunResult]:
        with recorder.span("request", kind="agent") as outer:
            result = await execute([Task("a")], handler, recorder=recorder)
            assert current_span() is outer
            return outer, result

    outer, result = asyncio.run(scenario())
    spans = spans_of(recorder, result)
    assert result.trace_id == outer.trace_id
    assert spans["run"].parent_id == outer.span_id


def test_elements_retries_and_shared_calls_have_spans(recorder: Recorder) -> None:
    tries: dict[str, int] = {}

    async def flaky(task: Task, inputs: dict[str, Any]) -> Any:
        tries[task.id] = tries.get(task.id, 0) + 1
        await asyncio.sleep(0)
        if task.id == "list" and tries[task.id] == 1:
            raise ConnectionError("once")
        return [1, 2] if task.id == "list" else task.args["x"]

    plan = [
        Task("list"),
        Task("each", action="f", args={"x": "{item}"}, for_each="{list}"),
        Task("same", action="g", args={"x": 1}),
        Task("again", action="g", args={"x": 1}),
    ]
    retry = Retry(2, first_s=0.001)
    spans = spans_of(recorder, asyncio.run(execute(plan, flaky, recorder=recorder, retry=retry)))
    assert spans["each[0]"].parent_id == spans["each[1]"].parent_id == spans["each"].span_id
    assert spans["list"].attributes["attempts"] == 2
    assert spans["list"].events[0]["name"] == "retry"
    assert spans["again"].attributes["same_as"] == "same"


def test_events_tell_the_whole_story() -> None:
    seen: list[Event] = []

    async def stream() -> AsyncIterator[Task]:
        yield Task("g", meta={"group": True})
        yield Task("a", parent="g")
        yield Task("b", depends_on=["a"], meta={"approval": True})

    result = asyncio.run(execute(stream(), handler, on_event=seen.append, approve=lambda task: True))
    assert result.state == "done"
    story = [(event.kind, event.task) for event in seen]
    assert story[0] == ("run_started", None)
    assert story[-1] == ("run_ended", None)
    for name in ("a", "b"):
        assert story.index(("planned", name)) < story.index(("started", name)) < story.index(("ended", name))
    assert ("waiting_for_approval", "b") in story
    assert ("ended", "g") in story
    assert seen[-1].state == "done"
    assert all(event.run == result.run for event in seen)
    assert [event.at_s for event in seen] == sorted(event.at_s for event in seen)


def test_groups_of_a_whole_plan_end_in_events_too() -> None:
    seen: list[tuple[str, str | None, str | None]] = []
    plan = [Task("g"), Task("a", parent="g"), Task("h"), Task("x", action="fail", parent="h")]
    asyncio.run(execute(plan, handler, on_event=lambda event: seen.append((event.kind, event.task, event.state))))
    assert ("ended", "g", "done") in seen
    assert ("ended", "h", "failed") in seen


@pytest.mark.parametrize("journaled", [True, False])
def test_an_onlooker_that_raises_changes_nothing(tmp_path: Path, journaled: bool) -> None:
    def broken(event: Event) -> None:
        raise RuntimeError("my screen is gone")

    journal = Journal.open(tmp_path) if journaled else None
    result = asyncio.run(execute([Task("a"), Task("b")], handler, on_event=broken, journal=journal))
    assert result.state == "done"
    assert result.warnings == ["on_event raised and was not called again: RuntimeError: my screen is gone"]


def test_with_a_journal_an_event_comes_when_it_is_on_disk(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    stored: list[bool] = []

    def look(event: Event) -> None:
        if event.kind == "ended":
            other = Journal.open(tmp_path)
            stored.append(event.task in other.load("r").results)
            other.close()

    plan = [Task("a"), Task("b", depends_on=["a"]), Task("c")]
    asyncio.run(execute(plan, handler, journal=journal, run_id="r", on_event=look))
    assert stored == [True, True, True]
