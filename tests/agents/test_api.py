"""The Python API: plan and run, sync and async, what results carry, traces, journals and resume."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import pickle
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextvars import ContextVar
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import agent_forge
from agent_forge import Plan, Task, aplan, arun, plan, run, tool
from agent_forge.agents import front
from agent_forge.agents.api import Result
from agent_forge.agents.choices import choose_tools
from agent_forge.agents.planner import PlanRefused, RulePlanner
from agent_forge.agents.tool_limits import limits_of
from agent_forge.errors import StoreError, ToolError, UsageError
from agent_forge.plans import PlanInvalid, Provenance, insert
from agent_forge.runtime import Budget, RunSettings
from agent_forge.runtime.journal import Journal
from agent_forge.traces import Recorder, Store

QUESTION = "Who is older, Manuel Antonio or Wilfred MacDonald?"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_FORGE_HOME", str(tmp_path / "home"))
    for name in ("MODEL", "PLANNER", "STORE", "CONCURRENCY"):
        monkeypatch.delenv(f"AGENT_FORGE_{name}", raising=False)


@tool
def double(n: int) -> int:
    """Doubles a number."""
    return 2 * n


@tool(side_effects=True, concurrency=1, rate=50, cache=False)
def record(n: int) -> int:
    """Keeps a number."""
    return n


@tool
def broken(n: int = 0) -> int:
    """Fails."""
    raise ValueError("no such thing")


CHAIN = [Task("a", "", "double", {"n": 2}), Task("b", "", "double", {"n": "{a}"})]


def test_plan_is_sync_and_async() -> None:
    planned = plan(QUESTION)
    assert isinstance(planned, Plan)
    assert planned.provenance == Provenance(QUESTION, "rules", shape="comparison")
    assert len(planned) == 3
    assert asyncio.run(aplan(QUESTION)) == planned
    assert plan("Double 4", tools=[double])["s1"].action == "double"
    assert plan(QUESTION, planner=RulePlanner()) == planned


def test_a_plan_keeps_its_provenance_through_changes_and_runs() -> None:
    planned = plan(QUESTION)
    assert insert(planned, "s1", [Task("more")], finished=["s1"]).provenance == planned.provenance
    assert pickle.loads(pickle.dumps(planned)).provenance == planned.provenance
    result = run(planned, record=False)
    assert result.plan is not None
    assert result.plan.provenance == result.provenance == planned.provenance
    assert result.request == QUESTION
    assert run(Plan(CHAIN), tools=[double], record=False).provenance is None


def test_the_plan_of_a_planner_that_names_no_origin_names_the_planner() -> None:
    class Fixed:
        name = "fixed"

        async def plan(self, request: str, *, tools: Any = ()) -> Plan:
            return Plan(CHAIN)

    assert plan("Anything", planner=Fixed()).provenance == Provenance("Anything", "fixed")
    result = run("Double 2", planner=Fixed(), tools=[double], record=False)
    assert result.as_dict()["planner"] == "fixed"
    assert result.usage.model_calls == 0


def test_the_embedded_default_answers_from_its_passages() -> None:
    result = run(QUESTION)
    assert isinstance(result, Result)
    assert result.answer == "Manuel Antonio"
    assert result.ok
    assert result.plan is not None
    assert {name: task.state for name, task in result.tasks.items()} == dict.fromkeys(("s1", "s2", "s3"), "done")
    assert result.tasks["s1"].result == "July 12, 1900"
    assert result.evidence["s1"].source == "Manuel Antonio"
    assert 0 < result.critical_path_s <= result.wall_s
    assert (result.usage.tool_calls, result.usage.model_calls, result.usage.input_tokens) == (2, 0, 0)
    assert result.observation is not None
    assert json.loads(result.observation)["s3"] == "Manuel Antonio"
    assert "Manuel Antonio" in repr(result)


def test_what_is_not_in_the_passages_is_unknown_not_made_up() -> None:
    result = run("Who is older, Zorg Nobody or Wilfred MacDonald?")
    assert result.state == "done"
    assert result.answer is None


def test_a_run_leaves_its_trace_under_home(tmp_path: Path) -> None:
    result = run(QUESTION)
    spans = Store.open(tmp_path / "home").trace(result.trace_id or "")
    kinds = [span.kind for span in spans]
    assert kinds.count("run") == 2  # the whole, with planning and answer, and in it what the executor did
    assert kinds.count("plan") == 1
    assert kinds.count("task") == 3
    planning = next(span for span in spans if span.kind == "plan")
    assert planning.attributes["planner"] == "rules"
    assert len(planning.outputs["tasks"]) == 3
    assert next(span for span in spans if span.parent_id is None).outputs["answer"] == "Manuel Antonio"


def test_a_callers_recorder_is_used_and_left_open(tmp_path: Path) -> None:
    recorder = Recorder(Store.open(tmp_path / "mine"))
    result = run(QUESTION, recorder=recorder)
    recorder.flush()
    assert recorder.store.trace(result.trace_id)
    recorder.close()


def test_without_a_record_nothing_is_written(tmp_path: Path) -> None:
    result = run(CHAIN, tools=[double], record=False)
    assert result.tasks["b"].result == 8
    assert result.trace_id is None
    assert not (tmp_path / "home").exists()


def test_plans_in_all_the_shapes_they_come_in() -> None:
    planned = plan(QUESTION)
    assert run(planned, record=False).answer == "Manuel Antonio"
    assert run(Plan(CHAIN), tools=[double], record=False).answer == "8"
    with pytest.raises(UsageError, match="nothing to run"):
        run(record=False)


def test_a_plan_of_words_names_its_tools() -> None:
    tasks = [Task("a", "double: 21"), Task("b", "double", depends_on=["a"])]
    assert run(tasks, tools=[double], record=False).tasks["b"].result == 84


def test_failures_are_in_the_result() -> None:
    tasks = [*CHAIN, Task("c", "", "broken"), Task("d", "", "double", {"n": "{c}"})]
    result = run(tasks, tools=[double, broken], record=False)
    states = {name: task.state for name, task in result.tasks.items()}
    assert states == {"a": "done", "b": "done", "c": "failed", "d": "skipped"}
    assert result.state == "failed"
    assert "no such thing" in (result.tasks["c"].error or "")
    assert result.error


def test_a_plan_that_cannot_be_run_is_refused_before_anything_runs() -> None:
    called: list[int] = []

    @tool
    def note(n: int) -> int:
        """Notes a number."""
        called.append(n)
        return n

    bad = {
        "there is no tool 'nothing'": Task("e", "", "nothing"),
        r"note\(n\): it is missing": Task("e", "", "note"),
        "'n' must be integer": Task("e", "", "note", {"n": "many"}),
        "no tool fits 'Think about it'": Task("e", "Think about it"),
    }
    for why, task in bad.items():
        with pytest.raises(PlanRefused, match=why) as caught:
            run([Task("a", "", "note", {"n": 1}), task], tools=[note], record=False)
        assert [each.task for each in caught.value.missing] == ["e"]
    assert called == []


def test_run_and_plan_work_inside_a_running_loop() -> None:
    place: ContextVar[str] = ContextVar("place", default="nowhere")

    @tool
    async def where() -> str:
        """The context variable as tools see it."""
        return place.get()

    async def inside() -> None:
        place.set("in a loop")
        assert plan(QUESTION) == RulePlanner().plan_now(QUESTION)
        result = run([Task("a", "", "where"), Task("b", "", "double", {"n": 1})], tools=[where, double], record=False)
        assert (result.tasks["a"].result, result.tasks["b"].result) == ("in a loop", 2)
        with pytest.raises(UsageError, match="there is nothing to run"):
            run(record=False)
        assert (await arun(CHAIN, tools=[double], record=False)).ok

    asyncio.run(inside())


def test_ctrl_c_inside_a_loop_stops_the_run() -> None:
    began, stopped = threading.Event(), threading.Event()

    @tool
    async def forever() -> None:
        """Waits until it is cancelled."""
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    def interrupt() -> None:
        began.wait()
        signal.raise_signal(signal.SIGINT) if sys.platform == "win32" else os.kill(os.getpid(), signal.SIGINT)

    async def inside() -> None:
        threading.Thread(target=interrupt, daemon=True).start()
        run([Task("a", "", "forever")], tools=[forever], record=False)

    loop = asyncio.new_event_loop()  # as in Jupyter: asyncio.run would take the signal for itself
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(inside())
    loop.close()
    assert stopped.wait(30)


@pytest.mark.parametrize("launched", [True, False])
def test_ctrl_c_while_the_thread_starts_stops_the_run_too(monkeypatch: pytest.MonkeyPatch, launched: bool) -> None:
    began, stopped = threading.Event(), threading.Event()

    async def forever() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    class Interrupted(threading.Thread):
        def start(self) -> None:
            if launched:
                super().start()
                began.wait()
            raise KeyboardInterrupt

    async def inside() -> None:
        work = forever()
        with pytest.raises(KeyboardInterrupt):
            front.blocking(work)
        work.close()

    monkeypatch.setattr(front, "Thread", Interrupted)
    asyncio.run(inside())
    assert stopped.is_set() == began.is_set() == launched


def test_tasks_of_an_asynchronous_generator_start_as_they_come() -> None:
    ended: list[str] = []

    async def tasks() -> AsyncIterator[Task]:
        done = asyncio.Event()

        def on_event(event: Any) -> None:
            if (event.kind, event.task) == ("ended", "a"):
                done.set()

        events.append(on_event)
        try:
            yield CHAIN[0]
            await done.wait()  # would never come, were the plan read to its end first
            yield Task("b", "double", depends_on=["a"])  # in words
        finally:
            ended.append("generator")

    events: list[Any] = []
    result = run(tasks(), tools=[double], on_event=lambda event: events[0](event) if events else None, record=False)
    assert (result.answer, result.tasks["b"].result) == ("8", 8)
    assert list(result.plan or ()) != []
    assert ended == ["generator"]


def test_a_generator_that_breaks_or_yields_no_task_is_a_failed_run_and_is_closed() -> None:
    closed: list[bool] = []

    async def wrong(end: Any) -> AsyncIterator[Any]:
        try:
            yield CHAIN[0]
            yield end() if callable(end) else end
        finally:
            closed.append(True)

    def breaks() -> None:
        raise RuntimeError("no more")

    for end, words in ((breaks, "no more"), ("not a task", "is not a Task")):
        result = run(wrong(end), tools=[double], record=False)
        assert result.state == "failed"
        assert words in (result.error or "")
    assert closed == [True, True]


def test_a_misspelt_parameter_is_refused_with_the_nearest() -> None:
    for call in (run, plan):
        with pytest.raises(UsageError, match=r"no parameter 'modle'.*Did you mean 'model'"):
            call(QUESTION, modle=3)
    with pytest.raises(UsageError, match=r"no parameter 'zzz'.*tools, model, planner"):
        asyncio.run(aplan(QUESTION, zzz=3))


def test_what_is_neither_tools_nor_a_request_is_refused() -> None:
    with pytest.raises(UsageError, match="a request is text, got 3"):
        plan(3)  # type: ignore[arg-type]
    for work, tools, why in (
        ("x", double, "must be a list"),
        ("x", [3], "3 is not a function"),
        (3, [double], "got 3"),
    ):
        with pytest.raises((ToolError, UsageError), match=why):
            run(work, tools=tools, record=False)  # type: ignore[call-overload]


def test_the_signatures_are_real_and_cover_the_executor() -> None:
    parameters = inspect.signature(arun).parameters
    assert inspect.signature(run).parameters == parameters
    assert inspect.signature(plan).parameters == inspect.signature(aplan).parameters
    assert all(each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY) for each in parameters.values())
    defaults = RunSettings()
    own = {field.name for field in fields(RunSettings)} - {"journal", "notes"}  # `home` and `record` stand for them
    assert own <= set(parameters)
    for name in own - {"known", "approve"}:  # who waits for an approval is named by a word here
        assert parameters[name].default == getattr(defaults, name), name


def test_resume_repeats_nothing_that_is_done(tmp_path: Path) -> None:
    calls: list[str] = []
    fails = [True]

    @tool
    def step(name: str) -> str:
        """A step."""
        calls.append(name)
        if name == "b" and fails:
            raise RuntimeError("not yet")
        return name

    tasks = [Task("a", "", "step", {"name": "a"}), Task("b", "", "step", {"name": "b"}, depends_on=["a"])]
    first = run(tasks, tools=[step])
    assert first.state == "failed"
    fails.clear()
    again = run(resume=first.run, tools=[step])
    assert again.state == "done"
    assert calls == ["a", "b", "b"]
    assert again.tasks["a"].reused


def test_resume_remembers_request_and_tools(tmp_path: Path) -> None:
    first = run(QUESTION)
    again = run(resume=first.run)
    assert again.answer == "Manuel Antonio"
    assert again.request == QUESTION
    file = tmp_path / "mytools.py"
    file.write_text(
        "from agent_forge import tool\n\n@tool\ndef inc(n: int) -> int:\n    'Adds one.'\n    return n + 1\n"
    )
    made = run([Task("a", "", "inc", {"n": 1})], tools=str(file))
    assert run(resume=made.run).tasks["a"].result == 2
    assert [summary.run for summary in Journal.open().runs()] == [made.run, first.run]


def test_a_run_in_postgresql_is_resumed_from_another_home(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_FORGE_STORE", f"postgresql://postgres@/postgres?host={postgres}")
    first = run(QUESTION, home=tmp_path / "here")
    again = run(resume=first.run, home=tmp_path / "there")
    assert (again.request, again.answer) == (QUESTION, "Manuel Antonio")
    assert all(task.reused for task in again.tasks.values())
    assert not (tmp_path / "here").exists()


def test_resume_goes_on_with_what_the_plan_means() -> None:
    """The journal has action and arguments: nothing is read from words again."""
    born = {"Ann Lee": "3 May 1960", "Bo Ek": "1 May 1961"}
    fails = [True]

    @tool
    def search(query: str) -> list[dict[str, str]]:
        """Finds passages."""
        if query == "Bo Ek" and fails:
            raise RuntimeError("not yet")
        return [{"title": query, "text": f"{query} (born {born[query]}) is one."}]

    first = run("Who is older, Ann Lee or Bo Ek?", tools=[search])
    assert (first.state, first.answer) == ("failed", None)
    fails.clear()
    again = run(resume=first.run, tools=[search])
    assert (again.state, again.answer) == ("done", "Ann Lee")
    assert {name: task.reused for name, task in again.tasks.items()} == {"s1": True, "s2": False, "s3": False}


def test_resume_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no run 'nope'"):
        run(resume="nope")
    with pytest.raises(StoreError):
        run(resume="../../etc/passwd")
    with pytest.raises(UsageError, match="record=False"):
        run(resume="nope", record=False)


def test_settings_reach_the_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    running = {"now": 0, "most": 0}

    @tool
    async def slow(n: int) -> int:
        """Takes a moment."""
        running["now"] += 1
        running["most"] = max(running.values())
        await asyncio.sleep(0.01)
        running["now"] -= 1
        return n

    tasks = [Task(f"t{n}", "", "slow", {"n": n}) for n in range(6)]
    monkeypatch.setenv("AGENT_FORGE_CONCURRENCY", "2")
    run(tasks, tools=[slow], record=False)
    assert running["most"] == 2
    stopped = run(tasks, tools=[slow], budget=Budget(calls=3), record=False)
    assert stopped.state == "over_budget"
    seen: list[Any] = []
    run(tasks, tools=[slow], concurrency=1, on_event=seen.append, record=False)
    assert [event.kind for event in seen].count("ended") == 6


def test_tools_by_module_file_and_rules(tmp_path: Path) -> None:
    assert set(choose_tools(None).names) == {"search", "calculator"}
    rules = limits_of(choose_tools([double, record])).tools
    assert rules["record"].side_effects
    assert rules["record"].concurrency == 1
    assert not rules["record"].memo
    assert rules["double"].memo
    with pytest.raises(ToolError, match="no such module"):
        choose_tools("there.is.none")


def test_the_result_as_json_has_the_promised_keys() -> None:
    document = run(QUESTION, record=False).as_dict()
    assert {"run", "state", "wall_s", "critical_path_s", "tasks", "answer", "trace_id", "usage"} <= set(document)
    assert set(document["tasks"]["s1"]) == {"state", "started_s", "ended_s", "result", "error"}
    json.dumps(document)


def test_the_top_level_names() -> None:
    assert {"plan", "run", "aplan", "arun", "tool", "Task", "Plan", "execute"} <= set(dir(agent_forge))


def test_a_tool_of_the_callers_named_answer_is_called() -> None:
    @tool
    def answer(text: str) -> str:
        "Answers."
        return text.upper()

    task = Task("a", "difference of 7 and 4", action="answer", args={"text": "mine"})
    assert run([task], tools=[answer], record=False).tasks["a"].result == "MINE"


def test_a_request_that_is_not_utf_8_is_refused_as_such() -> None:
    with pytest.raises(PlanInvalid, match="half of a character"):
        run("caf\udce9 or tea?")  # what Python makes of such an argument of a command


def test_the_name_of_a_run_is_no_path(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a valid run name"):
        run([Task("a", action="double", args={"n": 1})], tools=[double], run_id="../../outside")
    assert not list(tmp_path.rglob("outside*"))


def test_the_trace_of_a_run_that_failed_says_so(tmp_path: Path) -> None:
    @tool
    def fail() -> str:
        "Fails."
        raise ValueError("no such city")

    result = run([Task("a", action="fail")], tools=[fail], home=tmp_path)
    with Store.open(tmp_path) as store:
        (root,) = [span for span in store.trace(result.trace_id) if span.parent_id is None]
    assert (root.status, root.error) == ("error", result.error)
