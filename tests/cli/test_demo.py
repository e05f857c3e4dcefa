"""The demo measures what it prints."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from agent_forge.cli import demo, run
from agent_forge.cli._output import call_again


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


@pytest.mark.parametrize("home", [None, "my home"])
def test_the_closing_hint_works_as_printed(
    home: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # without a home it makes a folder there
    monkeypatch.setattr(demo, "MORE", ("q25",))
    if home is None:
        monkeypatch.delenv("AGENT_FORGE_HOME", raising=False)
    else:
        monkeypatch.setenv("AGENT_FORGE_HOME", home)
    assert run(["demo", "--latency", "0.01"]) == 0
    out = capsys.readouterr().out
    assert "answer: Piccoli Fuochi" in out
    hint = out.splitlines()[-1]
    assert " traces trajectory " in hint
    assert ("--home" in hint) == (home is None), "the environment names the home already"
    assert home is None or (tmp_path / home / "traces.db").exists()
    shown = subprocess.run(hint, shell=True, capture_output=True, text=True, check=True).stdout
    assert "critical path" in shown


def test_the_program_is_called_by_the_name_that_works_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python, script = tmp_path / ".venv" / "bin" / "python", tmp_path / ".venv" / "bin" / "agent-forge"
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.chdir(tmp_path)
    assert call_again("doctor") == f"{python} -m agent_forge doctor"
    script.write_text("")
    script.chmod(0o755)
    assert call_again("doctor") == ".venv/bin/agent-forge doctor"
    monkeypatch.chdir("/")
    assert call_again("doctor", home="a b") == f"{tmp_path.relative_to('/')}/.venv/bin/agent-forge doctor --home 'a b'"
    monkeypatch.chdir("/usr")
    assert call_again("doctor") == f"{script} doctor"
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin")
    assert call_again("doctor") == "agent-forge doctor"
