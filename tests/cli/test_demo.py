"""The demo measures what it prints."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from agent_forge.cli import demo, run


def test_the_demo_measures_what_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--home", str(tmp_path), "--latency", "0.05", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["questions"]) == 1 + len(demo.MORE)
    for row in document["questions"]:
        assert 0.05 <= row["critical_path_s"] <= row["parallel_s"]  # and less than one by one, if idle
        assert row["sequential_s"] >= 0.05 * row["tool_calls"], "one by one, every call waits its time"
        assert row["tokens"] is None, "no model was asked, so no tokens were measured"
    assert 0 < document["exact_match"]["right"] <= document["exact_match"]["of"] == 39
    assert run(["traces", "show", document["questions"][0]["trace"], "--home", str(tmp_path), "--json"]) == 0
    assert "Piccoli" in capsys.readouterr().out


def test_the_demo_for_people(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # without --home it makes a folder there
    monkeypatch.setattr(demo, "MORE", ("q25",))
    assert run(["demo", "--latency", "0.01"]) == 0
    out = capsys.readouterr().out
    assert "answer: Piccoli Fuochi" in out
    assert "agent-forge traces trajectory" in out
