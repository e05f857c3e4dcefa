"""Precision and recall on the labelled sentences, on the half that was not looked at while the rules were written."""

from __future__ import annotations

import random
import sysconfig
from collections import Counter
from pathlib import Path

import pytest

from agent_forge.curation import find_pii
from agent_forge.curation.evaluate import evaluate, read_presidio

PII = Path(__file__).parents[2].parent / "shared" / "data" / "pii"
TYPES = ("EMAIL", "CARD", "SSN", "IBAN", "IP", "PHONE")


def _spans(text: str) -> list[tuple[str, int, int]]:
    return [(m.type, m.start, m.end) for m in find_pii(text)]


@pytest.fixture(scope="module")
def held_out() -> list[tuple[str, list[tuple[str, int, int]]]]:
    if not PII.is_dir():
        pytest.skip("the labelled sentences are absent")
    rows = read_presidio(PII / "presidio_generated_large.json.gz") + read_presidio(
        PII / "presidio_generated_small.json"
    )
    random.Random(5).shuffle(rows)
    return rows[len(rows) // 2 :]


def test_recall_and_precision_on_held_out_rows(held_out: list[tuple[str, list[tuple[str, int, int]]]]) -> None:
    scores = evaluate(held_out, _spans, TYPES)
    for kind in TYPES:
        recall, precision = scores[kind].recall, scores[kind].precision
        floor = (0.97, 0.95) if kind == "PHONE" else (0.99, 0.98)
        assert recall is not None
        assert recall >= floor[0], (kind, scores[kind].missed)
        assert precision is not None
        assert precision >= floor[1], (kind, scores[kind].wrong)


def test_source_code_is_not_full_of_telephones() -> None:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    random.Random(3).shuffle(files)
    size, wrong = 0, Counter[str]()
    for path in files:
        text = path.read_text("utf-8", errors="replace")
        size += len(text)
        wrong.update(m.type for m in find_pii(text, types={"PHONE", "SSN", "CARD"}) if not m.reserved)
        if size > 3_000_000:
            break
    assert sum(wrong.values()) <= 10, wrong


def test_scores_count_what_they_say() -> None:
    rows = [("a@b.io and c@d.io", [("EMAIL", 0, 6), ("EMAIL", 11, 17)]), ("x", [])]
    found = {"a@b.io and c@d.io": [("EMAIL", 0, 6)], "x": [("EMAIL", 0, 1)]}
    score = evaluate(rows, lambda text: found[text], ["EMAIL", "SSN"])["EMAIL"]
    assert (score.recall, score.precision, score.missed[0][-6:]) == (0.5, 0.5, "c@d.io")
    assert evaluate(rows, lambda text: [], ["SSN"])["SSN"].recall is None
