"""`agent-forge traces` as people and scripts call it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trace_spans import START, full, make, span_id, trace_id

from agent_forge.cli import run
from agent_forge.traces import Store

FIXTURE = Path(__file__).parent / "fixtures" / "otlp" / "openinference-langchain.json"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENT_FORGE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def call(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> Any:
    assert run(["traces", *map(str, arguments)]) == code
    output = capsys.readouterr()
    if code:
        return output.err
    return json.loads(output.out) if "--json" in arguments else output.out + output.err


def test_import_list_show_and_export(capsys: pytest.CaptureFixture[str], tmp_path: Path, home: Path) -> None:
    done = call(capsys, "import", FIXTURE, "--json")
    assert done == {"spans": 4, "added": 4, "store": str(home / "traces.db")}
    assert "0 of 4" in call(capsys, "import", FIXTURE)
    [trace] = call(capsys, "ls", "--json")["traces"]
    assert (trace["name"], trace["spans"], trace["input_tokens"], trace["status"]) == ("weather_agent", 4, 42, "ok")
    assert trace["started"].endswith("Z")
    assert trace["duration_s"] > 0
    shown = call(capsys, "show", trace["trace_id"], "--json")
    assert shown["trace_id"] == trace["trace_id"]
    assert {span["name"] for span in shown["spans"]} == {"weather_agent", "ChatOpenAI", "weather"}
    for format_ in ("otlp", "jsonl", "parquet"):
        out = tmp_path / f"out.{format_}"
        assert call(capsys, "export", "--format", format_, out, "--json")["records"] == 4
        assert out.stat().st_size > 0
    assert "4 records" in call(capsys, "export", tmp_path / "again.json")


def test_nothing_to_list_or_export_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path, home: Path) -> None:
    assert call(capsys, "ls") == "there are no traces yet\n"
    with Store.open(home) as store:
        store.add([make(0)])
    assert call(capsys, "ls", "--agent", "nobody") == "there are no such traces\n"
    assert "runs without a model have no messages" in call(
        capsys, "export", "--format", "messages", tmp_path / "rows.jsonl"
    )


def test_the_tables_for_people(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    with Store.open(home) as store:
        bad = make(1, parent_id=span_id(0), name="[red]odd\x1b[2J", status="error", error="boom", kind="tool")
        running = make(2, parent_id=span_id(7), name="orphan", end_ns=None, status="unset")
        store.add([make(0, name="root", reward=0.5), bad, running, full(3)])
    listed = call(capsys, "ls")
    assert trace_id(0)[:12] in listed
    assert "root" in listed
    shown = call(capsys, "show", trace_id(0))
    for words in ("root", "[red]odd�[2J", "boom", "orphan", "running", "reward 0.50", "11+5 tokens", "tiny-1"):
        assert words in shown
    assert "\x1b[2J" not in shown


def test_filters_and_pages(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    with Store.open(home) as store:
        store.add([make(n, trace=n, start_ns=START + n, agent="ab"[n % 2], reward=n / 10) for n in range(10)])
    found = call(capsys, "ls", "--agent", "a", "--min-reward", "0.3", "--json")["traces"]
    assert [trace["reward"] for trace in found] == [0.8, 0.6, 0.4]
    first = call(capsys, "ls", "--limit", 7, "--json")
    rest = call(capsys, "ls", "--limit", 7, "--after", first["next"], "--json")
    assert len(first["traces"]) + len(rest["traces"]) == 10
    assert rest["next"] is None
    assert "for more, add --after" in call(capsys, "ls", "--limit", 3)
    assert call(capsys, "ls", "--since", "2030-01-01", "--json")["traces"] == []


def test_vacuum(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    with Store.open(home) as store:
        store.add([make(n, trace=n) for n in range(10)])
    assert call(capsys, "vacuum", "--before", "2027-01-01", "--json")["deleted"] == 10
    assert "0 spans deleted" in call(capsys, "vacuum")


def test_another_home(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    call(capsys, "import", FIXTURE, "--home", tmp_path / "other")
    assert len(call(capsys, "ls", "--home", tmp_path / "other", "--json")["traces"]) == 1
    assert call(capsys, "ls", "--json")["traces"] == []


def test_what_is_wrong_is_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "x"}]}]}]}')
    for code, arguments in [
        (1, ["import", tmp_path / "nothing.json"]),
        (1, ["import", tmp_path / "bad.json"]),
        (2, ["show", "abc"]),
        (2, ["export", "--format", "papyrus", tmp_path / "x"]),
        (2, ["ls", "--since", "soon"]),
        (1, ["export", "http://127.0.0.1:9"]),
    ]:
        if arguments[0] == "export" and code == 1:
            call(capsys, "import", FIXTURE)
        words = call(capsys, *arguments, code=code)
        assert words.startswith("agent-forge: ")
        assert words.count("\n") == 1, words
        assert "Traceback" not in words


def test_a_beginning_that_fits_two_traces(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    with Store.open(home) as store:
        store.add([make(n, trace=n) for n in range(3)])
    assert "several traces begin with" in call(capsys, "show", "0000", code=2)


def test_a_list_in_a_pipe_cuts_nothing_that_is_needed(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    with Store.open(home) as store:
        store.add([make(0, name="a name of many words " * 5, agent="an agent with a long name too", reward=0.5)])
    row = call(capsys, "ls").splitlines()[1]
    assert row.startswith(f"{trace_id(0)[:12]}  2026-01-01T00:00:00  a name of")
    assert "an agent with a long name too" in row
    assert row.endswith("0.50")


def test_a_trace_whose_parents_form_a_circle_is_shown(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    with Store.open(home) as store:
        store.add([make(n, name=f"link {n}", parent_id=span_id((n + 1) % 3)) for n in range(3)])
    shown = call(capsys, "show", trace_id(0))
    assert [shown.count(f"link {n}") for n in range(3)] == [1, 1, 1]


def test_a_deep_trace_is_shown_to_its_last_span(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    with Store.open(home) as store:
        store.add([make(n, name=f"level {n}", parent_id=span_id(n - 1) if n else None) for n in range(60)])
    lines = call(capsys, "show", trace_id(0)).splitlines()
    assert len(lines) == 61
    assert lines[-1].strip().endswith("(59 deep) level 59 · task · 0.001 s")
    assert max(map(len, lines)) < 120
