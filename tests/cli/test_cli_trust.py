"""What is refused and asked at the command line."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agent_forge.cli import run

TOOLS = '''
from pathlib import Path
from typing import Any

from agent_forge import tool

LOG = Path(__file__).with_name("log.txt")


def note(line):
    with LOG.open("a") as file:
        file.write(line + "\\n")
    return line


@tool
def read_csv(path: str) -> list[str]:
    """Reads a CSV file."""
    note("read " + path)
    return ["a", "b"]


@tool
def get_weather(city: str) -> str:
    """Gets the weather of a city."""
    return note("weather " + city)


@tool(side_effects=True)
def send(to: str, text: str = "hello") -> str:
    """Sends a message to someone."""
    note(f"send {to} {text}")
    return "sent"
'''


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AGENT_FORGE_HOME", str(tmp_path / "home"))
    for name in ("MODEL", "PLANNER", "STORE", "CONCURRENCY"):
        monkeypatch.delenv(f"AGENT_FORGE_{name}", raising=False)
    path = tmp_path / "mytools.py"
    path.write_text(TOOLS)
    return str(path)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = run([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def log(tools: str) -> list[str]:
    path = Path(tools).with_name("log.txt")
    return path.read_text().splitlines() if path.exists() else []


def write_plan(tmp_path: Path, *tasks: dict[str, Any]) -> str:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"tasks": list(tasks)}))
    return str(path)


def test_calls_are_as_they_were_made(tools: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = printed(capsys, "run", "Get the weather in Oslo and Rome", "--tools", tools)
    assert code == 0
    calls = [
        {"task": f"s{n}", "tool": "get_weather", "args": {"city": city}, "state": "done"}
        for n, city in enumerate(("Oslo", "Rome"), 1)
    ]
    assert sorted(result["calls"], key=str) == calls
    assert result["missing"] == []
    plan = write_plan(
        tmp_path,
        {"id": "list", "action": "read_csv", "args": {"path": "x.csv"}},
        {"id": "each", "action": "get_weather", "args": {"city": "{item}"}, "for_each": "{list}"},
    )
    _, fanned = printed(capsys, "run", "--plan", plan, "--tools", tools)
    made = [(call["task"], call["args"]) for call in fanned["calls"]]
    assert made == [("list", {"path": "x.csv"}), ("each", {"city": "a"}), ("each", {"city": "b"})]


def test_what_cannot_be_grounded_is_refused_before_anything_runs(
    tools: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, result = printed(capsys, "run", "Read sales.csv and get the weather", "--tools", tools)
    assert (code, result["tasks"], result["calls"]) == (1, [], [])
    (missing,) = result["missing"]
    assert (missing["tool"], missing["parameter"]) == ("get_weather", "city")
    assert missing["why"]
    assert run(["run", "Read sales.csv and get the weather", "--tools", tools]) == 1
    assert "--model" in capsys.readouterr().err
    plan = write_plan(tmp_path, {"id": "a", "action": "get_weather", "args": {"town": "Oslo"}})
    code, result = printed(capsys, "run", "--plan", plan, "--tools", tools)
    assert code == 1
    assert {each["parameter"] for each in result["missing"]} == {"city", "town"}
    assert log(tools) == []


def test_plan_shows_calls_and_what_is_open(tools: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "Read sales.csv and get the weather", "--tools", tools]) == 0
    shown = capsys.readouterr().out
    assert 's1: read_csv(path="sales.csv")' in shown
    assert "open: task 's2': get_weather(city): the request does not say it" in shown
    _, document = printed(capsys, "plan", "Read sales.csv and get the weather", "--tools", tools)
    assert document["tasks"][0]["action"] == "read_csv"
    assert document["tasks"][0]["args"] == {"path": "sales.csv"}
    assert [each["parameter"] for each in document["missing"]] == ["city"]


def test_tools_may_be_described_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = {
        "name": "get_weather",
        "description": "Gets the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
    for number, document in enumerate(([schema], [{"type": "function", "function": schema}], {"tools": [schema]})):
        path = tmp_path / f"tools{number}.json"
        path.write_text(json.dumps(document))
        _, plan = printed(capsys, "plan", "Get the weather in Oslo", "--tools", str(path))
        assert plan["tasks"][0]["args"] == {"city": "Oslo"}
    (tmp_path / "bad.json").write_text('{"city": 3}')
    assert run(["plan", "x", "--tools", str(tmp_path / "bad.json")]) != 0
    assert "not a list of function schemas" in capsys.readouterr().err


def test_a_waiting_run_is_shown_approved_rejected_and_cancelled(
    tools: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = write_plan(
        tmp_path,
        {"id": "a", "action": "read_csv", "args": {"path": "x.csv"}},
        {"id": "b", "action": "send", "args": {"to": "{a[0]}"}},
        {"id": "c", "action": "send", "args": {"to": "bob"}},
        {"id": "d", "action": "get_weather", "args": {"city": "{b}"}},
    )
    code, result = printed(capsys, "run", "--plan", plan, "--tools", tools)
    assert (code, result["state"]) == (1, "waiting")
    assert {"task": "b", "tool": "send", "args": {"to": "a"}, "state": "waiting"} in result["calls"]
    name = result["run"]
    assert run(["runs", "show", name]) == 0
    assert f"runs approve {name} b" in capsys.readouterr().out.replace("'", "")
    _, shown = printed(capsys, "runs", "show", name)
    assert shown["tasks"]["c"]["args"] == {"to": "bob"}
    code, result = printed(capsys, "runs", "approve", name, "b", "--args", '{"text": "bye"}')
    assert (code, result["state"]) == (1, "waiting")  # `c` waits still
    code, result = printed(capsys, "runs", "approve", name, "c", "--reject")
    assert (code, result["tasks"]["c"]["state"]) == (1, "denied")
    assert log(tools) == ["read x.csv", "send a bye", "weather sent"]
    assert run(["runs", "approve", name, "a"]) == 2
    _, result = printed(capsys, "run", "--plan", plan, "--tools", tools)
    assert printed(capsys, "runs", "cancel", result["run"])[1] == {"run": result["run"], "state": "cancelled"}
    assert run(["runs", "cancel", result["run"]]) == 2
    code, result = printed(capsys, "run", "--plan", plan, "--tools", tools, "--approve", "all")
    assert (code, result["state"]) == (0, "done")


def test_a_terminal_is_asked(tools: str, tmp_path: Path) -> None:
    """On a real terminal: no, then new arguments, then Ctrl-C."""
    plan = write_plan(tmp_path, {"id": "a", "action": "send", "args": {"to": "ann"}})
    command = [sys.executable, "-m", "agent_forge", "run", "--plan", plan, "--tools", tools]
    sent = ["send bob hello"]
    for answer, expected, code in (("n", [], 1), ('{"to": "bob"}', sent, 0), (None, sent, 130)):
        main, other = pty.openpty()
        process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=dict(os.environ))
        os.close(other)
        seen, end, answered = b"", time.monotonic() + 60, False
        while process.poll() is None and time.monotonic() < end:
            if select.select([main], [], [], 0.1)[0]:
                try:
                    seen += os.read(main, 65536)
                except OSError:
                    break
            if not answered and b"Approve?" in seen and b": " in seen.split(b"Approve?")[-1]:
                if answer is None:
                    process.send_signal(signal.SIGINT)
                else:
                    os.write(main, answer.encode() + b"\n")
                answered = True
        assert process.wait(timeout=30) == code, seen
        os.close(main)
        assert b"changes the world" in seen, seen
        if answer is not None:
            question = seen.partition(b"Approve?")[2].partition(answer.encode())[0]
            assert b"\x1b[2K" not in question, seen  # no bar is drawn over it
        assert log(tools) == expected
