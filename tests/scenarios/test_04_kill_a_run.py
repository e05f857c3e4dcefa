"""Scenario 4: kill -9 of `agent-forge run` at random moments, also of the one that resumes. No effect happens twice,
what is in doubt is told and settled, and the run comes to its end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from scenario import report, times

from agent_forge.cli import run

TOOLS = '''
import time
from pathlib import Path

from agent_forge import tool

LOG = Path(__file__).with_name("log.txt")


@tool
def look(at: str) -> str:
    """Looks at something."""
    time.sleep(0.02)
    return at


@tool(side_effects={effects})
def send(to: str, text: str = "") -> str:
    """Sends a message to someone."""
    time.sleep(0.03)
    with LOG.open("a") as file:
        file.write(to + "\\n")
    time.sleep(0.03)
    return "sent to " + to
'''
PEOPLE = ("ann", "bob", "cem", "dan")


class Runs:
    """Runs of one plan in a home of their own, at the command line."""

    def __init__(self, folder: Path, effects: bool = True) -> None:
        folder.mkdir()
        self.log, self.tools, self.plan = (folder / name for name in ("log.txt", "mytools.py", "plan.json"))
        self.log.touch()
        self.tools.write_text(TOOLS.format(effects=effects))
        tasks: list[dict[str, Any]] = []
        for who in PEOPLE:
            before = f"{{{tasks[-1]['id']}}}" if tasks else "all"
            tasks.append({"id": f"look_{who}", "action": "look", "args": {"at": before}})
            tasks.append({"id": who, "action": "send", "args": {"to": who, "text": f"{{look_{who}}}"}})
        self.plan.write_text(json.dumps({"tasks": tasks}))
        self.environment = {**os.environ, "AGENT_FORGE_HOME": str(folder / "home")}
        self.start = ["run", "--plan", str(self.plan), "--tools", str(self.tools), "--approve", "all"]

    def sent(self) -> list[str]:
        return self.log.read_text().splitlines()

    def killed(self, arguments: list[str], lines: int, delay: float) -> bool:
        """Whether the process was killed, so long after it had sent so many messages, before it ended by itself."""
        command = [sys.executable, "-m", "agent_forge", *arguments]
        process = subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        goal = len(self.sent()) + lines
        while process.poll() is None and len(self.sent()) < goal:
            time.sleep(0.002)
        time.sleep(delay)
        process.kill()
        return process.wait(60) == -signal.SIGKILL


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    run([*arguments, "--json"])
    return json.loads(capsys.readouterr().out)


def doubts(result: Any) -> list[str]:
    return [name for name, task in result["tasks"].items() if task["state"] == "in_doubt"]


def kill_and_settle(runs: Runs, most: int, draw: random.Random, capsys: pytest.CaptureFixture[str]) -> tuple[int, int]:
    """Kills the run and those who resume it, settles by what the log says, up to the end: kills and doubts."""
    kills = doubted = 0
    arguments = runs.start
    while kills < most and runs.killed(arguments, draw.randint(0, 2), draw.random() * 0.12):
        kills += 1
        stored = printed(capsys, "runs", "ls")["runs"]
        if not stored:  # killed before it had begun
            continue
        (name,) = [each["run"] for each in stored]
        arguments = ["run", "--resume", name, "--approve", "all"]
        found = doubts(printed(capsys, *arguments))  # goes on with what is certain, not with what is not
        doubted += len(found)
        for task in found:
            arguments += ["--settle", f"{task}=done:by hand" if task in runs.sent() else f"{task}=retry"]
        if not found:
            break
    result = printed(capsys, *arguments)
    assert result["state"] == "done", result
    assert doubts(result) == []
    return kills, doubted


@pytest.mark.untraced
def test_killed_runs_repeat_no_effect_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draw, wanted = random.Random(4), times(3, 20)
    kills = doubted = rounds = held = 0
    while kills < wanted:
        rounds += 1
        runs = Runs(tmp_path / f"round{rounds}")
        monkeypatch.setenv("AGENT_FORGE_HOME", runs.environment["AGENT_FORGE_HOME"])
        more = kill_and_settle(runs, wanted - kills, draw, capsys)
        kills, doubted = kills + more[0], doubted + more[1]
        held += runs.sent() == list(PEOPLE)
    assert held == rounds
    assert doubted > 0 or kills < 20
    report(4, "kill -9 of a run, or of who resumes it: every effect once", kills, kills,
           f"{rounds} runs, all done; {doubted} doubts settled")  # fmt: skip


def test_after_a_kill_the_task_in_doubt_is_told_and_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = Runs(tmp_path / "run")
    monkeypatch.setenv("AGENT_FORGE_HOME", runs.environment["AGENT_FORGE_HOME"])
    assert runs.killed(runs.start, 1, 0)
    (name,) = [each["run"] for each in printed(capsys, "runs", "ls")["runs"]]
    assert run(["run", "--resume", name]) == 1
    assert f"run --resume {name} --settle ann=done:VALUE" in capsys.readouterr().err
    assert run(["run", "--resume", name, "--settle", "bob=retry"]) == 2
    assert run(["run", "--resume", name, "--settle", "nonsense"]) == 2
    assert runs.sent() == ["ann"]
    capsys.readouterr()
    tasks = printed(capsys, "run", "--resume", name, "--approve", "all", "--settle", "ann=done:by hand")["tasks"]
    assert (tasks["ann"]["result"], tasks["look_bob"]["result"]) == ("by hand", "by hand")
    assert runs.sent() == list(PEOPLE)


def test_a_tool_that_hides_its_effects_repeats_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The control: what keeps an effect from happening twice is that it is declared."""
    runs = Runs(tmp_path / "run", effects=False)
    monkeypatch.setenv("AGENT_FORGE_HOME", runs.environment["AGENT_FORGE_HOME"])
    assert runs.killed(runs.start, 1, 0)
    (name,) = [each["run"] for each in printed(capsys, "runs", "ls")["runs"]]
    assert printed(capsys, "run", "--resume", name)["state"] == "done"
    assert runs.sent() == ["ann", *PEOPLE]
