"""The examples run as their files say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_forge.cli import run

CITIES = Path(__file__).parents[2] / "examples" / "cities"


def test_cities(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--plan", str(CITIES / "plan.yaml"), "--tools", str(CITIES / "tools.py")]
    assert run(["run", *files, "--home", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["tasks"]["answer"]["result"] == "London"
    starts = [document["tasks"][name]["started_s"] for name in ("paris", "london", "rome")]
    ends = [document["tasks"][name]["ended_s"] for name in ("paris", "london", "rome")]
    assert max(starts) < min(ends), "the three look-ups ran at once"
