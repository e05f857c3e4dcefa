"""Thirty requests over twelve tools of a user's own: no call is ever made with a value that nobody gave.

`said` below is an independent, stricter judge than the product's: a value must be a part of the request, letter by
letter, or stand in the short table of what these requests mean by other words.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from agents_chat_server import ChatServer, Reply, chat, chat_server, event, reply, stream
from trust_cases import BOX, DONE, SEEN, TOOLS, UNSEEN, Calls

from agent_forge import Task, plan, run, tool
from agent_forge.agents import PlanRefused, Tool
from agent_forge.agents.planner import ModelPlanner, PlanningFailed
from agent_forge.agents.result import Result
from agent_forge.agents.tools import bundled_questions
from agent_forge.errors import AgentForgeError
from agent_forge.inference import OpenAICompatible
from agent_forge.plans import Plan, find_references, to_xml

CASES = SEEN + UNSEEN
IDS = [case[0][:40] for case in CASES]
OTHER_WORDS = {12: "twelve", "2026-03-05": "March 5th, 2026", "09:30": "9:30 am", 1: "one", "SEK": "Swedish kronor"}
RESULTS = ["rain in ", "short", "French: ", "Spanish: ", "north", "south", "11.5", "101.5"]  # what the tools return


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_FORGE_HOME", str(tmp_path / "home"))
    for name in ("MODEL", "PLANNER", "STORE", "CONCURRENCY"):
        monkeypatch.delenv(f"AGENT_FORGE_{name}", raising=False)
    DONE.clear()


pytestmark = pytest.mark.untraced  # thirty requests, six ways


def said(value: Any, request: str) -> bool:
    if isinstance(value, list):
        return all(said(each, request) for each in value)
    if isinstance(value, dict):
        return any(mark in str(value) for mark in RESULTS)
    text = str(int(value)) if isinstance(value, float) and value == int(value) else str(value)
    if text.casefold() in request.casefold():
        return True
    return OTHER_WORDS.get(value, "\0") in request or any(mark in text for mark in RESULTS)


def ungrounded(request: str) -> Calls:
    """The calls that were really made with a value that nobody gave."""
    found = []
    for name, args in DONE:
        defaults = {key: each.get("default") for key, each in BOX.get(name).schema["properties"].items()}
        if not all(value == defaults[key] or said(value, request) for key, value in args.items()):
            found.append((name, args))
    return found


def test_the_judge_of_this_file_finds_what_is_ungrounded() -> None:
    DONE.append(("get_weather", {"city": "Bergen", "unit": "celsius"}))
    assert ungrounded("Get the weather in Oslo") == DONE
    assert ungrounded("Get the weather in Bergen") == []


# The rules


@pytest.mark.parametrize(("request_", "calls"), CASES, ids=IDS)
def test_the_rules_make_grounded_calls_or_none(request_: str, calls: Calls | None) -> None:
    refused = None
    try:
        result = run(request_, tools=TOOLS, planner="rules", approve="all")
    except PlanRefused as error:
        refused = error
    if refused is not None:
        assert refused.missing
        assert all(each.why for each in refused.missing)
        assert "--model" in str(refused)
        assert DONE == []
        return
    assert ungrounded(request_) == []
    assert calls is not None, f"it should have been refused, and called {DONE}"
    assert result.ok


@pytest.mark.parametrize(("request_", "calls"), SEEN, ids=IDS[: len(SEEN)])
def test_the_rules_read_what_they_were_written_for(request_: str, calls: Calls | None) -> None:
    if calls is None:
        with pytest.raises(PlanRefused):
            run(request_, tools=TOOLS, planner="rules", approve="all")
        return
    assert [(task.action, dict(task.args)) for task in plan(request_, tools=TOOLS, planner="rules")] == calls


def test_how_many_of_the_unseen_requests_the_rules_read() -> None:
    """A figure, not a promise: 12 of 15 when it was written, and none read wrongly. It must not fall."""
    right = 0
    for request, calls in UNSEEN:
        made: Any
        try:
            run(request, tools=TOOLS, planner="rules", approve="all", record=False)
            made = [(task.action, dict(task.args)) for task in plan(request, tools=TOOLS, planner="rules")]
        except PlanRefused:
            made = None
        right += made == calls
    assert right >= 12


@pytest.mark.parametrize("request_", [request for request, _ in CASES[::3]], ids=IDS[::3])
def test_the_default_planner_makes_grounded_calls_or_none(request_: str) -> None:
    """The forged planner, where it is sure enough, else the rules."""
    with suppress(PlanRefused):
        run(request_, tools=TOOLS, approve="all", record=False)
    assert ungrounded(request_) == []


# A scripted endpoint. How a request reads decides about its plan; about what follows it hardly does: a third of them is
# enough there.


def graph(calls: Calls) -> str:
    return to_xml(Plan(Task(f"s{number}", "", name, args) for number, (name, args) in enumerate(calls, 1)))


def told(text: str) -> Reply:
    return stream(event({"content": text}), event({}, "stop"))


def client(server: ChatServer) -> OpenAICompatible:
    return OpenAICompatible(server.url, "scripted", retries=0, timeout_s=20)


def run_with(server: ChatServer, request: str, tools: Any = TOOLS, **options: Any) -> Result:
    planner = ModelPlanner(client(server), always_graph=True)
    return run(request, tools=tools, planner=planner, model=client(server), approve="all", **options)


def invented(request: str) -> Calls:
    """A plan as bad models write them: a value that nobody gave, and the instruction as an argument."""
    return [("get_weather", {"city": "Bergen"}), ("read_csv", {"path": request}), ("stock_price", {"symbol": "TSLA"})]


@pytest.mark.parametrize(("request_", "calls"), CASES[::2], ids=IDS[::2])
def test_a_right_plan_is_carried_out_as_it_is(request_: str, calls: Calls | None) -> None:
    if calls is None:
        return
    with chat_server(told(graph(calls)), reply(chat("<answer>done</answer>"))) as server:
        result = run_with(server, request_)
    assert result.ok, result.error
    assert ungrounded(request_) == []
    made = [(call["tool"], call["args"]) for call in result.calls]
    assert sorted(map(str, literal(made))) == sorted(map(str, literal(calls)))
    assert {call["state"] for call in result.calls} == {"done"}


def literal(calls: Calls) -> Iterator[tuple[str, dict[str, Any]]]:
    """Calls without references and what they stand for."""
    for name, args in calls:
        kept = {k: v for k, v in args.items() if not find_references(v) and not any(m in str(v) for m in RESULTS)}
        yield name, kept


@pytest.mark.parametrize(("request_", "calls"), CASES[1::2], ids=IDS[1::2])
def test_a_wrong_plan_is_written_once_more_then_the_rules_plan_or_it_is_refused(
    request_: str, calls: Calls | None
) -> None:
    answers = [told(graph(invented(request_))), told(graph(invented(request_))), reply(chat("I cannot say."))]
    with chat_server(*answers) as server:
        outcome: Result | PlanningFailed
        try:
            outcome = run_with(server, request_)
        except PlanningFailed as error:
            outcome = error
        faults = server.requests[1]["messages"][-1]["content"]
    assert ungrounded(request_) == []
    assert not {("get_weather", "Bergen"), ("stock_price", "TSLA")} & {
        (name, str(next(iter(args.values())))) for name, args in DONE
    }
    assert "get_weather(city): nobody gave 'Bergen'" in faults
    why = str(outcome) if isinstance(outcome, PlanningFailed) else outcome.warnings[0]
    assert "nobody gave" in why
    assert isinstance(outcome, PlanningFailed) or "planned by rules" in why


@pytest.mark.parametrize(("request_", "calls"), CASES[::3], ids=IDS[::3])
def test_a_wrong_plan_that_is_then_right_is_carried_out(request_: str, calls: Calls | None) -> None:
    if calls is None:
        return
    answers = [told(graph(invented(request_))), told(graph(calls)), reply(chat("<answer>done</answer>"))]
    with chat_server(*answers) as server:
        result = run_with(server, request_)
    assert result.ok
    assert ungrounded(request_) == []


def failing(name: str, times: int) -> list[Tool]:
    """The tools, of which one fails so many times; and a tool that does the same in another way."""
    left = [times]
    broken = BOX.get(name)

    def fail(**args: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise ConnectionError("the service is down")
        return broken.function(**args)

    spare = replace(broken, name=f"{name}_by_hand")
    return [*(each if each.name != name else replace(each, function=fail) for each in TOOLS), spare]


@pytest.mark.parametrize("times", [1, 10_000], ids=["failing tool", "dead tool"])
@pytest.mark.parametrize(("request_", "calls"), CASES[1::3], ids=IDS[1::3])
def test_a_failure_is_mended_by_the_model(request_: str, calls: Calls | None, times: int) -> None:
    if calls is None:
        return
    name = calls[0][0]
    mended = [(f"{name}_by_hand" if each == name else each, args) for each, args in calls]
    answers = [told(graph(calls)), reply(chat(graph(mended))), reply(chat(graph(mended)))]
    with chat_server(*answers) as server:
        result = run_with(server, request_, failing(name, times))
        shown = server.requests[1]["messages"][-1]["content"]
    assert ungrounded(request_) == []
    assert "the service is down" in shown
    assert request_ in shown
    assert result.state == "done", (result.error, result.warnings)
    assert any("was replaced" in warning for warning in result.warnings)
    assert "replaced" in {task.state for task in result.tasks.values()}


@pytest.mark.parametrize(("request_", "calls"), CASES[2::3], ids=IDS[2::3])
def test_a_dead_tool_that_cannot_be_mended_ends_with_a_reason(request_: str, calls: Calls | None) -> None:
    """The model invents a value to mend with, again and again: nothing is called with it."""
    if calls is None:
        return
    name = calls[0][0]
    wrong = reply(chat(graph([("get_weather", {"city": "Bergen"})])))
    with chat_server(told(graph(calls)), wrong) as server:
        result = run_with(server, request_, failing(name, 10_000), repairs=2)
        asked = len(server.requests)
    assert ungrounded(request_) == []
    assert result.state == "failed"
    assert "the service is down" in (result.error or "")
    assert any("nobody gave 'Bergen'" in warning for warning in result.warnings)
    assert asked <= 1 + 2 + 1  # the plan, two repairs, the answer


def test_without_a_model_the_declared_fallback_is_taken() -> None:
    @tool(fallback="weather_of_yesterday")
    def get_weather(city: str) -> str:
        """Gets the weather of a city."""
        raise ConnectionError("down")

    @tool
    def weather_of_yesterday(city: str) -> str:
        """What the paper said."""
        return f"sun in {city}"

    result = run("Get the weather in Oslo", tools=[get_weather, weather_of_yesterday])
    assert (result.state, result.answer) == ("done", "sun in Oslo")
    assert "get_weather failed, so weather_of_yesterday was called" in result.warnings[0]
    assert [(call["tool"], call["state"]) for call in result.calls] == [
        ("get_weather", "failed"),
        ("weather_of_yesterday", "done"),
    ]
    task = Task("a", "", "get_weather", {"city": "Rome"}, meta={"fallback": "weather_of_yesterday"})
    plain = replace(get_weather, fallback=None)
    assert run([task], tools=[plain, weather_of_yesterday]).answer == "sun in Rome"


# Approvals


def test_side_effects_wait_by_default_and_go_on_later() -> None:
    request = "Read sales.csv and delete the file old/report.txt"
    result = run(request, tools=TOOLS, planner="rules")
    assert result.state == "waiting"
    assert [name for name, _ in DONE] == ["read_csv"]
    waiting = {"task": "s2", "tool": "delete_file", "args": {"path": "old/report.txt"}, "state": "waiting"}
    assert waiting in result.calls
    still = run(resume=result.run, tools=TOOLS)
    assert still.state == "waiting"
    done = run(resume=result.run, tools=TOOLS, approve={"s2": {"path": "older.txt"}})
    assert done.state == "done"
    assert DONE == [("read_csv", {"path": "sales.csv"}), ("delete_file", {"path": "older.txt"})]


def test_a_short_request_to_a_model_waits_too() -> None:
    """It is planned, not left to an agent, whose turn could not wait."""
    request = "Delete the file old/report.txt"
    with chat_server(told(graph([("delete_file", {"path": "old/report.txt"})]))) as server:
        result = run(request, tools=TOOLS, model=client(server))
    assert result.state == "waiting"
    assert DONE == []
    assert run(resume=result.run, tools=TOOLS, model=client(server), approve={"s1": True}).tasks["s1"].state == "done"
    assert DONE == [("delete_file", {"path": "old/report.txt"})]


def test_nobody_all_or_a_function_may_approve() -> None:
    request = "Delete tmp.log"
    assert run(request, tools=TOOLS, planner="rules", approve="none").tasks["s1"].state == "denied"
    asked: list[Task] = []
    assert run(request, tools=TOOLS, planner="rules", approve=lambda task: asked.append(task) or True).ok
    assert [dict(task.args) for task in asked] == [{"path": "tmp.log"}]
    wrong = run(request, tools=TOOLS, planner="rules", approve={"s1": {"path": 3}})
    assert wrong.state == "failed"
    assert "'path' must be string" in (wrong.error or "")
    with pytest.raises(AgentForgeError, match="approve is 'maybe'"):
        run(request, tools=TOOLS, planner="rules", approve="maybe")


# The bundled questions


@cache
def right_answers(**options: Any) -> int:
    answers = {each.question: each.answer for each in bundled_questions()}
    return sum(run(question, record=False, **options).answer == answer for question, answer in answers.items())


BAD = {
    "garbage": [told("Sure! Here is my plan."), reply(chat("no idea"))],
    "nothing": [told(""), reply(chat(""))],
    "unknown tools": [told('<graph><node id="s1">teleport("Oslo")</node></graph>'), reply(chat("Oslo"))],
    "another question": [told('<graph><node id="s1">search("Bergen")</node></graph>'), reply(chat("Bergen"))],
    "an answer": [told('<graph><node id="s1">answer("forty")</node></graph>'), reply(chat("forty"))],
    "errors": [reply({"error": {"message": "overloaded"}}, 500)],
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_bad_model_makes_no_bundled_question_worse(bad: list[Reply]) -> None:
    without = right_answers()
    assert without >= 29

    def answer(handler: Any) -> None:
        bad[0 if server.requests[-1].get("stream") else -1](handler)

    with chat_server(answer) as server:
        assert right_answers(model=client(server)) >= without
