"""The audit: figures, verdicts, the page, and what it says before and after."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from agent_forge.curation import audit_file, compare, parse_target, scrub_file, write_audit, write_rows
from agent_forge.curation.audit import Audit, distribution
from agent_forge.curation.audit_page import bars, page
from agent_forge.errors import UsageError
from agent_forge.pii import Match
from agent_forge.pii.replace import Scrubber
from agent_forge.written_language import language_of


def _checks(audit: Audit) -> dict[str, str]:
    return {check.name: check.verdict for check in audit.checks}


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    rows = [
        {"task": f"Write to user{n}@corp.io about the order of the {n} books in the list", "category": "mail",
         "agent": "support", "difficulty": "easy" if n % 2 else "hard"}
        for n in range(40)
    ]  # fmt: skip
    rows += [{"task": "the same row again and again", "category": "other", "agent": "qa", "difficulty": "easy"}] * 30
    rows += [
        {"task": "Quelle est la capitale de la France et pour qui est-elle ?"},
        {"messages": [{"role": "user"}]},
        {"messages": "no"},
    ]
    path = tmp_path / "mixed.jsonl"
    write_rows(path, rows)
    with open(path, "ab") as file:
        file.write(b'{"broken": \n\xff\n[1, 2]\n{"task": ""}\n')
    return path


def test_every_question_has_a_figure_a_verdict_and_rows(mixed: Path) -> None:
    audit = audit_file(mixed, target=parse_target("easy=0.3,medium=0.45,hard=0.25"))
    assert audit.rows == 77
    assert audit.pii["by_type"]["EMAIL"]["count"] == 40
    assert audit.pii["by_type"]["EMAIL"]["samples"][0] == "•••••@••••.••"
    assert audit.pii["by_type"]["EMAIL"]["rows"][:3] == [1, 2, 3]
    assert audit.schema["bad_line_numbers"] == [74, 75]
    assert audit.schema["empty_rows"] == [77]
    assert set(audit.schema["faults"]) == {"a message without content", "messages is not a list", "not an object"}
    assert audit.duplicates["exact"]["largest"][0]["size"] == 30
    assert audit.languages["fr"] == 1
    assert audit.difficulty["by_agent"]["support"] == {"easy": 20, "medium": 0, "hard": 20}
    verdicts = _checks(audit)
    assert (verdicts["pii"], verdicts["bad_lines"], verdicts["exact_duplicates"]) == ("red", "red", "red")
    assert (verdicts["difficulty"], verdicts["category"], verdicts["leakage"]) == ("amber", "amber", "not measured")
    assert not audit.passed


def test_after_scrubbing_the_same_detector_finds_nothing(tmp_path: Path, mixed: Path) -> None:
    scrub_file(mixed, tmp_path / "clean.jsonl", reject=tmp_path / "bad.jsonl")
    before, after = audit_file(mixed), audit_file(tmp_path / "clean.jsonl")
    assert after.pii == {"total": 0, "reserved": 0, "by_type": {}, "names_covered": False}
    both = compare(before, after)
    change = next(change for change in both["changes"] if change["check"] == "pii")
    assert (change["before"], change["after"], change["verdict_after"]) == (40, 0, "green")


def test_labels_that_the_structure_does_not_bear_out_are_doubted(tmp_path: Path) -> None:
    rows = [{"question": f"q{n} word", "answer": "a", "difficulty": ("easy", "hard")[n % 2]} for n in range(20)]
    write_rows(tmp_path / "a.jsonl", rows)
    assert _checks(audit_file(tmp_path / "a.jsonl"))["labels"] == "amber"


def test_leakage_of_a_test_file_breaks_a_hard_threshold(tmp_path: Path) -> None:
    write_rows(tmp_path / "train.jsonl", [{"q": f"question number {n} here"} for n in range(20)])
    write_rows(tmp_path / "test.jsonl", [{"q": "Question number 3 here!"}, {"q": "new"}])
    audit = audit_file(tmp_path / "train.jsonl", test=tmp_path / "test.jsonl")
    assert audit.leakage is not None
    assert audit.leakage["exact"] == 1
    assert _checks(audit)["leakage"] == "red"
    loose = audit_file(tmp_path / "train.jsonl", test=tmp_path / "test.jsonl", thresholds={"leakage": 0.5}, near=False)
    assert loose.passed
    assert loose.duplicates["near"] is None
    with pytest.raises(UsageError, match="no threshold 'beauty'"):
        audit_file(tmp_path / "train.jsonl", thresholds={"beauty": 1})


def test_the_page_is_one_small_well_formed_document(tmp_path: Path, mixed: Path) -> None:
    audit = audit_file(mixed)
    write_audit(audit.as_dict(), tmp_path / "out" / "a.html", tmp_path / "out" / "a.json")
    html = (tmp_path / "out" / "a.html").read_text("utf-8")
    assert "corp.io" not in html
    assert "corp.io" not in (tmp_path / "out" / "a.json").read_text("utf-8")
    assert json.loads((tmp_path / "out" / "a.json").read_text("utf-8"))["rows"] == 77
    assert html.count("<svg") >= 4
    for picture in html.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + picture.split("</svg>")[0] + "</svg>")
    assert len(page(compare(audit, audit))) < 300_000
    assert "Before: mixed.jsonl" in page(compare(audit, audit))


def test_a_large_set_with_much_wrong_still_gives_a_small_report(tmp_path: Path) -> None:
    rows = [
        {"task": f"mail a{n}@corp.io, call 312-867-{n:04d} " + "x" * 300, "category": f"c{n}", "agent": f"agent{n}"}
        for n in range(1500)
    ]
    write_rows(tmp_path / "a.jsonl", rows)
    audit = audit_file(tmp_path / "a.jsonl", near=False)
    write_audit(audit.as_dict(), tmp_path / "a.html", tmp_path / "a.json")
    assert (tmp_path / "a.html").stat().st_size < 200_000
    assert (tmp_path / "a.json").stat().st_size < 200_000


def test_an_empty_file_is_audited_too_and_does_not_pass(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("")
    audit = audit_file(tmp_path / "a.jsonl")
    assert (audit.rows, audit.passed) == (0, False)
    assert "No rows" in page(audit.as_dict())
    assert bars({}) == ""


def test_names_are_counted_when_a_finder_is_given(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", [{"t": "Ada left"}])
    finder = Scrubber(names=lambda text: [Match("PERSON", 0, 3, "Ada")] if text.startswith("Ada") else [])
    audit = audit_file(tmp_path / "a.jsonl", scrubber=finder)
    assert audit.pii["names_covered"]
    assert audit.pii["by_type"]["PERSON"]["count"] == 1


def test_distributions_have_bins_that_double() -> None:
    figures = distribution([0, 1, 2, 3, 4, 7, 8])
    assert figures["histogram"] == [[0, 1], [1, 1], [2, 2], [4, 2], [8, 1]]
    assert distribution([]) == {"count": 0, "histogram": []}


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Der Hund ist nicht auf dem Dach und die Katze auch nicht", "de"),
        ("El perro no es un gato y por eso no se puede", "es"),
        ("これは日本語の文章です", "ja"),
        ("这是一个中文句子", "zh"),
        ("Это русский текст", "ru"),
        ("x = 12", "und"),
    ],
)
def test_languages(text: str, language: str) -> None:
    assert language_of(text) == language


def test_an_empty_test_file_does_not_pass_as_no_leakage(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"q": "How many apples?"}\n')
    (tmp_path / "test.jsonl").write_text("\n")
    audit = audit_file(tmp_path / "train.jsonl", test=tmp_path / "test.jsonl")
    (check,) = [check for check in audit.checks if check.name == "leakage"]
    assert (check.verdict, check.value, check.message) == ("not measured", None, "the test file has no rows")
