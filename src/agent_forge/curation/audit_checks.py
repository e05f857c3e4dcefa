"""The questions an audit answers, each with a threshold and a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from agent_forge.curation.difficulties import STRATA
from agent_forge.errors import UsageError

# name: the highest value that is fine. A broken hard threshold fails the audit.
THRESHOLDS: dict[str, float] = {
    "pii": 0,
    "bad_lines": 0,
    "empty": 0.01,
    "schema": 0.01,
    "exact_duplicates": 0.2,
    "near_duplicates": 0.4,
    "leakage": 0,
    "difficulty": 0.10,
    "labels": 0,
    "category": 0.40,
    "language": 0.10,
    "short": 0.05,
}
HARD = frozenset({"pii", "bad_lines", "exact_duplicates", "leakage"})


@dataclass(slots=True)
class Check:
    """One verdict: "green", "amber", "red" or "not measured"."""

    name: str
    verdict: str
    value: float | None
    threshold: float
    hard: bool
    message: str
    rows: list[int] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def judge_audit(
    audit: Mapping[str, Any],
    *,
    target: Mapping[str, float] | None = None,
    thresholds: Mapping[str, float] | None = None,
) -> list[Check]:
    """A verdict for each question. `thresholds` changes some of `THRESHOLDS`."""
    unknown = set(thresholds or ()) - set(THRESHOLDS)
    if unknown:
        raise UsageError(f"there is no threshold {min(unknown)!r}", fix=f"Use one of {', '.join(THRESHOLDS)}")
    limits = {**THRESHOLDS, **(thresholds or {})}
    return [
        Check(name, _verdict(name, value, limits[name]), value, limits[name], name in HARD, message, rows)
        for name, value, message, rows in _figures(audit, target)
    ]


def _verdict(name: str, value: float | None, limit: float) -> str:
    if value is None:
        return "not measured"
    if value > limit:
        return "red" if name in HARD else "amber"
    return "amber" if limit and value > limit / 2 and name in ("exact_duplicates", "near_duplicates") else "green"


Figure = tuple[str, float | None, str, list[int]]


def _figures(audit: Mapping[str, Any], target: Mapping[str, float] | None) -> Iterator[Figure]:
    yield _pii(audit["pii"])
    rows = max(1, audit["rows"])
    schema = audit["schema"]
    yield "bad_lines", schema["bad_lines"], f"{schema['bad_lines']} lines are not JSON", schema["bad_line_numbers"]
    yield "empty", schema["empty"] / rows, f"{schema['empty']} rows are empty", schema["empty_rows"]
    faults = sum(fault["count"] for fault in schema["faults"].values())
    named = [row for fault in schema["faults"].values() for row in fault["rows"]][:10]
    yield "schema", faults / rows, f"{faults} rows break the schema ({', '.join(schema['faults']) or 'none'})", named
    for kind in ("exact", "near"):
        yield _duplicates(kind, audit["duplicates"][kind])
    leak = audit["leakage"]
    shared = leak["share"] if leak and leak["test_rows"] else None  # an empty test file proves nothing
    if leak is None:
        text = "no test file was given"
    elif not leak["test_rows"]:
        text = "the test file has no rows"
    else:
        text = f"{leak['exact']} test rows are in the file, {leak['overlapping']} overlap"
    yield "leakage", shared, text, [] if leak is None else [sample["train_row"] + 1 for sample in leak["samples"]]
    yield from _difficulty(audit["difficulty"], target)
    yield from _shares(audit)


def _pii(pii: Mapping[str, Any]) -> Figure:
    real = pii["total"] - pii["reserved"]
    names = "" if pii["names_covered"] else "; names of people, places and organisations are not covered"
    rows = sorted({row for kind in pii["by_type"].values() for row in kind["rows"]})[:10]
    return "pii", real, f"{real} instances of personal data or secrets, {pii['reserved']} reserved ones{names}", rows


def _duplicates(kind: str, figures: Mapping[str, Any] | None) -> Figure:
    if figures is None:
        return f"{kind}_duplicates", None, "not searched", []
    rows = [row for group in figures["largest"] for row in group["rows"][:2]]
    share = f"{100 * figures['share']:.1f} %"
    text = f"{figures['duplicates']} rows repeat another ({share}) in {figures['groups']} groups"
    return f"{kind}_duplicates", figures["share"], text, rows


def _difficulty(figures: Mapping[str, Any], target: Mapping[str, float] | None) -> Iterator[Figure]:
    total = {name: sum(agent[name] for agent in figures["by_agent"].values()) for name in STRATA}
    count = max(1, sum(total.values()))
    mix = "/".join(f"{100 * total[name] / count:.0f}" for name in STRATA)
    basis = ", ".join(f"{n} by {name}" for name, n in figures["basis"].items())
    if target is None:
        yield "difficulty", None, f"easy/medium/hard {mix} ({basis}); no target was given", []
    else:
        worst, name = max(
            (
                (abs(agent[s] / max(1, sum(agent.values())) - target[s]), f"{a}: {s}")
                for a, agent in figures["by_agent"].items()
                for s in STRATA
            ),
            default=(0.0, ""),
        )
        yield "difficulty", worst, f"easy/medium/hard {mix} ({basis}); farthest from the target: {name}", []
    scores = figures["label_scores"]
    if len(scores) > 1:
        ordered = [scores[name] for name in STRATA if name in scores]
        inversions = sum(left >= right for left, right in pairwise(ordered))
        means = ", ".join(f"{name} {scores[name]:.2f}" for name in STRATA if name in scores)
        yield "labels", inversions, f"mean structural score by label: {means}; it should rise", []


def _shares(audit: Mapping[str, Any]) -> Iterator[Figure]:
    if audit["categories"]:
        name, most = max(audit["categories"].items(), key=lambda item: item[1])
        share = most / max(1, sum(audit["categories"].values()))
        value = share if len(audit["categories"]) > 1 else None
        yield "category", value, f"largest category: {name} ({100 * share:.0f} %)", []
    if audit["languages"]:
        main = max(audit["languages"], key=lambda name: audit["languages"][name])
        other = sum(n for name, n in audit["languages"].items() if name not in (main, "und"))
        yield "language", other / max(1, audit["rows"]), f"{main} is the main language; {other} rows are in another", []
    tokens = audit["lengths"]["tokens"]
    if tokens["count"]:
        short = sum(n for start, n in tokens["histogram"] if start < 4)
        yield "short", short / tokens["count"], f"{short} rows have fewer than 4 tokens; median {tokens['median']}", []
