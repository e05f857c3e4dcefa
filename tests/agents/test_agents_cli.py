"""`agent-forge agents` from outside: stdout, stderr, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from agent_forge.agents.profiles import AgentProfile, builtin_profiles
from agent_forge.cli._app import run_command


def test_ls(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["agents", "ls"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(builtin_profiles())
    assert run_command(["agents", "ls", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["agents"]
    assert {row["name"] for row in rows} == set(builtin_profiles())
    assert all(row["task_types"] for row in rows)


def test_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["agents", "show", "writer"]) == 0
    values = yaml.safe_load(capsys.readouterr().out)
    assert values["name"] == "writer"
    assert run_command(["agents", "show", "writer", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == values


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
