"""Precision and recall of a detector on labelled text, by type."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_forge.curation.lines import open_lines

Span = tuple[str, int, int]

# The names that Presidio's data sets give to the types of this package.
PRESIDIO_TYPES = {
    "EMAIL_ADDRESS": "EMAIL",
    "PHONE_NUMBER": "PHONE",
    "US_SSN": "SSN",
    "CREDIT_CARD": "CARD",
    "IBAN_CODE": "IBAN",
    "IP_ADDRESS": "IP",
    "US_DRIVER_LICENSE": "DRIVER_LICENSE",
    "PERSON": "PERSON",
    "ADDRESS": "ADDRESS",
    "ORGANIZATION": "ORG",
}


@dataclass(slots=True)
class Score:
    """Counts of one type. A labelled span is found when matches of its type cover all of it; a match is false when it
    overlaps no labelled span of its type."""

    labelled: int = 0
    found: int = 0
    predicted: int = 0
    false: int = 0
    missed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def recall(self) -> float | None:
        return self.found / self.labelled if self.labelled else None

    @property
    def precision(self) -> float | None:
        return 1 - self.false / self.predicted if self.predicted else None


def read_presidio(path: str | Path) -> list[tuple[str, list[Span]]]:
    """The rows of a presidio-research JSON file (plain or gzipped) as (text, spans)."""
    with open_lines(path) as lines:
        rows: list[dict[str, Any]] = json.loads(b"".join(lines))
    return [
        (
            row["full_text"],
            [
                (PRESIDIO_TYPES.get(s["entity_type"], s["entity_type"]), s["start_position"], s["end_position"])
                for s in row["spans"]
            ],
        )
        for row in rows
    ]


def evaluate(
    rows: Iterable[tuple[str, Sequence[Span]]], find: Callable[[str], Iterable[Span]], types: Iterable[str]
) -> Mapping[str, Score]:
    """Scores `find` on labelled `rows`.

    >>> evaluate([("a@b.io", [("EMAIL", 0, 6)])], lambda text: [("EMAIL", 0, 6)], ["EMAIL"])["EMAIL"].recall
    1.0
    """
    scores = {name: Score() for name in types}
    for text, labelled in rows:
        predicted = list(find(text))
        for name, score in scores.items():
            gold = [(start, end) for kind, start, end in labelled if kind == name]
            mine = [(start, end) for kind, start, end in predicted if kind == name]
            _count(score, text, gold, mine)
    return scores


def _count(score: Score, text: str, gold: list[tuple[int, int]], mine: list[tuple[int, int]]) -> None:
    for start, end in gold:
        score.labelled += 1
        if any(left <= start and end <= right for left, right in mine):
            score.found += 1
        else:
            score.missed.append(text[max(0, start - 20) : end + 10])
    for left, right in mine:
        score.predicted += 1
        if not any(start < right and left < end for start, end in gold):
            score.false += 1
            score.wrong.append(text[max(0, left - 20) : right + 10])
