"""The agent loop: turns, corrections, repeats, limits, sessions, structured answers, events and spans."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from agents_chat_server import ChatServer, chat, chat_server, event, reply, stream

from agent_forge import Agent, run, tool
from agent_forge.agents.agent import AgentEvent
from agent_forge.agents.conversation import as_data, fit, size
from agent_forge.agents.profiles import AgentLimits, AgentProfile, load_profile
from agent_forge.agents.sessions import Sessions
from agent_forge.agents.tools import UnknownTool
from agent_forge.errors import ConfigError, StoreError, UsageError
from agent_forge.inference import OpenAICompatible
from agent_forge.plans import literal
from agent_forge.plans.references import resolve
from agent_forge.traces import Recorder, Store
from agent_forge.traces.dataset import messages as training_rows

CALLED: list[tuple[str, Any]] = []


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_FORGE_HOME", str(tmp_path / "home"))
    for name in ("MODEL", "PLANNER", "STORE", "CONCURRENCY"):
        monkeypatch.delenv(f"AGENT_FORGE_{name}", raising=False)
    CALLED.clear()


@tool
def temperature(city: str) -> float:
    """The temperature in a city, in degrees Celsius."""
    CALLED.append(("temperature", city))
    if city == "Atlantis":
        raise ValueError("no such city")
    return {"Oslo": 4.0, "Rome": 21.5}.get(city, 0.0)


@tool
def convert(degrees: float, unit: str = "F") -> float:
    """Converts degrees Celsius to another unit."""
    CALLED.append(("convert", degrees))
    return degrees * 9 / 5 + 32


@tool(side_effects=True)
def send(text: str) -> str:
    """Sends a text."""
    CALLED.append(("send", text))
    return "sent"


def calls(*pairs: tuple[str, Any], text: str = "") -> dict[str, Any]:
    """An answer that calls these tools."""
    wire = [
        {"id": f"c{n}", "type": "function",
         "function": {"name": name, "arguments": args if isinstance(args, str) else json.dumps(args)}}
        for n, (name, args) in enumerate(pairs)
    ]  # fmt: skip
    return chat(text, tool_calls=wire)


def client(server: ChatServer) -> OpenAICompatible:
    return OpenAICompatible(server.url, "served-model", retries=0)


def agent(server: ChatServer, **fields: Any) -> Agent:
    profile = AgentProfile(name="ada", **fields)
    return Agent(profile, [temperature, convert, send], client(server), record=False)


def observations(server: ChatServer, request: int = -1) -> list[Any]:
    return [json.loads(m["content"]) for m in server.requests[request]["messages"] if m["role"] == "tool"]


# Turns


def test_three_turns_end_with_an_answer() -> None:
    first = calls(("temperature", {"city": "Oslo"}), ("temperature", {"city": "Rome"}))
    second = calls(("convert", {"degrees": 21.5}))
    with chat_server(reply(first), reply(second), reply(chat("Rome has 70.7 F"))) as server:
        result = agent(server).run("How warm is the warmer of Oslo and Rome, in F?")
    assert (result.state, result.answer, result.turns) == ("done", "Rome has 70.7 F", 3)
    assert [(call.tool, call.state, call.result) for call in result.calls] == [
        ("temperature", "done", 4.0), ("temperature", "done", 21.5), ("convert", "done", 70.7),
    ]  # fmt: skip
    assert observations(server, 1) == [4.0, 21.5]
    assert observations(server, 2) == [4.0, 21.5, 70.7]
    assert result.usage.model_calls == 3
    assert (result.usage.tool_calls, result.usage.input_tokens) == (3, 21)
    roles = [message["role"] for message in server.requests[2]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant", "tool"]


def test_calls_of_a_turn_run_in_parallel_within_the_limits_of_their_tools() -> None:
    running, most = {"free": 0, "one": 0}, {"free": 0, "one": 0}
    all_here = asyncio.Event()

    async def work(name: str) -> str:
        running[name] += 1
        most[name] = max(most[name], running[name])
        if name == "free":  # each waits for all four: one after another they would never meet
            if running["free"] == 4:
                all_here.set()
            await asyncio.wait_for(all_here.wait(), 30)
        else:
            await asyncio.sleep(0.01)
        running[name] -= 1
        return name

    @tool
    async def free(n: int) -> str:
        """Any number at a time."""
        return await work("free")

    @tool(concurrency=1)
    async def one(n: int) -> str:
        """One at a time."""
        return await work("one")

    both = calls(*[("free", {"n": n}) for n in range(4)], *[("one", {"n": n}) for n in range(4)])
    with chat_server(reply(both), reply(chat("ok"))) as server:
        result = Agent(None, [free, one], client(server), record=False).run("Go with 0, 1, 2 and 3.")
    assert result.ok
    assert most == {"free": 4, "one": 1}


def test_a_tool_that_fails_is_reported_to_the_model() -> None:
    with chat_server(reply(calls(("temperature", {"city": "Atlantis"}))), reply(chat("unknown city"))) as server:
        result = agent(server).run("How warm is Atlantis?")
    assert result.answer == "unknown city"
    (seen,) = observations(server)
    assert seen["state"] == "failed"
    assert "no such city" in seen["error"]


def test_braces_in_arguments_are_data_not_references() -> None:
    @tool
    def echo(text: str) -> str:
        """Says it again."""
        return text

    text = "{c0} {{c1}} {item.x} ${3}"
    with chat_server(reply(calls(("echo", {"text": text}), ("echo", {"text": "b"}))), reply(chat("ok"))) as server:
        Agent(None, [echo], client(server), record=False).run(f"Say {text} and b")
    assert observations(server) == [text, "b"]


def test_a_literal_value_survives_resolution_whatever_it_holds() -> None:
    rng = random.Random(7)
    for _ in range(3000):
        text = "".join(rng.choice('{}s1.[]" x') for _ in range(rng.randint(0, 14)))
        value = {"a": [text, 1], "b": text}
        assert resolve(literal(value), {"s1": "no", "x": "no"}) == value


# Wrong calls


def test_a_call_that_does_not_fit_goes_back_with_what_was_expected() -> None:
    wrong = calls(("temperature", {"ctiy": "Oslo"}))
    right = calls(("temperature", {"city": "Oslo"}))
    with chat_server(reply(wrong), reply(right), reply(chat("4 degrees"))) as server:
        result = agent(server).run("How warm is Oslo?")
    assert result.answer == "4 degrees"
    assert [call.state for call in result.calls] == ["invalid", "done"]
    (feedback,) = observations(server, 1)
    assert feedback["nearest"] == {"ctiy": "city"}
    assert set(feedback["offending"]) == {"city", "ctiy"}
    assert feedback["expected"]["properties"]["city"]["type"] == "string"
    assert [request.get("tool_choice") for request in server.requests] == [None, "required", None]


def test_a_plain_text_answer_is_not_taken_for_the_corrected_call() -> None:
    wrong = calls(("temperature", {"city": 3}))
    with chat_server(reply(wrong), reply(chat("It is 4 degrees."))) as server:
        result = agent(server, limits=AgentLimits(corrections=2)).run("How warm is Oslo?")
    assert result.state == "failed"
    assert "no call was made" in (result.error or "")
    assert len(server.requests) == 3
    assert not CALLED


def test_a_corrected_call_printed_as_text_is_made() -> None:
    wrong = calls(("temperature", {"city": None}))
    printed = '```json\n{"name": "temperature", "arguments": {"city": "Rome"}}\n```'
    with chat_server(reply(wrong), reply(chat(printed)), reply(chat("21.5"))) as server:
        result = agent(server).run("How warm is Rome?")
    assert (result.answer, CALLED) == ("21.5", [("temperature", "Rome")])


def test_arguments_that_are_not_json_go_back_too() -> None:
    with chat_server(
        reply(calls(("temperature", '{"city": '))), reply(calls(("temperature", {"city": "Oslo"}))), reply(chat("4"))
    ) as server:
        result = agent(server).run("How warm is Oslo?")
    assert result.answer == "4"
    assert "not JSON" in server.requests[1]["messages"][-1]["content"]
    assert server.requests[1]["tool_choice"] == "required"


def test_a_wrong_call_made_again_unchanged_ends_the_work() -> None:
    with chat_server(reply(calls(("temperature", {"town": "Oslo"})))) as server:
        result = agent(server, limits=AgentLimits(turns=50, corrections=50)).run("How warm is Oslo?")
    assert result.state == "failed"
    assert "repeated a call unchanged" in (result.error or "")
    assert len(server.requests) == 2


def test_a_failed_call_made_again_unchanged_ends_the_work() -> None:
    with chat_server(reply(calls(("temperature", {"city": "Atlantis"})))) as server:
        result = agent(server).run("How warm is Atlantis?")
    assert (result.state, len(server.requests), len(CALLED)) == ("failed", 2, 1)


def test_a_call_that_was_done_is_not_made_twice() -> None:
    again = calls(("temperature", {"city": "Oslo"}))
    with chat_server(reply(again), reply(again), reply(chat("4"))) as server:
        result = agent(server).run("How warm is Oslo?")
    assert (result.answer, len(CALLED)) == ("4", 1)
    assert observations(server)[-1]["result"] == 4.0
    assert server.requests[2]["tool_choice"] == "none"


def test_a_tool_that_is_not_cached_may_be_asked_again() -> None:
    ticks = iter(range(9))

    @tool(cache=False)
    def clock() -> int:
        """The time."""
        return next(ticks)

    with chat_server(reply(calls(("clock", {}))), reply(calls(("clock", {}))), reply(chat("1"))) as server:
        result = Agent(None, [clock], client(server), record=False).run("Wait until it is 1.")
    assert [call.result for call in result.calls] == [0, 1]


def test_a_value_that_nobody_gave_is_not_used() -> None:
    invented = calls(("temperature", {"city": "Paris"}))
    with chat_server(reply(invented), reply(chat("Which city do you mean?"))) as server:
        result = agent(server).run("How warm is it?")
    assert (result.answer, CALLED) == ("Which city do you mean?", [])
    assert [(call.state, call.was_made) for call in result.calls] == [("ungiven", False)]
    assert "nobody gave 'Paris'" in observations(server)[0]["faults"][0]
    assert "tool_choice" not in server.requests[1]  # what is missing may have to be asked for
    with chat_server(reply(invented), reply(chat("0"))) as server:
        assert agent(server, grounded=False).run("How warm is it?").calls[0].state == "done"
    chain = (
        reply(calls(("temperature", {"city": "Rome"}))),
        reply(calls(("convert", {"degrees": 21.5}))),
        reply(chat("70.7")),
    )
    with chat_server(*chain) as server:  # an earlier result is given
        assert [call.state for call in agent(server).run("How warm is Rome in F?").calls] == ["done", "done"]


def test_an_unknown_tool_is_answered_with_the_nearest() -> None:
    with chat_server(
        reply(calls(("temprature", {"city": "Oslo"}))),
        reply(calls(("temperature", {"city": "Oslo"}))),
        reply(chat("4")),
    ) as server:
        result = agent(server).run("How warm is Oslo?")
    assert result.answer == "4"
    assert observations(server, 1)[0]["nearest"] == {"temprature": "temperature"}


def test_an_empty_answer_is_asked_for_again() -> None:
    with chat_server(reply(chat(" ")), reply(chat("hello"))) as server:
        assert agent(server).run("Say hello").answer == "hello"


# Approval


def test_a_run_says_which_call_of_its_agent_nobody_approved() -> None:
    with chat_server(reply(calls(("send", {"text": "hi"}))), reply(chat("could not"))) as server:
        result = run("Send hi", tools=[send], model=client(server), strategy="react", record=False)
    assert [call["state"] for call in result.calls] == ["waiting"]
    [warning] = result.warnings
    assert "send was not called, nobody was there to approve it" in warning
    assert not CALLED


def test_side_effects_need_an_approval() -> None:
    with chat_server(reply(calls(("send", {"text": "hi"}))), reply(chat("could not"))) as server:
        result = agent(server).run("Send hi")
    assert [call.state for call in result.calls] == ["waiting"]  # nobody was there to ask
    assert not CALLED
    with chat_server(reply(calls(("send", {"text": "hi"}))), reply(chat("could not"))) as server:
        result = Agent(None, [send], client(server), approve="none", record=False).run("Send hi")
    assert [call.state for call in result.calls] == ["denied"]
    assert "not approved" in observations(server)[0]["error"]
    asked: list[Any] = []

    def approve(task: Any) -> bool:
        asked.append((task.action, dict(task.args)))
        return True

    with chat_server(reply(calls(("send", {"text": "{hi}"}))), reply(chat("sent"))) as server:
        result = Agent(None, [send], client(server), approve=approve, record=False).run("Send it")
    assert [call.state for call in result.calls] == ["done"]
    assert CALLED == [("send", "{hi}")]
    assert asked == [("send", {"text": "{hi}"})]


# Answers


@dataclass
class City:
    name: str
    degrees: float


def test_an_answer_becomes_a_dataclass() -> None:
    with chat_server(
        reply(calls(("temperature", {"city": "Rome"}))),
        reply(chat("Rome is warmest.")),
        reply(chat('```json\n{"name": "Rome", "degrees": 21.5}\n```')),
    ) as server:
        result = agent(server).run("Which is warmest?", answer_as=City)
    assert result.answer == City("Rome", 21.5)
    assert "response_format" not in server.requests[0]  # servers that decode under it could not call a tool
    last = server.requests[2]
    assert last["tool_choice"] == "none"
    assert last["response_format"]["json_schema"]["schema"]["required"] == ["name", "degrees"]
    assert "not JSON" in last["messages"][-1]["content"]


def test_an_answer_of_the_wrong_form_fails_after_the_corrections() -> None:
    with chat_server(reply(chat('{"n": "three"}'))) as server:
        result = agent(server, limits=AgentLimits(corrections=1)).run(
            "How many?", answer_as={"type": "object", "properties": {"n": {"type": "integer"}}}
        )
    assert (result.state, result.answer, len(server.requests)) == ("failed", None, 2)
    assert "must be integer" in (result.error or "")
    with pytest.raises(UsageError, match="not a JSON Schema"):
        agent(server).run("How many?", answer_as={"type": "whole number"})


# Events


def test_events_as_they_happen() -> None:
    wire = {"index": 0, "id": "c0", "function": {"name": "temperature", "arguments": '{"city": "Oslo"}'}}
    first = stream(event({"content": "I look. "}), event({"tool_calls": [wire]}, finish="tool_calls"))
    second = stream(event({"content": "4 "}), event({"content": "degrees"}, finish="stop"))

    async def collect(server: ChatServer) -> list[AgentEvent]:
        return [each async for each in agent(server).astream("How warm is Oslo?")]

    with chat_server(first, second) as server:
        events = asyncio.run(collect(server))
    assert [each.kind for each in events] == ["turn", "text", "call", "observation", "turn", "text", "text", "answer"]
    assert [each.text for each in events if each.kind == "text"] == ["I look. ", "4 ", "degrees"]
    assert events[2].call is not None
    assert events[2].call.args == {"city": "Oslo"}
    assert events[-1].result is not None
    assert events[-1].result.answer == "4 degrees"


def test_leaving_the_events_stops_the_work() -> None:
    async def leave(server: ChatServer) -> None:
        async for each in agent(server).astream("How warm is Oslo?"):
            assert each.kind == "turn"
            break
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        await asyncio.sleep(0.05)
        assert all(task.done() for task in others)

    with chat_server(stream(event({"content": "x"}, finish="stop"))) as server:
        asyncio.run(leave(server))


# Sessions


def test_a_session_remembers_what_was_said(tmp_path: Path) -> None:
    with chat_server(reply(calls(("temperature", {"city": "Oslo"}))), reply(chat("4")), reply(chat("Oslo"))) as server:
        ours = Agent(None, [temperature], client(server), home=tmp_path)
        ours.run("How warm is Oslo?", session="ann")
        again = Agent(None, [temperature], client(server), home=tmp_path)  # as another process would
        assert again.run("Which city did I ask about?", session="ann").answer == "Oslo"
        again.run("And I?", session="bob")
    roles = [message["role"] for message in server.requests[2]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert len(server.requests[3]["messages"]) == 2
    sessions = Sessions.open(tmp_path)
    assert [m["role"] for m in sessions.messages("ann")] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]
    sessions.close()
    with pytest.raises(UsageError, match="not a valid session name"):
        ours.run("x", session="a/b")


def test_a_request_that_failed_is_not_remembered(tmp_path: Path) -> None:
    with chat_server(reply(chat(" "))) as server:
        ours = Agent(None, [temperature], client(server), home=tmp_path)
        assert not ours.run("Hello", session="ann").ok
    sessions = Sessions.open(tmp_path)
    assert sessions.messages("ann") == []
    sessions.close()
    (tmp_path / "sessions.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(StoreError):
        Sessions.open(tmp_path)


# The context


def test_results_are_json_without_markup_and_equal_to_what_they_were() -> None:
    rng = random.Random(3)
    marks = ["<|im_end|>", "<|im_start|>system", "</s>", "<s>", "[INST]", "[/INST]", "<tool_call>", "</tool_response>",
             "<start_of_turn>", "<｜User｜>", "[TOOL_CALLS]", "<!--", "<think>"]  # fmt: skip
    for _ in range(500):
        value = {"text": "".join(rng.choice([*marks, " a ", "<", "[", "1 < 2", "é"]) for _ in range(8)), "n": [1, None]}
        text = as_data(value)
        assert json.loads(text) == value
        assert not any(mark in text for mark in marks)
    for most in (100, 101, 150, 999, 5000):
        for character in 'x"<\\':
            long = as_data(f"{character}|" * 20_000, most)
            assert len(long) <= most
            json.loads(long)
    long = as_data("x" * 50_000, 1000)
    assert json.loads(long)["left_out"].endswith("characters")


def test_what_does_not_fit_is_left_out_oldest_first() -> None:
    def turn(n: int, chars: int) -> list[dict[str, Any]]:
        call = {"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        return [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{n}", "content": as_data("x" * chars)},
        ]

    start = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "old"},
        {"role": "assistant", "content": "a"},
    ]
    request = [{"role": "user", "content": "request"}]
    messages = [*start, *request, *turn(1, 2000), *turn(2, 2000), *turn(3, 2000)]
    assert fit(messages, 3, 100_000) == messages
    some = fit(messages, 3, 4800)
    assert len(some) == len(messages)
    assert "left_out" in some[5]["content"]
    assert some[7] == messages[7]
    for most in (3000, 2000, 1000, 600):
        cut = fit(messages, 3, most)
        assert size(cut) <= max(most, 600)
        assert cut[0] == messages[0]
        assert request[0] in cut
        assert cut[-1]["tool_call_id"] == "c3"
        answered = [m["tool_call_id"] for m in cut if m["role"] == "tool"]
        assert answered == [m["tool_calls"][0]["id"] for m in cut if m["role"] == "assistant" and "tool_calls" in m]


def test_a_long_result_is_cut_before_the_model_sees_it() -> None:
    @tool
    def read() -> str:
        """A long text."""
        return "y" * 100_000

    with chat_server(reply(calls(("read", {}))), reply(chat("ok"))) as server:
        limits = AgentLimits(result_chars=500)
        result = Agent(AgentProfile(name="ada", limits=limits), [read], client(server), record=False).run("Read it.")
    assert result.calls[0].result == "y" * 100_000  # the record is whole
    assert len(server.requests[1]["messages"][-1]["content"]) <= 500


# Spans


def test_every_turn_call_and_observation_is_a_span_and_the_run_a_training_row(tmp_path: Path) -> None:
    recorder = Recorder(Store.open(tmp_path / "mine"))
    with chat_server(reply(calls(("temperature", {"city": "Oslo"}))), reply(chat("4 degrees"))) as server:
        ours = Agent(AgentProfile(name="ada"), [temperature], client(server), recorder=recorder)
        result = ours.run("How warm is Oslo?")
    recorder.flush()
    trace = recorder.store.trace(result.trace_id)
    names = [(span.kind, span.name) for span in trace]
    assert names.count(("agent", "ada")) == 1
    assert [name for kind, name in names if kind == "task"] == ["turn 1", "turn 2"]
    assert ("tool", "temperature") in names
    call = next(span for span in trace if span.kind == "tool")
    seen = next(span for span in trace if span.kind == "observation")
    assert (call.inputs, call.outputs, seen.outputs) == ({"city": "Oslo"}, 4.0, "4.0")
    assert seen.links == [(call.trace_id, call.span_id)]
    models = [span for span in trace if span.kind == "model"]
    assert all("tools" not in span.inputs for span in models)
    root = next(span for span in trace if span.parent_id is None)
    (schemas,) = root.attributes["tool_schemas"].values()
    assert schemas == [temperature.spec]
    assert all(span.agent == "ada" for span in trace)
    rows = list(training_rows([trace]))
    assert [row["tools"] for row in rows] == [[temperature.spec]]
    assert [m["role"] for m in rows[0]["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    recorder.close()


def test_in_a_run_the_outermost_span_keeps_the_schemas(tmp_path: Path) -> None:
    with chat_server(reply(calls(("temperature", {"city": "Oslo"}))), reply(chat("4"))) as server:
        result = run("How warm is Oslo?", tools=[temperature], model=client(server), home=tmp_path, strategy="react")
    assert result.answer == "4"
    with Store.open(tmp_path) as store:
        trace = store.trace(result.trace_id or "")
    holders = [span for span in trace if "tool_schemas" in span.attributes]
    assert [span.parent_id for span in holders] == [None]
    assert {span.agent for span in trace} == {"default"}
    assert next(iter(training_rows([trace])))["tools"] == [temperature.spec]


# Profiles, field by field


def test_instructions_are_the_system_message() -> None:
    with chat_server(reply(chat("ok"))) as server:
        agent(server, instructions="Speak like a sailor.").run("Hello")
        agent(server, description="Talks about boats.").run("Hello")
    first, second = (request["messages"][0]["content"] for request in server.requests)
    assert first.startswith("Speak like a sailor.")
    assert second.startswith("Talks about boats.")


def test_tools_are_those_that_the_profile_names() -> None:
    with chat_server(reply(chat("ok"))) as server:
        agent(server).run("Hello")
        agent(server, tools=("convert",)).run("Hello")
        agent(server, tools=()).run("Hello")
        offered = [[t["function"]["name"] for t in request.get("tools", [])] for request in server.requests]
        assert offered == [["temperature", "convert", "send"], ["convert"], []]
        with pytest.raises(UnknownTool, match="did you mean 'convert'"):
            agent(server, tools=("covert",))
        assert Agent("researcher", model=client(server)).tools.names == ("search",)


def test_the_model_is_the_profiles_unless_another_is_given() -> None:
    with chat_server(reply(chat("ok"))) as server:
        mine = AgentProfile(name="ada", model=f"{server.url}#mine")
        Agent(mine, [], record=False).run("Hello")
        Agent(mine, [], client(server), record=False).run("Hello")
        run("Hello there", tools=[], agent=mine, record=False, strategy="react")
    assert [request["model"] for request in server.requests] == ["mine", "served-model", "mine"]
    with pytest.raises(UsageError, match="has no model"):
        Agent(AgentProfile(name="ada"), [])


def test_the_output_schema_is_the_form_of_answers() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    with chat_server(reply(chat("three")), reply(chat('{"n": 3}'))) as server:
        result = agent(server, output_schema=schema).run("How many?")
    assert result.answer == {"n": 3}
    assert '"required": ["n"]' in server.requests[0]["messages"][0]["content"]


def test_the_temperature_is_sent() -> None:
    with chat_server(reply(chat("ok"))) as server:
        agent(server, temperature=0.7).run("Hello")
        agent(server).run("Hello")
        agent(server, temperature=None).run("Hello")
    assert [request.get("temperature") for request in server.requests] == [0.7, 0.0, None]


def test_each_limit_limits() -> None:
    def more(n: int) -> Any:
        return reply(calls(("convert", {"degrees": n})))

    def ended(limits: AgentLimits, *script: Any) -> tuple[Any, ChatServer]:
        with chat_server(*script) as server:
            return agent(server, limits=limits, grounded=False).run("go"), server

    result, server = ended(AgentLimits(turns=3), *[more(n) for n in range(9)])
    assert (result.state, len(server.requests)) == ("turn_limit", 3)
    assert server.requests[2]["tool_choice"] == "none"
    result, _ = ended(
        AgentLimits(calls=1), reply(calls(("convert", {"degrees": 1}), ("convert", {"degrees": 2}))), reply(chat("ok"))
    )
    assert [call.state for call in result.calls] == ["done", "not_made"]
    result, server = ended(AgentLimits(corrections=0), reply(calls(("convert", {}))))
    assert (result.state, len(server.requests)) == ("failed", 1)
    _, server = ended(AgentLimits(answer_tokens=7), reply(chat("ok")))
    assert server.requests[0]["max_tokens"] == 7
    result, server = ended(AgentLimits(tokens=15), *[more(n) for n in range(9)])
    assert (result.state, len(server.requests)) == ("over_budget", 2)
    assert "15 tokens" in (result.error or "")
    _, server = ended(
        AgentLimits(context_tokens=256, answer_tokens=50), *[more(n) for n in range(7)], reply(chat("ok"))
    )
    sent = [size(request["messages"]) for request in server.requests]
    assert max(sent) <= 256 * 3


def test_seconds_and_cost_limit_too() -> None:
    from agent_forge.runtime import spend

    @tool
    async def slow() -> str:
        """Takes long."""
        await asyncio.sleep(5)
        return "late"

    @tool
    def dear(n: int) -> int:
        """Costs a dollar."""
        spend(cost=1.0)
        return n

    with chat_server(reply(calls(("slow", {})))) as server:
        profile = AgentProfile(name="ada", limits=AgentLimits(seconds=0.2))
        assert Agent(profile, [slow], client(server), record=False).run("go").state == "timed_out"
    with chat_server(*[reply(calls(("dear", {"n": n}))) for n in range(9)]) as server:
        profile = AgentProfile(name="ada", limits=AgentLimits(cost=2.5), grounded=False)
        with pytest.raises(UsageError, match="the cost of served-model is not known"):
            Agent(profile, [dear], client(server), record=False).run("go")

    def priced(answer: dict[str, Any]) -> Any:
        return reply({**answer, "usage": {**answer["usage"], "cost": 0.5}})

    with chat_server(*[priced(calls(("dear", {"n": n}))) for n in range(9)]) as server:
        result = Agent(profile, [dear], client(server), record=False).run("go")
    assert (result.state, len(result.calls), result.usage.cost) == ("over_budget", 2, 3.0)


def test_unknown_fields_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ada.yaml"
    path.write_text("name: ada\ninstrctions: hello\n")
    with pytest.raises(ConfigError, match="did you mean 'instructions'"):
        load_profile(path)
    path.write_text("name: ada\nlimits: {turn: 3}\n")
    with pytest.raises(ConfigError, match=r"limits\.turn.*did you mean 'turns'"):
        load_profile(path)
    path.write_text("name: ada\ntemperature: 3\n")
    with pytest.raises(ConfigError, match="between 0 and 2"):
        load_profile(path)
    path.write_text("name: ada\nlimits: {turns: 3}\noutput_schema: {type: integer}\ntools: [convert]\n")
    assert load_profile(path) == AgentProfile(
        name="ada", limits=AgentLimits(turns=3), output_schema={"type": "integer"}, tools=("convert",)
    )


def test_in_a_team_every_agent_works_by_its_own_profile(tmp_path: Path) -> None:
    from agent_forge import Plan, Task

    with chat_server(reply(chat("done"))) as server:
        sam = AgentProfile(
            name="sam", task_types=("sums",), instructions="Count on your fingers.", tools=("convert",), temperature=0.3
        )
        eve = replace(sam, name="eve", task_types=("answer",), instructions="Guess.", tools=())
        plan = Plan([Task("a", "add the numbers", meta={"task_type": "sums"}), Task("b", "write a poem about {a}")])
        result = run(
            plan, tools=[temperature, convert], model=client(server), team={"sam": sam, "eve": eve}, home=tmp_path
        )
    assert result.ok, result.error
    first, second = server.requests
    assert first["messages"][0]["content"].startswith("Count on your fingers.")
    assert [t["function"]["name"] for t in first["tools"]] == ["convert"]
    assert first["temperature"] == 0.3
    assert second["messages"][0]["content"].startswith("Guess.")
    assert "tools" not in second
