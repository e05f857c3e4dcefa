"""Tools called by workers: the same results as without them, and what cannot travel is refused before anything runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agent_forge import Plan, Task, run, tool
from agent_forge.cli import run as command
from agent_forge.errors import UsageError
from agent_forge.runtime import Journal

TOOLS = '''
import os
from dataclasses import dataclass
from agent_forge import tool

@dataclass
class Point:
    x: int
    y: int = 1

@tool
def scale(point: Point, by: int) -> dict[str, int]:
    """A point, further away."""
    return {"x": point.x * by, "y": point.y * by}

@tool
async def whose(number: int) -> list[int]:
    """The process that calls it."""
    return [os.getpid(), number]

@tool
def fails(why: str) -> str:
    """Fails."""
    raise LookupError(why)
'''
PLAN = Plan(
    [
        Task("a", action="scale", args={"point": {"x": 3}, "by": 2}),
        Task("b", action="scale", args={"point": "{a}", "by": 5}),
        Task("c", action="fails", args={"why": "on purpose"}),
    ]
)


@pytest.fixture
def tools(tmp_path: Path) -> str:
    file = tmp_path / "tools_elsewhere.py"
    file.write_text(TOOLS)
    return str(file)


def outcome(result: Any) -> list[Any]:
    return [result.state, {name: (task.state, task.result) for name, task in result.tasks.items()}]


def same_as_local(tools: str, tmp_path: Path, workers: str) -> None:
    """A plan with a failure, and who called: whatever carries it out."""
    here = run(PLAN, tools=tools, home=tmp_path / "here")
    there = run(PLAN, tools=tools, home=tmp_path / "there", workers=workers)
    assert outcome(there) == outcome(here)
    assert there.tasks["b"].result == {"x": 30, "y": 10}
    assert "on purpose" in str(there.tasks["c"].error)
    (process, number) = (
        run([Task("w", action="whose", args={"number": 7})], tools=tools, record=False, workers=workers)
        .tasks["w"]
        .result
    )
    assert number == 7
    assert process != os.getpid()
    assert Journal.open(tmp_path / "there").load(there.run).results == {"a": {"x": 6, "y": 2}, "b": {"x": 30, "y": 10}}


def test_processes_give_the_same_results(
    tools: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    same_as_local(tools, tmp_path, "processes:1")
    monkeypatch.chdir(tmp_path)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"tasks": [{"id": "a", "action": "scale", "args": {"point": {"x": 4}, "by": 3}}]}))
    options = ["--plan", str(plan), "--tools", "tools_elsewhere.py", "--workers", "processes:1", "--json"]
    assert command(["run", *options, "--home", str(tmp_path / "cli")]) == 0
    assert json.loads(capsys.readouterr().out)["tasks"]["a"]["result"] == {"x": 12, "y": 3}


def test_what_cannot_travel_is_refused() -> None:
    @tool
    def local(n: int) -> int:
        """Not to be imported."""
        return n

    plan = [Task("a", action="local", args={"n": 1})]
    with pytest.raises(UsageError, match="cannot be given tools as Python objects"):
        run(plan, tools=[local], record=False, workers="processes:1")
    for wrong in ("threads of hope", "processes:many", "processes:1:2"):
        with pytest.raises(UsageError, match="there are no workers"):
            run(plan, tools=[local], record=False, workers=wrong)


def test_a_ray_cluster_gives_the_same_results(tools: str, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed: the extra `ray` brings it")
    same_as_local(tools, tmp_path, "ray://local")
