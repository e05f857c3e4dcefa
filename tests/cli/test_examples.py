"""The examples run as their files say."""

from __future__ import annotations

import json
import subprocess
import sys
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


@pytest.mark.parametrize("arguments", [["curation_pii_accuracy.py"], ["curation_fit_difficulty.py", "fit"]])
def test_without_their_data_they_say_so(tmp_path: Path, arguments: list[str]) -> None:
    command = [sys.executable, str(CITIES.parent / arguments[0]), *arguments[1:], "--data", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.endswith("there is no such folder\n")
