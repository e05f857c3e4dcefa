"""What is in a data set, and is it fit to learn from? Figures with verdicts, never a dump of the data."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_forge.curation.audit_checks import Check, judge_audit
from agent_forge.curation.difficulties import STRATA, difficulty, estimate
from agent_forge.curation.duplicates import exact_groups, find_leakage, near_groups
from agent_forge.curation.lines import Row, content_of, open_lines, parse_row, text_of
from agent_forge.curation.scrub import scrub_line
from agent_forge.errors import DataError, MissingExtraError
from agent_forge.pii.replace import Scrubber
from agent_forge.written_language import language_of

_SAMPLES = 3
_ROWS_NAMED = 10
_NEAR_ROWS = 300_000
_TOKEN = re.compile(r"\w+|[^\w\s]")
_AGENT_KEYS = ("agent", "source_agent", "target_agent", "agent_id")
_CATEGORY_KEYS = ("category", "task_type", "type", "task_category")
_LETTER = re.compile(r"\w")


@dataclass(slots=True)
class Audit:
    """The figures of one file. `checks` holds a verdict, a threshold and rows to look at per question."""

    file: str
    rows: int = 0
    bytes: int = 0
    sha256: str = ""
    pii: dict[str, Any] = field(default_factory=dict)
    duplicates: dict[str, Any] = field(default_factory=dict)
    lengths: dict[str, Any] = field(default_factory=dict)
    difficulty: dict[str, Any] = field(default_factory=dict)
    categories: dict[str, int] = field(default_factory=dict)
    languages: dict[str, int] = field(default_factory=dict)
    schema: dict[str, Any] = field(default_factory=dict)
    leakage: dict[str, Any] | None = None
    checks: list[Check] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """There are rows, and no hard threshold is broken."""
        return self.rows > 0 and not any(check.hard and check.verdict == "red" for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        names = ("file", "rows", "bytes", "sha256", "pii", "duplicates", "lengths", "difficulty", "categories")
        figures = {name: getattr(self, name) for name in (*names, "languages", "schema", "leakage")}
        return {"passed": self.passed, **figures, "checks": [check.as_dict() for check in self.checks]}


def audit_file(
    path: str | os.PathLike[str],
    *,
    target: Mapping[str, float] | None = None,
    test: str | os.PathLike[str] | None = None,
    scrubber: Scrubber | None = None,
    thresholds: Mapping[str, float] | None = None,
    near: bool = True,
) -> Audit:
    """The audit of a JSONL file. `test` is a held-out file that must not leak into it, `target` the required shares."""
    counts = _Counts(scrubber or Scrubber())
    digest = hashlib.sha256()
    size = 0
    with open_lines(path) as lines:
        for number, raw in enumerate(lines, 1):
            digest.update(raw)
            size += len(raw)
            if raw.strip():
                counts.add(raw, number)
    audit = Audit(str(Path(path).name), counts.rows, size, digest.hexdigest())
    counts.fill(audit)
    audit.duplicates = _duplicates(path, near=near)
    if test is not None:
        audit.leakage = find_leakage(_good_rows(path), _good_rows(test)).as_dict()
    audit.checks = judge_audit(audit.as_dict(), target=target, thresholds=thresholds)
    return audit


class _Counts:
    """Counts of one pass over the lines."""

    def __init__(self, scrubber: Scrubber) -> None:
        self.scrubber = scrubber
        self.rows = 0
        self.bad: list[int] = []
        self.empty: list[int] = []
        self.odd: dict[str, list[int]] = defaultdict(list)
        self.odd_counts: Counter[str] = Counter()
        self.keys: Counter[str] = Counter()
        self.pii: dict[str, dict[str, Any]] = {}
        self.lengths: list[int] = []
        self.tokens: list[int] = []
        self.categories: Counter[str] = Counter()
        self.languages: Counter[str] = Counter()
        self.strata: dict[str, Counter[str]] = defaultdict(Counter)
        self.basis: Counter[str] = Counter()
        self.claims: dict[str, list[float]] = defaultdict(list)

    def add(self, raw: bytes, number: int) -> None:
        self.rows += 1
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            row = parse_row(line, number, "")
        except (UnicodeDecodeError, DataError):
            self.bad.append(number)
            return
        self._add_pii(line, number)
        if not isinstance(row, dict):
            self._note("not an object", number)
            return
        self._add_row(row, number)

    def _add_pii(self, line: str, number: int) -> None:
        for match in scrub_line(line, self.scrubber)[1]:
            kind = self.pii.setdefault(match.type, {"count": 0, "reserved": 0, "rows": [], "samples": []})
            kind["count"] += 1
            kind["reserved"] += match.reserved
            if len(kind["rows"]) < _ROWS_NAMED and number not in kind["rows"]:
                kind["rows"].append(number)
            masked = _LETTER.sub("•", match.text[:40])
            if len(kind["samples"]) < _SAMPLES and masked not in kind["samples"]:
                kind["samples"].append(masked)

    def _add_row(self, row: Row, number: int) -> None:
        text = text_of(row)
        self.keys.update(row.keys())
        self.lengths.append(len(text))
        self.tokens.append(len(_TOKEN.findall(text)))
        if not text.strip():
            self.empty.append(number)
        for fault in _schema_faults(row):
            self._note(fault, number)
        self.languages[language_of(text)] += 1
        category = next((str(row[key]) for key in _CATEGORY_KEYS if isinstance(row.get(key), str)), None)
        if category is not None:
            self.categories[category[:60]] += 1
        level = difficulty(row)
        agent = next((str(row[key]) for key in _AGENT_KEYS if isinstance(row.get(key), str)), "all rows")
        self.strata[agent[:60]][level.stratum] += 1
        self.basis[level.basis] += 1
        if level.basis == "label":
            self.claims[level.stratum].append(estimate(row).score or 0.0)

    def _note(self, fault: str, number: int) -> None:
        self.odd_counts[fault] += 1
        if len(self.odd[fault]) < _ROWS_NAMED:
            self.odd[fault].append(number)

    def fill(self, audit: Audit) -> None:
        total = sum(kind["count"] for kind in self.pii.values())
        reserved = sum(kind["reserved"] for kind in self.pii.values())
        audit.pii = {
            "total": total,
            "reserved": reserved,
            "by_type": dict(sorted(self.pii.items())),
            "names_covered": self.scrubber.names is not None,
        }
        audit.lengths = {"characters": distribution(self.lengths), "tokens": distribution(self.tokens)}
        audit.categories = dict(self.categories.most_common(30))
        audit.languages = dict(self.languages.most_common(12))
        audit.difficulty = {
            "basis": dict(self.basis),
            "by_agent": {a: {name: c[name] for name in STRATA} for a, c in sorted(self.strata.items())[:40]},
            "label_scores": {name: round(sum(s) / len(s), 3) for name, s in sorted(self.claims.items())},
        }
        audit.schema = {
            "bad_lines": len(self.bad),
            "bad_line_numbers": self.bad[:_ROWS_NAMED],
            "empty": len(self.empty),
            "empty_rows": self.empty[:_ROWS_NAMED],
            "faults": {name: {"count": n, "rows": self.odd[name]} for name, n in self.odd_counts.most_common(20)},
            "keys": dict(self.keys.most_common(30)),
        }


def _schema_faults(row: Row) -> Iterator[str]:
    messages = row.get("messages")
    if "messages" in row and not isinstance(messages, list):
        yield "messages is not a list"
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict) or "role" not in message:
            yield "a message without a role"
            return
        if message.get("content") in (None, "") and not message.get("tool_calls"):
            yield "a message without content"
            return


def distribution(values: Iterable[int]) -> dict[str, Any]:
    """Quantiles, and a histogram whose bins double in width.

    >>> distribution([1, 2, 3, 200])["median"]
    2
    """
    ordered = sorted(values)
    if not ordered:
        return {"count": 0, "histogram": []}
    at = {
        name: ordered[int(share * (len(ordered) - 1))] for name, share in (("p5", 0.05), ("median", 0.5), ("p95", 0.95))
    }
    bins = Counter(0 if value <= 0 else int(math.log2(value)) + 1 for value in ordered)
    histogram = [[0 if place == 0 else 2 ** (place - 1), bins[place]] for place in range(min(bins), max(bins) + 1)]
    return {"count": len(ordered), "min": ordered[0], **at, "max": ordered[-1], "histogram": histogram}


def _good_rows(path: str | os.PathLike[str]) -> Iterator[Any]:
    with open_lines(path) as lines:
        for number, line in enumerate(lines, 1):
            try:
                if line.strip():
                    yield parse_row(line, number, str(path))
            except DataError:
                yield None


def _duplicates(path: str | os.PathLike[str], *, near: bool) -> dict[str, Any]:
    def texts() -> Iterator[str]:
        return (content_of(row) for row in _good_rows(path))

    groups: dict[str, list[list[int]] | None] = {"exact": exact_groups(texts()), "near": None}
    rows = sum(1 for _ in _good_rows(path))
    if near and rows <= _NEAR_ROWS:
        with suppress(MissingExtraError):
            groups["near"] = near_groups(texts())
    shown = {rows[0] for some in groups.values() for rows in (some or [])[:_SAMPLES]}
    samples = {row: text[:160] for row, text in enumerate(texts()) if row in shown}
    scrubber = Scrubber()
    return {
        kind: None
        if some is None
        else {
            "groups": len(some),
            "duplicates": sum(len(g) - 1 for g in some),
            "share": round(sum(len(g) - 1 for g in some) / max(1, rows), 4),
            "largest": [
                {"size": len(g), "rows": [n + 1 for n in g[:_ROWS_NAMED]], "sample": scrubber.text(samples[g[0]])[0]}
                for g in some[:_SAMPLES]
            ],
        }
        for kind, some in groups.items()
    }


def compare(before: Audit, after: Audit) -> dict[str, Any]:
    """Two audits side by side: each check's value and verdict before and after."""
    first = {check.name: check for check in before.checks}
    changes = [
        {
            "check": check.name,
            "before": first[check.name].value if check.name in first else None,
            "after": check.value,
            "verdict_before": first[check.name].verdict if check.name in first else None,
            "verdict_after": check.verdict,
        }
        for check in after.checks
    ]
    return {"passed": after.passed, "before": before.as_dict(), "after": after.as_dict(), "changes": changes}


def write_audit(
    report: Mapping[str, Any], html: str | os.PathLike[str] | None, data: str | os.PathLike[str] | None
) -> None:
    """Writes the HTML page and the JSON file, each atomically."""
    from agent_forge.curation.audit_page import page
    from agent_forge.files import atomic_write

    texts = {html: page(report) if html else "", data: json.dumps(report, ensure_ascii=False, indent=1)}
    for path, text in texts.items():
        if path is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as file:
                file.write(text)


__all__ = ["Audit", "Check", "audit_file", "compare", "distribution", "write_audit"]
