"""`agent-forge data`: what stands on stdout, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_forge.cli import data
from agent_forge.cli._app import run_command
from agent_forge.curation import read_rows, write_rows
from agent_forge.curation.generate import Endpoint
from agent_forge.errors import MissingExtraError, UsageError
from agent_forge.pii import names


def _run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = run_command(["data", *map(str, arguments)])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    write_rows(
        path,
        [{"task": f"mail jo{n}@corp.io about {n}", "difficulty": ("easy", "medium", "hard")[n % 3]} for n in range(30)],
    )
    return path


def test_scrub_prints_its_counts(capsys: pytest.CaptureFixture[str], rows: Path, tmp_path: Path) -> None:
    code, out, _ = _run(capsys, "scrub", rows, tmp_path / "out.jsonl", "--json")
    report = json.loads(out)
    assert (code, report["rows"], report["rejected"], report["replaced"]) == (0, 30, 0, {"EMAIL": 30})
    code, out, err = _run(capsys, "scrub", rows, tmp_path / "out.jsonl.gz", "--types", "email,ssn", "--fields", "task")
    assert code == 0
    assert out.split() == ["EMAIL", "30"]
    assert "names of people" in err


def test_scrub_refuses_a_wrong_call_and_bad_lines(
    capsys: pytest.CaptureFixture[str], rows: Path, tmp_path: Path
) -> None:
    assert _run(capsys, "scrub", tmp_path / "absent", tmp_path / "o")[0] == 2
    assert _run(capsys, "scrub", rows, tmp_path / "o", "--action", "hash")[0] == 2
    code, _, err = _run(capsys, "scrub", rows, tmp_path / "o", "--types", "SHOESIZE")
    assert code == 2
    assert "SHOESIZE" in err
    (tmp_path / "bad.jsonl").write_text('{"a": 1}\nnope\n')
    code, _, err = _run(capsys, "scrub", tmp_path / "bad.jsonl", tmp_path / "o")
    assert code == 1
    assert "line 2" in err
    code, out, _ = _run(capsys, "scrub", tmp_path / "bad.jsonl", tmp_path / "o", "--rejected", tmp_path / "r", "--json")
    assert json.loads(out)["rejected"] == 1


def test_balance_prints_strata(capsys: pytest.CaptureFixture[str], rows: Path, tmp_path: Path) -> None:
    target = "easy=0.3,medium=0.45,hard=0.25"
    code, out, _ = _run(capsys, "balance", rows, tmp_path / "b.jsonl", "--shares", target, "--json")
    report = json.loads(out)
    assert code == 0
    assert report["rows_out"] == len(list(read_rows(tmp_path / "b.jsonl")))
    assert abs(report["shares"]["medium"] - 0.45) < 0.02
    code, out, _ = _run(capsys, "balance", rows, tmp_path / "b.jsonl", "--shares", "easy=0.5,hard=0.5")
    assert "easy" in out
    for wrong in (["--endpoint", "http://x"], ["--model", "http://x"], ["--model", "#qwen"]):
        assert _run(capsys, "balance", rows, tmp_path / "b.jsonl", *wrong)[0] == 2
    assert (
        data._endpoint(None, "http://x/v1#a/b")
        == data._endpoint("http://x/v1", "a/b")
        == Endpoint("http://x/v1", "a/b")
    )


def test_audit_fails_on_personal_data_and_passes_without(
    capsys: pytest.CaptureFixture[str], rows: Path, tmp_path: Path
) -> None:
    code, out, _ = _run(capsys, "audit", rows, "--json")
    assert (code, json.loads(out)["pii"]["total"]) == (1, 30)
    _run(capsys, "scrub", rows, tmp_path / "out.jsonl", "--action", "surrogate")
    page, data = tmp_path / "a.html", tmp_path / "a.json"
    code, out, err = _run(
        capsys,
        "audit",
        rows,
        tmp_path / "out.jsonl",
        "--html",
        page,
        "--out",
        data,
        "--threshold",
        "exact_duplicates=1",
        "--shares",
        "easy=0.3,medium=0.45,hard=0.25",
    )
    assert code == 0, out
    assert "red" in out
    assert "passed" in err
    assert page.exists()
    assert json.loads(data.read_text("utf-8"))["after"]["pii"]["reserved"] == 30
    assert _run(capsys, "audit", rows, rows, rows)[0] == 2
    assert _run(capsys, "audit", rows, "--threshold", "pii=many")[0] == 2


def test_dedup_and_leakage(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", [{"t": "one two three"}, {"t": "One, two three!"}, {"t": "four"}])
    code, out, _ = _run(capsys, "dedup", tmp_path / "a.jsonl", tmp_path / "b.jsonl", "--exact", "--json")
    assert (code, json.loads(out)["duplicates"]) == (0, 1)
    code, out, _ = _run(capsys, "dedup", tmp_path / "a.jsonl", "--fields", "t")
    assert "1 of 3 rows" in out
    assert "  rows 1, 2: " in out  # as an editor counts lines
    code, out, _ = _run(capsys, "leakage", tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert code == 1
    assert "exact: test row 1, train row 1: " in out
    write_rows(tmp_path / "c.jsonl", [{"t": "nothing in common"}])
    code, out, _ = _run(capsys, "leakage", tmp_path / "a.jsonl", tmp_path / "c.jsonl", "--json")
    assert (code, json.loads(out)["share"]) == (0, 0)


def test_fetch_lists_and_loads(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for listing in ("ls", "fetch"):  # now, and as it was called before
        code, out, _ = _run(capsys, listing)
        assert code == 0
        assert "humaneval" in out
        assert len(json.loads(_run(capsys, listing, "--json")[1])) >= 18
    (tmp_path / "train.jsonl").write_text('{"question": "q", "answer": "#### 2"}\n')
    code, out, _ = _run(capsys, "fetch", "gsm8k", "--from", tmp_path)
    assert json.loads(out)["target"] == "2"
    code, out, _ = _run(capsys, "fetch", "gsm8k", "--from", tmp_path, "--out", tmp_path / "g.jsonl", "--json")
    assert json.loads(out)["rows"] == 1
    code, _, err = _run(capsys, "fetch", "gsm8k", "--from", tmp_path, "--out", tmp_path / "g.jsonl")
    assert "1 records" in err
    assert _run(capsys, "fetch", "imagenet")[0] == 2


def test_names_need_spacy_and_a_model_that_is_installed(
    capsys: pytest.CaptureFixture[str], rows: Path, tmp_path: Path
) -> None:
    if names.names_installed():
        with pytest.raises(UsageError, match="no spaCy pipeline"):
            names.load_names("no_such_pipeline")
    else:
        with pytest.raises(MissingExtraError, match="names"):
            names.load_names("any")
    assert _run(capsys, "scrub", rows, tmp_path / "o", "--ner", "no_such_pipeline")[0] == 2


@pytest.mark.parametrize("presidio", [False, True])
def test_a_pipeline_from_a_folder_finds_names(tmp_path: Path, presidio: bool) -> None:
    spacy = pytest.importorskip("spacy", reason="spaCy is not installed")
    if presidio:
        pytest.importorskip("presidio_analyzer", reason="Presidio is not installed")
    pipeline = spacy.blank("en")
    ruler = pipeline.add_pipe("entity_ruler")
    ruler.add_patterns(
        [
            {"label": "PERSON", "pattern": "Ada Lovelace"},
            {"label": "ORG", "pattern": "Acme"},
            {"label": "DATE", "pattern": "May"},
        ]
    )
    pipeline.to_disk(tmp_path / "model")
    find = names.load_names(str(tmp_path / "model"), presidio=presidio)
    found = {(m.type, m.text) for m in find("Ada Lovelace joined Acme in May")}
    assert ("PERSON", "Ada Lovelace") in found
    assert ("DATE", "May") not in found
    if not presidio:  # Presidio leaves organisations out unless told otherwise
        assert ("ORG", "Acme") in found
