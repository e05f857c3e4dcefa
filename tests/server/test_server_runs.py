"""The agent API: a run started, followed, approved, cancelled and fetched over HTTP, as the command line has it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

REQUEST = "Who is older, Manuel Antonio or Wilfred MacDonald?"


def start(server: Any, **body: Any) -> dict[str, Any]:
    with server.client() as client:
        answer = client.post("/v1/runs", json=body)
    assert answer.status_code == 202, answer.text
    started: dict[str, Any] = answer.json()
    assert answer.headers["location"] == started["url"]
    return started


def follow(server: Any, started: dict[str, Any], **headers: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of a run, with their names, until the server ends the stream."""
    with server.client() as client, client.stream("GET", started["events"], headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        name = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))


def fetch(server: Any, started: dict[str, Any]) -> dict[str, Any]:
    with server.client() as client:
        document: dict[str, Any] = client.get(started["url"]).json()
        return document


HOSTILE = ["Who is older, " + "\n" * 60_000 + " or B?", "1. " * 33_000, "def f(x):\n    return {name}[x] * 2\n" * 2500]


@pytest.mark.parametrize("request_text", HOSTILE, ids=["blank lines", "numbers", "code"])
def test_a_hostile_request_ends_and_the_server_goes_on_answering(plain: Any, request_text: str) -> None:
    """`re` holds the interpreter's lock: a pattern that takes a minute would silence every thread of the server."""
    started = start(plain, request=request_text)
    with plain.client() as client:
        while fetch(plain, started)["state"] == "running":
            assert client.get("/healthz").status_code == 200
    assert fetch(plain, started)["state"] in {"failed", "succeeded"}


def test_a_request_that_is_too_long_is_refused(plain: Any) -> None:
    with plain.client() as client:
        answer = client.post("/v1/runs", json={"request": "a " * 60_000})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "request")


def test_a_request_is_planned_and_carried_out(plain: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The result is the document that `agent-forge run --json` prints."""
    from agent_forge.cli import run

    started = start(plain, request=REQUEST)
    events = list(follow(plain, started))
    names = [name for name, _ in events]
    assert names[0] == "run_started"
    assert names[-2:] == ["finished", "result"]
    assert names.count("ended") == 3
    result = events[-1][1]
    assert result == fetch(plain, started)
    assert run(["run", REQUEST, "--json", "--home", str(plain.context.home)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert result.keys() == printed.keys()
    assert result["answer"] == printed["answer"]
    assert {name: task["result"] for name, task in result["tasks"].items()} == {
        name: task["result"] for name, task in printed["tasks"].items()
    }
    spans = plain.context.traces.trace(result["trace_id"])
    assert {"plan", "run", "task"} <= {span.kind for span in spans}


def test_a_run_that_ends_while_its_events_are_sent_is_followed_to_its_result(
    plain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last event comes after those that are being sent were listed."""
    from agent_forge.server.runs import routes
    from agent_forge.server.runs.run import ActiveRun

    monkeypatch.setattr(routes, "HEARTBEAT_S", 0.1)  # nobody is told of the event: it is found at the next look
    started = start(plain, request=REQUEST)
    assert [name for name, _ in follow(plain, started)][-2:] == ["finished", "result"]
    events = routes.runs_of(plain.context).find(started["run"]).events

    async def followed() -> list[bytes]:
        again = ActiveRun(started["run"], None, lambda *_: None)
        again.events = events[:-1]
        source = routes._events(plain.context, again, 0)
        sent = [await anext(source)]
        again.remember(events[-1])
        return sent + [chunk async for chunk in source]

    sent = b"".join(asyncio.run(followed()))
    assert sent.count(b"event: ") == len(events) + 1
    assert b"event: finished" in sent
    assert b"event: result" in sent


def test_a_plan_is_carried_out_with_the_servers_tools(live: Any) -> None:
    plan = {
        "tasks": [
            {"id": "a", "action": "double", "args": {"number": 4}},
            {"id": "b", "action": "double", "args": {"number": "{a}"}},
        ]
    }
    started = start(live, plan=plan, concurrency=2, budget={"calls": 10, "seconds": 60}, on_failure="fail_fast")
    result = list(follow(live, started))[-1][1]
    assert result["state"] == "done"
    assert [task["result"] for task in result["tasks"].values()] == [8, 16]
    text = start(live, plan="<plan>\n1. double(number=3)\n</plan>", timeout_s=30)
    assert list(follow(live, text))[-1][1]["state"] in ("done", "failed")


def test_an_approval_is_waited_for(live: Any) -> None:
    plan = {
        "tasks": [
            {"id": "a", "action": "double", "args": {"number": 1}, "meta": {"approval": True}},
            {"id": "b", "action": "double", "args": {"number": 2}, "meta": {"approval": True}},
        ]
    }
    started = start(live, plan=plan)
    waiting: set[str] = set()
    with live.client() as client:
        for name, event in follow(live, started):
            if name == "waiting_for_approval":
                waiting.add(event["task"])
                if waiting == {"a", "b"}:
                    assert set(fetch(live, started)["waiting_for_approval"]) == {"a", "b"}
                    for task, approved in (("a", True), ("b", False)):
                        answer = client.post(f"{started['url']}/approve", json={"task": task, "approved": approved})
                        assert answer.json() == {"run": started["run"], "task": task, "approved": approved}
            last = event
        assert last["tasks"]["a"]["result"] == 2
        assert last["tasks"]["b"]["state"] == "denied"
        again = client.post(f"{started['url']}/approve", json={"task": "a", "approved": True})
        assert again.status_code == 409


CHANGING = '''
from pathlib import Path
from agent_forge import tool

LOG = Path(__file__).with_name("log.txt")


def note(line):
    with LOG.open("a") as file:
        file.write(line + "\\n")
    return line


@tool
def look(name: str) -> str:
    """Looks."""
    return note("look " + name)


@tool(side_effects=True)
def send(to: str, text: str) -> str:
    """Sends."""
    return note(f"send {to} {text}")
'''
SENDING = {
    "tasks": [
        {"id": "a", "action": "look", "args": {"name": "Ann"}},
        {"id": "b", "action": "send", "args": {"to": "ann", "text": "{a}"}},
        {"id": "c", "action": "look", "args": {"name": "{b}"}},
    ]
}


def waits(server: Any, started: dict[str, Any]) -> None:
    end = time.monotonic() + 60
    while not fetch(server, started).get("waiting_for_approval") and time.monotonic() < end:
        time.sleep(0.01)


def test_side_effects_wait_and_the_arguments_may_be_changed(start_server: Any, tmp_path: Any) -> None:
    (tmp_path / "changing.py").write_text(CHANGING)
    server = start_server(tools=str(tmp_path / "changing.py"))
    started = start(server, plan=SENDING)
    waits(server, started)
    with server.client() as client:
        page = client.get(f"/runs/{started['run']}", headers={"Accept": "text/html"}).text
        assert 'data-approve="/v1/runs/' in page
        assert "look Ann" in page
        shown = client.get(f"/runs/{started['run']}.json").json()
        assert shown["approvals"] == {"b": {"tool": "send", "args": {"to": "ann", "text": "look Ann"}}}
        body = {"task": "b", "approved": True, "args": {"to": "bob"}}
        assert client.post(f"{started['url']}/approve", json=body).json() == {"run": started["run"], **body}
    result = list(follow(server, started))[-1][1]
    assert result["state"] == "done"
    assert (tmp_path / "log.txt").read_text().splitlines() == [
        "look Ann",
        "send bob look Ann",
        "look send bob look Ann",
    ]
    assert [(call["task"], call["args"]) for call in result["calls"]][1] == ("b", {"to": "bob", "text": "look Ann"})
    at_once = start(server, plan=SENDING, approve="all")
    assert list(follow(server, at_once))[-1][1]["state"] == "done"
    never = start(server, plan=SENDING, approve="none")
    assert list(follow(server, never))[-1][1]["tasks"]["b"]["state"] == "denied"


def test_a_pause_survives_a_restart_and_nothing_runs_again(tmp_path: Any) -> None:
    from agent_forge.server.context import Context
    from agent_forge.server.runs.runs import runs_of
    from agent_forge.server.settings import ServerSettings

    (tmp_path / "changing.py").write_text(CHANGING)
    settings = ServerSettings(home=str(tmp_path / "home"), tools=str(tmp_path / "changing.py"))
    first = Context(settings)
    run = runs_of(first).start({"plan": SENDING})
    end = time.monotonic() + 60
    while not run.waiting_for_approval and time.monotonic() < end:
        time.sleep(0.01)
    first.close()
    assert run.state == "waiting"
    second = Context(settings)
    assert runs_of(second).waiting(run.name) == {"b": {"tool": "send", "args": {"to": "ann", "text": "look Ann"}}}
    runs_of(second).decide(run.name, "b", {"to": "cy"})
    while runs_of(second).active and time.monotonic() < end:
        time.sleep(0.01)
    assert runs_of(second).document(run.name)["state"] == "done"
    second.close()
    assert (tmp_path / "log.txt").read_text().splitlines() == ["look Ann", "send cy look Ann", "look send cy look Ann"]


def test_a_run_is_cancelled_and_what_is_done_is_kept(live: Any) -> None:
    plan = {
        "tasks": [
            {"id": "a", "action": "double", "args": {"number": 1}},
            {"id": "b", "action": "double", "args": {"number": 2}, "depends_on": ["a"], "meta": {"approval": True}},
        ]
    }
    started = start(live, plan=plan)
    with live.client() as client:
        for name, _ in follow(live, started):
            if name == "waiting_for_approval":
                assert client.post(f"{started['url']}/cancel").status_code == 202
        document = fetch(live, started)
        assert document["state"] == "cancelled"
        assert document["tasks"]["a"]["result"] == 2
        listed = {run["run"]: run["state"] for run in client.get("/v1/runs").json()["runs"]}
        assert listed[started["run"]] == "cancelled"
        assert client.post(f"{started['url']}/cancel").status_code == 202  # twice does no harm


def test_followers_may_come_late_and_come_again(plain: Any) -> None:
    started = start(plain, request=REQUEST)
    first = list(follow(plain, started))
    again = list(follow(plain, started))
    assert first == again
    rest = list(follow(plain, started, **{"Last-Event-ID": "2"}))
    assert rest == first[3:]
    assert list(follow(plain, started, **{"Last-Event-ID": str(len(first))})) == []


def test_a_run_of_before_is_in_the_journal(plain: Any, start_server: Any) -> None:
    """A server that starts later knows the runs of the home folder."""
    started = start(plain, request=REQUEST)
    done = list(follow(plain, started))[-1][1]
    later = start_server(home=str(plain.context.home))
    document = fetch(later, started)
    assert document["state"] == "done"
    assert document["tasks"].keys() == done["tasks"].keys()
    assert document["trace_id"] == done["trace_id"]
    with later.client() as client:
        assert client.post(f"{started['url']}/cancel").status_code == 404
        assert client.get("/v1/runs/nobody").status_code == 404


def test_a_failing_run_says_why(live: Any) -> None:
    started = start(live, plan={"tasks": [{"id": "a", "action": "no_such_tool"}]})
    events = list(follow(live, started))
    result = events[-1][1]
    assert result["state"] == "failed"
    assert "no_such_tool" in result["error"]


def test_a_model_of_the_server_plans(live: Any) -> None:
    """The weights are random, so the plan cannot be good; but it was asked, and the run ends with a reason."""
    started = start(live, request=REQUEST, model="tiny", planner="model")
    result = list(follow(live, started))[-1][1]
    assert result["state"] == "failed"
    assert result["error"]
    live.context.recorder.flush()
    spans = live.context.traces.search(limit=50, kind="model", name="chat tiny").items
    assert any(span.inputs and "Manuel" in json.dumps(span.inputs) for span in spans)


def test_an_unknown_model_is_refused(live: Any) -> None:
    with live.client() as client:
        for name in ("nobody", "http://127.0.0.1:1/v1#x", "/etc"):
            assert client.post("/v1/runs", json={"request": "x", "model": name}).status_code == 404


def test_too_many_runs_wait_elsewhere(start_server: Any, live: Any) -> None:
    server = start_server(runs=1)
    task = {"id": "a", "action": "calculator", "args": {"expression": "1 + 1"}, "meta": {"approval": True}}
    plan = {"tasks": [task]}
    started = start(server, plan=plan)
    with server.client() as client:
        second = client.post("/v1/runs", json={"plan": plan})
        assert second.status_code == 429
        assert second.headers["retry-after"] == "5"
        client.post(f"{started['url']}/cancel")
    assert list(follow(server, started))[-1][1]["state"] == "cancelled"


def test_a_server_that_stops_ends_its_runs(tmp_path: Any) -> None:
    from agent_forge.server.context import Context
    from agent_forge.server.runs.runs import runs_of
    from agent_forge.server.settings import ServerSettings

    context = Context(ServerSettings(home=str(tmp_path)))
    task = {"id": "a", "action": "calculator", "args": {"expression": "1 + 1"}, "meta": {"approval": True}}
    run = runs_of(context).start({"plan": {"tasks": [task]}})
    end = time.monotonic() + 60
    while not run.waiting_for_approval and time.monotonic() < end:
        time.sleep(0.01)
    closing = threading.Thread(target=context.close)
    closing.start()
    closing.join(timeout=30)
    assert not closing.is_alive()
    assert run.state == "waiting"  # it can be approved after a restart


def test_half_a_character_in_a_result_reaches_the_reader(start_server: Any, tmp_path: Any) -> None:
    tools = tmp_path / "odd.py"
    tools.write_text('from agent_forge import tool\n@tool\ndef odd() -> str:\n    return "\\ud83d!"\n')
    server = start_server(tools=str(tools), home=str(tmp_path / "home"))
    started = start(server, plan={"tasks": [{"id": "a", "action": "odd"}]})
    assert list(follow(server, started))[-1][1]["tasks"]["a"]["result"] == "\ud83d!"
    assert fetch(server, started)["tasks"]["a"]["result"] == "\ud83d!"
    with server.client() as client:
        for page in ("/tasks/a", ".json", "/page"):
            answer = client.get(f"/runs/{started['run']}{page}", headers={"Accept": "text/html"})
            assert answer.status_code == 200
            assert b"ud83d!" in answer.content


def test_another_server_on_the_same_home_tells_the_same_of_a_run(start_server: Any, tmp_path: Any) -> None:
    """How every task ended, why, and the trace; only the answer was in the memory of the first."""
    tools = tmp_path / "tools.py"
    tools.write_text("""from agent_forge import tool
import asyncio
@tool
def fail() -> str:
    raise ValueError("no such city")
@tool
async def wait(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds
""")
    settings = {"tools": str(tools), "home": str(tmp_path / "home")}
    first = start_server(**settings)
    tasks = [{"id": "a", "action": "fail"}, {"id": "b", "action": "wait", "args": {"seconds": 0}, "depends_on": ["a"]}]
    failed = start(first, plan={"tasks": [*tasks, {"id": "c", "action": "wait", "args": {"seconds": 0}}]})
    told = list(follow(first, failed))[-1][1]
    held = start(first, plan={"tasks": [{"id": "d", "action": "wait", "args": {"seconds": 600}}]})
    while fetch(first, held)["tasks"].get("d", {}).get("state") != "running":
        time.sleep(0.05)
    with first.client() as client:
        client.post(f"{held['url']}/cancel")
    assert list(follow(first, held))[-1][1]["tasks"]["d"]["state"] == "cancelled"

    second = start_server(**settings)
    again = fetch(second, failed)
    assert again.keys() == told.keys()
    assert again["tasks"] == told["tasks"]
    assert {name: task["state"] for name, task in again["tasks"].items()} == {
        "a": "failed",
        "b": "skipped",
        "c": "done",
    }
    for name in ("run", "state", "error", "trace_id", "request"):
        assert again[name] == told[name]
    assert again["critical_path_s"] == pytest.approx(told["critical_path_s"])
    assert fetch(second, held)["tasks"]["d"]["state"] == "cancelled"
