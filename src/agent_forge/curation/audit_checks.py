"""The questions an audit answers, each with a threshold and a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from agent_forge.curation.difficulties import STRATA
from agent_forge.errors import UsageError

# name: what is too much. A hard one that is broken fails the audit.
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
    """One verdict: "green", "amber", "red", or "not measured" when the figure is missing."""

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
        raise UsageError(f"unknown threshold '{min(unknown)}'", fix=f"one of {', '.join(THRESHOLDS)}")
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
    yield "empty", schema["empty"] / rows, f"{schema['empty']} rows say nothing", schema["empty_rows"]
    faults = sum(fault["count"] for fault in schema["faults"].values())
    named = [row for fault in schema["faults"].values() for row in fault["rows"]][:10]
    yield "schema", faults / rows, f"{faults} rows break the schema ({', '.join(schema['faults']) or 'none'})", named
    for kind in ("exact", "near"):
        yield _duplicates(kind, audit["duplicates"][kind])
    leak = audit["leakage"]
    shared = leak["share"] if leak and leak["test_rows"] else None  # an empty test file proves nothing
    what = (
        f"{leak['exact']} test rows are in the file, {leak['overlapping']} overlap"
        if leak
        else "no test file was named"
    )
    what = "the test file holds no rows" if leak and not leak["test_rows"] else what
    yield "leakage", shared, what, [] if leak is None else [sample["train_row"] + 1 for sample in leak["samples"]]
    yield from _difficulty(audit["difficulty"], target)
    yield from _shares(audit)


def _pii(pii: Mapping[str, Any]) -> Figure:
    real = pii["total"] - pii["reserved"]
    names = "" if pii["names_covered"] else "; names of people, places and firms are not covered"
    rows = sorted({row for kind in pii["by_type"].values() for row in kind["rows"]})[:10]
    return "pii", real, f"{real} instances of personal data or secrets, {pii['reserved']} reserved ones{names}", rows


def _duplicates(kind: str, found: Mapping[str, Any] | None) -> Figure:
    if found is None:
        return f"{kind}_duplicates", None, "not looked for", []
    rows = [row for group in found["largest"] for row in group["rows"][:2]]
    text = f"{found['duplicates']} rows repeat another ({100 * found['share']:.1f} %) in {found['groups']} groups"
    return f"{kind}_duplicates", found["share"], text, rows


def _difficulty(found: Mapping[str, Any], target: Mapping[str, float] | None) -> Iterator[Figure]:
    total = {name: sum(agent[name] for agent in found["by_agent"].values()) for name in STRATA}
    count = max(1, sum(total.values()))
    mix = "/".join(f"{100 * total[name] / count:.0f}" for name in STRATA)
    basis = ", ".join(f"{n} by {name}" for name, n in found["basis"].items())
    if target is None:
        yield "difficulty", None, f"easy/medium/hard {mix} ({basis}); no target was named", []
    else:
        worst, name = max(
            (
                (abs(agent[s] / max(1, sum(agent.values())) - target[s]), f"{a}: {s}")
                for a, agent in found["by_agent"].items()
                for s in STRATA
            ),
            default=(0.0, ""),
        )
        yield "difficulty", worst, f"easy/medium/hard {mix} ({basis}); farthest from the target: {name}", []
    scores = found["label_scores"]
    if len(scores) > 1:
        ordered = [scores[name] for name in STRATA if name in scores]
        inversions = sum(left >= right for left, right in pairwise(ordered))
        told = ", ".join(f"{name} {scores[name]:.2f}" for name in STRATA if name in scores)
        yield "labels", inversions, f"mean structural score by label: {told}; it should rise", []


def _shares(audit: Mapping[str, Any]) -> Iterator[Figure]:
    if audit["categories"]:
        name, most = max(audit["categories"].items(), key=lambda item: item[1])
        share = most / max(1, sum(audit["categories"].values()))
        yield (
            "category",
            share if len(audit["categories"]) > 1 else None,
            f"largest category: {name} ({100 * share:.0f} %)",
            [],
        )
    if audit["languages"]:
        main = max(audit["languages"], key=lambda name: audit["languages"][name])
        other = sum(n for name, n in audit["languages"].items() if name not in (main, "und"))
        yield "language", other / max(1, audit["rows"]), f"{main} is the main language; {other} rows are in another", []
    tokens = audit["lengths"]["tokens"]
    if tokens["count"]:
        short = sum(n for start, n in tokens["histogram"] if start < 4)
        yield "short", short / tokens["count"], f"{short} rows have fewer than 4 tokens; median {tokens['median']}", []
