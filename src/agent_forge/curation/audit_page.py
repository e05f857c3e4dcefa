"""The audit as one HTML page with inline pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:960px;margin:2em auto;padding:0 1em;color:#222}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em;border-bottom:1px solid #ddd}
table{border-collapse:collapse;width:100%}
td,th{text-align:left;padding:.3em .6em;border-bottom:1px solid #eee;vertical-align:top}
.chip{display:inline-block;min-width:5.5em;text-align:center;border-radius:4px;color:#fff;padding:0 .4em}
.green{background:#2a7d3f}.amber{background:#b26a00}.red{background:#b3261e}.none{background:#777}
small,code{color:#555}svg text{font:11px system-ui,sans-serif;fill:#444}
@media(prefers-color-scheme:dark){body{background:#161616;color:#ddd}
td,th{border-color:#333}small,code{color:#aaa}svg text{fill:#bbb}}
"""


def page(report: Mapping[str, Any]) -> str:
    """The page of one audit, or of two side by side."""
    if "after" in report:
        body = _changes(report["changes"]) + "".join(
            f"<h1>{label}: {escape(report[side]['file'])}</h1>{_sections(report[side])}"
            for side, label in (("after", "After"), ("before", "Before"))
        )
        title = f"{report['before']['file']} → {report['after']['file']}"
    else:
        body, title = _sections(report), str(report["file"])
    verdict = "passed" if report["passed"] else "failed: a hard threshold is broken"
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        f"<title>Audit of {escape(title)}</title><style>{_STYLE}</style>"
        f"<h1>Audit of {escape(title)}</h1><p><b>{verdict}</b></p>{body}</html>"
    )


def _chip(verdict: str | None) -> str:
    colour = verdict if verdict in ("green", "amber", "red") else "none"
    return f"<span class='chip {colour}'>{escape(verdict or '–')}</span>"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) or float(value).is_integer() else f"{value:.3f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{cell}</th>" for cell in head)
    return (
        f"<table><tr>{top}</tr>"
        + "".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows)
        + "</table>"
    )


def _sections(audit: Mapping[str, Any]) -> str:
    parts = [
        f"<p>{audit['rows']:,} rows, {audit['bytes']:,} bytes "
        f"<small>sha256 {escape(audit['sha256'][:16])}…</small></p>",
        _checks(audit["checks"]),
        "<h2>Personal data and secrets</h2>" + _pii(audit["pii"]),
        "<h2>Duplicates</h2>" + _duplicates(audit["duplicates"]),
        "<h2>Lengths</h2>" + _lengths(audit["lengths"]),
        "<h2>Difficulty</h2>" + _difficulty(audit["difficulty"]),
        "<h2>Categories and languages</h2>" + bars(audit["categories"]) + bars(audit["languages"]),
        "<h2>Schema</h2>" + _schema(audit["schema"]),
    ]
    return "".join(parts)


def _checks(checks: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            _chip(check["verdict"]),
            escape(check["name"]) + (" <small>hard</small>" if check["hard"] else ""),
            _number(check["value"]),
            f"≤ {check['threshold']:g}",
            escape(check["message"])
            + (f"<br><small>rows {', '.join(map(str, check['rows']))}</small>" if check["rows"] else ""),
        ]
        for check in checks
    ]
    return _table(["verdict", "check", "value", "threshold", "finding"], rows)


def _changes(changes: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            escape(change["check"]),
            _chip(change["verdict_before"]) + " " + _number(change["before"]),
            _chip(change["verdict_after"]) + " " + _number(change["after"]),
        ]
        for change in changes
    ]
    return _table(["check", "before", "after"], rows)


def _pii(pii: Mapping[str, Any]) -> str:
    rows = [
        [
            escape(kind),
            f"{figures['count']:,}",
            f"{figures['reserved']:,}",
            "<br>".join(f"<code>{escape(sample)}</code>" for sample in figures["samples"]),
            ", ".join(map(str, figures["rows"])),
        ]
        for kind, figures in pii["by_type"].items()
    ]
    names = (
        ""
        if pii["names_covered"]
        else "<p><small>Names of people, places and organisations are not covered: no model was given.</small></p>"
    )
    return (
        _table(["type", "count", "reserved", "masked samples", "rows"], rows) if rows else "<p>None found.</p>"
    ) + names


def _duplicates(kinds: Mapping[str, Any]) -> str:
    rows = []
    for kind, figures in kinds.items():
        if figures is None:
            rows.append([kind, "not searched", "", ""])
            continue
        groups = "<br>".join(
            f"{group['size']} × rows {', '.join(map(str, group['rows']))} <small>{escape(group['sample'])}</small>"
            for group in figures["largest"]
        )
        rows.append(
            [kind, f"{figures['duplicates']:,} ({100 * figures['share']:.1f} %)", f"{figures['groups']:,}", groups]
        )
    return _table(["kind", "duplicate rows", "groups", "largest groups"], rows)


def _lengths(lengths: Mapping[str, Any]) -> str:
    parts = []
    for unit, figures in lengths.items():
        if not figures["count"]:
            continue
        note = f"{unit}: " + ", ".join(f"{name} {figures[name]:,}" for name in ("p5", "median", "p95", "max"))
        parts.append(f"<p>{note}</p>" + bars({f"{start:,}+": count for start, count in figures["histogram"]}))
    words = "<p><small>Here a token is a word or a punctuation mark; no tokenizer was used.</small></p>"
    return "".join(parts) + words if parts else "<p>No rows.</p>"


def _difficulty(figures: Mapping[str, Any]) -> str:
    rows = []
    for agent, counts in figures["by_agent"].items():
        total = max(1, sum(counts.values()))
        rows.append([escape(agent), *(f"{n:,} ({100 * n / total:.0f} %)" for n in counts.values()), stack(counts)])
    basis = ", ".join(f"{n:,} rows by {escape(name)}" for name, n in figures["basis"].items())
    return _table(["agent", "easy", "medium", "hard", ""], rows) + f"<p><small>{basis}</small></p>"


def _schema(schema: Mapping[str, Any]) -> str:
    rows = [
        [escape(name), f"{fault['count']:,}", ", ".join(map(str, fault["rows"]))]
        for name, fault in schema["faults"].items()
    ]
    rows.append(
        ["lines that are not JSON", f"{schema['bad_lines']:,}", ", ".join(map(str, schema["bad_line_numbers"]))]
    )
    rows.append(["empty rows", f"{schema['empty']:,}", ", ".join(map(str, schema["empty_rows"]))])
    keys = ", ".join(f"{escape(key)} {count:,}" for key, count in schema["keys"].items())
    return _table(["fault", "rows", "row numbers"], rows) + f"<p><small>keys: {keys}</small></p>"


def bars(counts: Mapping[str, int]) -> str:
    """A horizontal bar chart as SVG."""
    if not counts:
        return ""
    most, height = max(counts.values()) or 1, 18
    lines = []
    for place, (label, count) in enumerate(list(counts.items())[:30]):
        y, width = place * height, 560 * count / most
        lines.append(
            f"<text x='150' y='{y + 13}' text-anchor='end'>{escape(label[:24])}</text>"
            f"<rect x='156' y='{y + 3}' width='{width:.1f}' height='12' fill='#4a78b5'/>"
            f"<text x='{160 + width:.0f}' y='{y + 13}'>{count:,}</text>"
        )
    return f"<svg viewBox='0 0 800 {len(lines) * height + 4}' width='100%' role='img'>{''.join(lines)}</svg>"


def stack(counts: Mapping[str, int]) -> str:
    """The shares of easy, medium and hard as one bar."""
    total, at, parts = max(1, sum(counts.values())), 0.0, []
    for count, colour in zip(counts.values(), ("#7fb685", "#e0b04c", "#c0504d"), strict=False):
        width = 200 * count / total
        parts.append(f"<rect x='{at:.1f}' y='0' width='{width:.1f}' height='14' fill='{colour}'/>")
        at += width
    return f"<svg viewBox='0 0 200 14' width='200' height='14' role='img'>{''.join(parts)}</svg>"
