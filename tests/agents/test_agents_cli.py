"""`agent-forge agents` from outside: stdout, stderr, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from agent_forge.agents.profiles import AgentProfile, builtin_profiles, roster
from agent_forge.cli._app import run_command


def test_ls(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["agents", "ls"]) == 0
    lines = capsys.readouterr().out.splitlines()
    both = [*(("default", name) for name in builtin_profiles()), *(("genesis", name) for name in roster("genesis"))]
    assert [tuple(line.split()[1::-1]) for line in lines] == both
    assert run_command(["agents", "ls", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["agents"]
    assert [(row["roster"], row["name"]) for row in rows] == both
    assert all(row["task_types"] for row in rows)
    assert run_command(["agents", "ls", "--roster", "genesis", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["agents"]
    assert len(rows) == 15
    assert {row["name"]: row["output_schema"] is not None for row in rows}["finance"]


def test_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["agents", "show", "writer"]) == 0
    values = yaml.safe_load(capsys.readouterr().out)
    assert values["name"] == "writer"
    assert run_command(["agents", "show", "writer", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == values


def test_the_two_analysts_are_told_apart_by_roster(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for extra in ([], ["--roster", "default"], ["--roster", "genesis"]):
        assert run_command(["agents", "show", "analyst", "--json", *extra]) == 0
        shown.append(json.loads(capsys.readouterr().out))
    assert shown[0] == shown[1]
    assert (shown[1]["family"], shown[2]["family"]) == (None, "analyst")


def test_mistakes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run_command(["agents", "show", "wirter"]) == 2
    captured = capsys.readouterr()
    assert "Did you mean 'writer'" in captured.err
    assert captured.out == ""
    assert run_command(["agents", "ls", "--profiles", str(tmp_path)]) == 2
    assert "no agent profiles" in capsys.readouterr().err


def test_own_profiles(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "ada.yaml").write_text("name: ada\ndescription: Counts.\n", encoding="utf-8")
    assert run_command(["agents", "show", "ada", "--profiles", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["description"] == AgentProfile("ada", "Counts.").description
