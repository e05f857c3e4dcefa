"""The model planner, against a real HTTP server: formats, streaming, one repair round, typed failures."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from agents_chat_server import ChatServer, Reply, chat, chat_server, event, reply, stream

from agent_forge.agents import tool
from agent_forge.agents.api import arun, run
from agent_forge.agents.planner import ModelPlanner, PlanningFailed, bind_tools, template
from agent_forge.agents.planner.prompts import names
from agent_forge.agents.planner.tools import describe
from agent_forge.agents.tools import Toolbox
from agent_forge.agents.work import Worker
from agent_forge.errors import ModelError, UsageError
from agent_forge.inference import OpenAICompatible
from agent_forge.plans import Plan, Task, parse_plan
from agent_forge.runtime import Budget

REQUEST = "Fetch the sales, fetch the costs, and compare both, then write a report"
NUMBERS = "Add 1 and 2, add 3 and 4, note 1 and note 2, add 9 to it, then send x"
LINES = """<think>Two look-ups, then one.</think>
<plan>
Task 1: fetch the sales | Dependencies: none
Task 2: fetch the costs | Dependencies: none
Task 3: compare {task_1} with {task_2} | Dependencies: Task 1, Task 2
</plan>"""
CYCLE = "<plan>\nTask 1: a | Dependencies: Task 2\nTask 2: b | Dependencies: Task 1\n</plan>"


def told(text: str, size: int = 7) -> Reply:
    """A streamed answer with its usage, in small pieces."""
    pieces = [event({"content": text[start : start + size]}) for start in range(0, len(text), size)]
    usage = {"prompt_tokens": 100, "completion_tokens": 40, "total_tokens": 140}
    return stream(*pieces, event({}, "stop"), event(None, usage=usage))


def client(server: ChatServer) -> OpenAICompatible:
    return OpenAICompatible(server.url, "served-model", retries=0, timeout_s=20)


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@tool(side_effects=True)
def send(text: str) -> str:
    """Sends a text."""
    return f"sent {text}"


def test_a_plan_by_lines() -> None:
    with chat_server(told(LINES)) as server:
        planned = asyncio.run(ModelPlanner(client(server)).plan(REQUEST))
        asked = server.requests[0]["messages"]
    assert planned.levels() == [["task_1", "task_2"], ["task_3"]]
    assert (planned.provenance.planner, planned.provenance.model, planned.provenance.template) == (
        "model",
        "served-model",
        "plan-lines@1",
    )
    assert (planned.provenance.attempts, planned.provenance.input_tokens, planned.provenance.output_tokens) == (
        1,
        100,
        40,
    )
    assert REQUEST in asked[-1]["content"]
    assert planned.provenance.text == LINES


def test_tools_are_planned_as_a_graph_of_calls() -> None:
    graph = '<graph><node id="s1">add(1, 2)</node><node id="s2" depends="s1">add({s1}, 4)</node></graph>'
    with chat_server(told(graph)) as server:
        planned = asyncio.run(ModelPlanner(client(server)).plan(NUMBERS, tools=[add]))
        system = server.requests[0]["messages"][0]["content"]
    assert planned.provenance.template == "plan-graph@1"
    assert "add(a, b): Adds two numbers." in system
    assert planned["s2"].action == "add"


def test_an_invalid_plan_goes_back_once_with_its_errors() -> None:
    with chat_server(told(CYCLE), told(LINES)) as server:
        planned = asyncio.run(ModelPlanner(client(server)).plan(REQUEST))
        again = server.requests[1]["messages"]
    assert planned.provenance.attempts == 2
    assert planned.provenance.output_tokens == 80
    assert again[-2] == {"role": "assistant", "content": CYCLE}
    assert "cycle" in again[-1]["content"]


def test_a_second_invalid_plan_is_a_typed_failure() -> None:
    with chat_server(told(CYCLE)) as server:
        with pytest.raises(PlanningFailed, match="no valid plan in 2 attempts") as caught:
            asyncio.run(ModelPlanner(client(server)).plan(REQUEST))
        assert len(server.requests) == 2
    assert [fault.code for fault in caught.value.errors] == ["cycle"]
    assert caught.value.attempts == 2
    assert caught.value.text == CYCLE


def test_a_half_written_plan_is_repaired() -> None:
    with chat_server(told(LINES[: LINES.index("Task 3")]), told(LINES)) as server:
        planned = asyncio.run(ModelPlanner(client(server)).plan(REQUEST))
    assert planned.provenance.attempts == 2
    assert len(planned) == 3


def test_one_or_two_steps_need_no_graph_and_no_planning_call() -> None:
    with chat_server(told(LINES)) as server:
        planned = asyncio.run(ModelPlanner(client(server)).plan("Where was Ann born?"))
        assert server.requests == []
        asyncio.run(ModelPlanner(client(server), always_graph=True).plan("Where was Ann born?"))
        assert len(server.requests) == 1
    assert [task.goal for task in planned] == ["Where was Ann born?"]
    assert planned.provenance.shape == "direct"
    assert (planned.provenance.model, planned.provenance.attempts, planned.provenance.input_tokens) == (None, 0, 0)


def test_tasks_come_while_the_plan_is_written() -> None:
    async def scenario() -> tuple[list[str], list[str]]:
        planner = ModelPlanner(client(server))
        writing, seen = planner.stream(REQUEST), []
        with pytest.raises(PlanningFailed, match="not complete"):
            _ = writing.planned
        async for task in writing:
            seen.append(task.id)
        return seen, list(writing.planned.tasks)

    with chat_server(told(LINES, size=3)) as server:
        seen, whole = asyncio.run(scenario())
    assert seen == whole


def test_side_effects_wait_for_the_whole_plan() -> None:
    graph = '<graph><node id="s1">send("x")</node><node id="s2">add(1, 2)</node></graph>'

    async def order() -> list[str]:
        writing = ModelPlanner(client(server)).stream(NUMBERS, tools=[add, send])
        return [task.id async for task in writing]

    with chat_server(told(graph)) as server:
        assert asyncio.run(order()) == ["s2", "s1"]


def test_a_dead_endpoint_is_a_model_error() -> None:
    planner = ModelPlanner(OpenAICompatible("http://127.0.0.1:9/v1", "m", retries=0, connect_timeout_s=2))
    with pytest.raises(ModelError):
        asyncio.run(planner.plan(REQUEST))
    with pytest.raises(ModelError):
        run(REQUEST, planner=planner, model=planner.client, record=False)


def test_run_starts_tasks_from_the_stream_and_answers() -> None:
    graph = (
        '<graph><node id="s1">add(1, 2)</node><node id="s2">add(3, 4)</node>'
        '<node id="s3" depends="s1,s2">add({s1}, {s2})</node></graph>'
    )
    with chat_server(told(graph)) as server:
        result = run(NUMBERS, tools=[add], model=client(server), record=False)
        assert len(server.requests) == 1
    assert result.ok
    assert result.answer == "10"
    assert result.usage.model_calls == 1
    assert result.usage.input_tokens == 100
    assert result.provenance is not None
    assert result.provenance.planner == "model"


def test_run_repairs_a_streamed_plan_and_keeps_what_is_done() -> None:
    calls: list[int] = []

    @tool
    def note(n: int) -> int:
        """Notes a number."""
        calls.append(n)
        return n

    broken = '<graph><node id="s1">note(1)</node><node id="s2" depends="s9">note(2)</node></graph>'
    whole = '<graph><node id="s1">note(1)</node><node id="s2" depends="s1">note(2)</node></graph>'
    with chat_server(told(broken), told(whole)) as server:
        result = run(NUMBERS, tools=[note], model=client(server), record=False)
    assert result.ok
    assert sorted(calls) == [1, 2]
    assert result.tasks["s1"].reused
    assert result.usage.model_calls == 2


def test_rules_plan_when_the_repair_is_no_better() -> None:
    with chat_server(told(CYCLE), told(CYCLE), reply(chat("done"))) as server:
        result = run("Add 1 and 2, add 3 and 4, then add 7 and 9", tools=[add], model=client(server), record=False)
    assert [task.result for task in result.tasks.values()] == [3, 7, 16]
    assert result.provenance is not None
    assert result.provenance.planner == "rules"
    assert "no valid plan in 2 attempts" in result.outcome.warnings[0]
    with chat_server(told(CYCLE)) as server, pytest.raises(PlanningFailed):
        run("…", planner=ModelPlanner(client(server), always_graph=True), model=client(server), record=False)


def test_a_direct_task_may_call_tools() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}
    bad = {"id": "c2", "type": "function", "function": {"name": "nothing", "arguments": "{}"}}
    with chat_server(reply(chat("", tool_calls=[call, bad])), reply(chat("5"))) as server:
        result = asyncio.run(arun("What is two plus three?", tools=[add], model=client(server), record=False))
        said = server.requests[1]["messages"]
    assert result.answer == "5"
    assert next(message["content"] for message in said if message["role"] == "tool") == "5"
    assert "there is no tool 'nothing'" in said[-1]["content"]
    assert (result.usage.model_calls, result.usage.input_tokens, result.usage.output_tokens) == (2, 14, 6)


def test_a_model_that_never_stops_calling_tools_is_stopped() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}
    with chat_server(reply(chat("", tool_calls=[call]))) as server:
        work = arun("What is two plus three?", tools=[add], model=client(server), record=False, repairs=0)
        result = asyncio.run(work)
    assert result.state == "failed"
    assert "called a tool when it had to answer" in (result.error or "")
    assert len(server.requests) == 3  # the call, the same again, and one more chance to answer


def test_several_ends_are_put_into_words_by_the_model_from_those_alone() -> None:
    nodes = ("add(1, 2)", "add({s1}, 4)", "add({s1}, 9)")
    written = "".join(f'<node id="s{number}">{call}</node>' for number, call in enumerate(nodes, 1))
    plan = f"<graph>{written}</graph>"
    with chat_server(told(plan), reply(chat("<answer>7 and 12</answer>"))) as server:
        result = run(NUMBERS, tools=[add], model=client(server), record=False)
        shown = server.requests[1]["messages"][-1]["content"]
    assert result.answer == "7 and 12"
    assert result.answered_by == "served-model"
    assert '"s2": 7' in shown
    assert '"s1"' not in shown


def test_what_the_rules_cannot_read_the_model_reads_from_the_passages_alone() -> None:
    @tool
    def search(query: str, k: int = 3) -> list[dict[str, str]]:
        """Finds passages."""
        return [{"title": "Moss", "text": "Soft."}, {"title": "Bo Ek", "text": "Bo Ek hums in Oslo."}]

    plan = '<graph><node id="s1">search("favourite town of Bo Ek")</node></graph>'
    with chat_server(told(plan), reply(chat("Oslo"))) as server:
        planner = ModelPlanner(client(server), always_graph=True)
        result = run("Where does Bo Ek hum?", tools=[search], model=client(server), planner=planner, record=False)
        shown = server.requests[1]["messages"][-1]["content"]
    assert result.answer == "Oslo"
    assert shown == "Asked for: favourite town of Bo Ek\nPassages:\n[Bo Ek] Bo Ek hums in Oslo.\n[Moss] Soft."


def test_what_the_rules_cannot_compare_goes_to_the_model() -> None:
    worker = Worker(Toolbox([add]), OpenAICompatible("http://127.0.0.1:9/v1", "m"))
    with chat_server(reply(chat("Bo"))) as server:
        worker.model = client(server)
        goal = "which is largest of tall (Ann), very tall (Bo)"
        assert asyncio.run(worker(Task("c", goal, "answer"), {"a": "tall", "b": "very tall"})) == "Bo"
    assert worker.usages[0].input_tokens == 7


def test_templates_are_versioned_and_complete() -> None:
    assert {"plan-lines@1", "plan-graph@1", "plan-local@1", "repair@1", "answer@1"} <= set(names())
    assert template("plan-lines@1").name == "plan-lines@1"
    with pytest.raises(UsageError, match=r"no prompt template 'x@9'"):
        template("x@9")


@pytest.mark.parametrize("name", ["plan-lines@1", "plan-graph@1", "plan-local@1"])
def test_the_examples_in_the_templates_are_valid_plans(name: str) -> None:
    for message in template(name).messages(request="R", tools="", most="5"):
        text = message["content"]
        opening = "<graph>" if "<graph>" in text else "<plan>"
        for part in text.split(opening)[1:]:
            if "description" not in part:
                assert (
                    len(parse_plan(opening + part.split(opening.replace("<", "</"))[0] + opening.replace("<", "</")))
                    > 1
                )


def test_goals_that_name_a_tool_are_bound_to_it() -> None:
    plan = Plan([Task("a", "add: 2 and 3"), Task("b", "think about it"), Task("c", "send", depends_on=["a"])])
    bound = bind_tools(plan, [add, send])
    assert (bound["a"].action, bound["a"].args) == ("add", {"a": 2, "b": 3})
    assert bound["b"].action is None
    assert (bound["c"].action, bound["c"].args) == ("send", {"text": "{a}"})
    assert describe([]) == ""


def endless(handler: Any) -> None:
    """A model that never ends its plan, whatever max_tokens says."""
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.end_headers()
    with suppress(OSError):
        handler.wfile.write(event({"content": "<plan>\n"}) + b"\n\n")
        for number in count(1):
            handler.wfile.write(event({"content": f"Task {number}: go on | Dependencies: none\n"}) + b"\n\n")


def test_a_plan_without_an_end_is_cut_off() -> None:
    with chat_server(endless) as server:
        with pytest.raises(PlanningFailed, match="no valid plan in 2 attempts") as caught:
            asyncio.run(ModelPlanner(client(server), max_tokens=64).plan(REQUEST))
        assert len(server.requests) == 2
    assert len(caught.value.text or "") < 64 * 40


def test_a_planner_that_hangs_ends_with_the_time_of_the_run(tmp_path: Path) -> None:
    with chat_server() as server:
        server.script.append(lambda handler: server.release.wait(30) and None)
        result = run(REQUEST, model=client(server), budget=Budget(wall_s=0.3), home=tmp_path)
        server.release.set()
    assert (result.state, result.provenance, result.answer) == ("timed_out", None, None)
    assert result.error == "the wall time of 0.3 s is used up"
