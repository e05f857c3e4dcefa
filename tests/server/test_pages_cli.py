"""`agent-forge page` writes a run that needs no server; `data audit --save` puts a report where the dashboard looks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import server_home

from agent_forge.cli import run as cli


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    server_home.carry_out(folder, server_home.REVIEW, "report/1")
    return folder


def test_a_run_becomes_a_file(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli(["page", "report/1", "--home", str(home), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    page = Path(written["path"])
    assert page.name == "run-report-1.html"
    assert page.stat().st_size == written["bytes"]
    assert "outline" in page.read_text(encoding="utf-8")
    assert cli(["page", "report/1", "--home", str(home), "--out", "-"]) == 0
    assert capsys.readouterr().out.startswith("<!doctype html>")
    assert cli(["page", "report/1", "--home", str(home), "--out", "here.html"]) == 0
    assert capsys.readouterr().out == "here.html\n"


def test_what_cannot_be_written(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(["page", "none", "--home", str(home)]) == 2
    assert "there is no run 'none'" in capsys.readouterr().err
    assert cli(["page", "report/1", "--home", str(home), "--out", str(tmp_path / "no" / "x.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_an_audit_is_kept_where_the_dashboard_looks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "some rows.jsonl"
    rows.write_text('{"prompt": "What is two plus two?", "answer": "Two plus two is four."}\n')
    cli(["data", "audit", str(rows), "--save", "--home", str(tmp_path / "home"), "--json"])
    report = json.loads(capsys.readouterr().out)
    (kept,) = (tmp_path / "home" / "audits").iterdir()
    assert kept.name.startswith("some-rows-")
    assert json.loads(kept.read_text(encoding="utf-8")) == report
