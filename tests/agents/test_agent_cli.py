"""`agent-forge chat`, `init`, and the strategies of `run`, as a user calls them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agents_chat_server import ChatServer, chat, chat_server, event, reply, stream
from commands import agent_forge

TOOLS = '''
from agent_forge import tool

@tool
def temperature(city: str) -> float:
    """The temperature in a city."""
    return {"Oslo": 4.0, "Rome": 21.5}[city]

@tool(side_effects=True)
def send(text: str) -> str:
    """Sends a text."""
    return "sent " + text
'''


def forge(folder: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return agent_forge(folder, *arguments, stdin=stdin, **places(folder))


def forge_process(folder: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agent_forge", *arguments], cwd=folder, env={**os.environ, **places(folder)},
        input=stdin, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def places(folder: Path) -> dict[str, str]:
    return {"AGENT_FORGE_HOME": str(folder / "home"), "XDG_CONFIG_HOME": str(folder / "config"), "NO_COLOR": "1"}


def call(name: str, args: dict[str, Any]) -> Any:
    wire = {"index": 0, "id": "c0", "function": {"name": name, "arguments": json.dumps(args)}}
    return stream(event({"tool_calls": [wire]}, finish="tool_calls"))


def says(*pieces: str) -> Any:
    return stream(*[event({"content": piece}) for piece in pieces], event({}, finish="stop"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tools.py").write_text(TOOLS)
    return tmp_path


def model(server: ChatServer) -> list[str]:
    return ["--model", f"{server.url}#served-model"]


def test_a_conversation_through_a_pipe(folder: Path) -> None:
    script = (call("temperature", {"city": "Oslo"}), says("It is ", "4 degrees."), says("Oslo."))
    with chat_server(*script) as server:
        done = forge(folder, "chat", "--tools", "tools.py", *model(server), "--session", "ann",
                     stdin="How warm is Oslo?\n\nWhich city?\n/exit\nnever read\n")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["It is 4 degrees.", "Oslo.", ""]
    assert "→ temperature(city='Oslo')" in done.stderr
    assert "← 4.0" in done.stderr
    again = done.stderr.partition("continue with: ")[2].splitlines()[0]
    assert shlex.split(again)[-7:] == ["chat", "--tools", "tools.py", *model(server), "--session", "ann"]
    assert len(server.requests) == 3
    roles = [message["role"] for message in server.requests[2]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
    with chat_server(says("Still Oslo.")) as server:  # another process continues it
        continued = forge_process(folder, "chat", *model(server), "--session", "ann", stdin="And now?")
    assert continued.stdout == "Still Oslo.\n"
    assert len(server.requests[0]["messages"]) == 8


def test_a_failing_model_does_not_end_the_conversation(folder: Path) -> None:
    with chat_server(reply({"error": {"message": "no such model"}}, 404), says("Hello.")) as server:
        done = forge(folder, "chat", *model(server), stdin="Hello?\nHello?\n")
    assert done.stdout.strip() == "Hello."
    assert "no such model" in done.stderr
    assert done.returncode == 1


def test_side_effects_in_a_pipe_need_a_word_before(folder: Path) -> None:
    for option, seen in (("ask", "nobody was there to ask"), ("all", "sent hi")):
        with chat_server(call("send", {"text": "hi"}), says("done")) as server:
            forge(folder, "chat", "--tools", "tools.py", "--approve", option, *model(server), stdin="Send hi\n")
        assert seen in server.requests[1]["messages"][-1]["content"]


def test_chat_without_a_model_says_what_to_do(folder: Path) -> None:
    done = forge(folder, "chat", stdin="Hello\n")
    assert done.returncode == 2
    assert "has no model" in done.stderr
    assert "--model" in done.stderr


def test_run_by_strategy(folder: Path) -> None:
    arguments = ["run", "How warm are Oslo and Rome?", "--tools", "tools.py", "--json"]
    wire = [
        {
            "id": f"c{n}",
            "type": "function",
            "function": {"name": "temperature", "arguments": json.dumps({"city": city})},
        }
        for n, city in enumerate(["Oslo", "Rome"])
    ]
    with chat_server(
        reply(chat("", tool_calls=wire)), reply(chat("", tool_calls=wire[1:])), reply(chat("4 and 21.5"))
    ) as server:
        done = forge(folder, *arguments, "--strategy", "react", *model(server))
    document = json.loads(done.stdout)
    assert (document["answer"], document["planner"]) == ("4 and 21.5", "react")
    seen = [m["content"] for m in server.requests[1]["messages"] if m["role"] == "tool"]
    assert seen[0] == "4.0"
    assert "at most 1 call" in seen[1]
    plan = '<graph><node id="s1">temperature("Oslo")</node><node id="s2">temperature("Rome")</node></graph>'
    with chat_server(says(plan), reply(chat("<answer>4 and 21.5</answer>"))) as server:
        done = forge(folder, *arguments, "--strategy", "graph", *model(server))
    document = json.loads(done.stdout)
    assert (document["answer"], document["planner"], set(document["tasks"])) == ("4 and 21.5", "model", {"s1", "s2"})
    done = forge(folder, *arguments, "--strategy", "react")
    assert done.returncode == 2
    assert "needs a model" in done.stderr


def test_init_makes_a_folder_that_works_as_printed(folder: Path) -> None:
    done = forge(folder, "init", "shop")
    assert done.returncode == 0, done.stderr
    shop = folder / "shop"
    assert sorted(path.name for path in shop.iterdir()) == ["README.md", "agent.yaml", "scenarios.yaml", "tools.py"]
    printed = [shlex.split(line) for line in done.stdout.splitlines() if line.startswith("  agent-forge ")]
    readme = (shop / "README.md").read_text()
    printed += [shlex.split(line) for line in re.findall(r"^    (agent-forge .*)$", readme, re.MULTILINE)]
    without_model = [words for words in printed if "--model" not in words]
    assert len(without_model) >= 4
    for words in without_model:
        ran = forge(shop, *words[1:])
        assert ran.returncode == 0, (words, ran.stdout, ran.stderr)
    assert "2.5" in forge(shop, "run", "Get the price of tea", "--tools", "tools.py").stdout
    with chat_server(reply(chat("7 euros"))) as server:
        for words in printed:
            if "--model" in words and words[1] == "run":
                words[words.index("--model") + 1] = f"{server.url}#served-model"
                assert forge(shop, *words[1:]).stdout.strip() == "7 euros"
    assert server.requests[0]["messages"][0]["content"].startswith("You are the waiter")


def test_scenarios_that_differ_are_reported(folder: Path) -> None:
    scenarios = [
        {"request": "Get the temperature of Oslo", "calls": ["temperature"], "answer": "4"},
        {"request": "Get the temperature of Rome", "calls": ["send"], "answer": "30"},
    ]
    (folder / "s.yaml").write_text(json.dumps({"scenarios": scenarios}))
    tools = TOOLS.replace("city: str", 'city: Literal["Oslo", "Rome"]').replace(
        "from agent", "from typing import Literal\nfrom agent", 1
    )
    (folder / "tools.py").write_text(tools)
    done = forge(folder, "agents", "eval", "--scenarios", "s.yaml", "--tools", "tools.py", "--json")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert (document["passed"], document["n"]) == (1, 2)
    assert document["scenarios"][0]["faults"] == []
    assert document["scenarios"][1]["faults"] == ["called temperature, expected send", "answered '21.5', expected '30'"]
    (folder / "s.yaml").write_text("scenarios:\n- reqest: x\n")
    assert "did you mean 'request'" in forge(folder, "agents", "eval", "--scenarios", "s.yaml").stderr


def test_init_overwrites_nothing(folder: Path) -> None:
    done = forge(folder, "init")
    assert done.returncode == 2
    assert "tools.py exists already" in done.stderr
    assert (folder / "tools.py").read_text() == TOOLS
    assert not (folder / "agent.yaml").exists()
