"""Rows of a waterfall: the spans of a trace, or the tasks of a run, on one timeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from agent_forge.traces.span import Span
from agent_forge.traces.trajectory import Trajectory

MOST_ROWS = 500
_OK = {"ok": "done", "error": "failed"}


def span_rows(trajectory: Trajectory, credit: Mapping[str, float]) -> list[dict[str, Any]]:
    """One row per span, parents before children, siblings in the order of their start."""
    first = min(span.start_ns for span in trajectory.spans)
    critical = set(trajectory.critical_path)
    rows, stack = [], [(span_id, 0) for span_id in reversed(trajectory.graph.roots)]
    while stack:
        span_id, depth = stack.pop()
        span = trajectory.graph.spans[span_id]
        rows.append(_row(span, depth, first, span_id in critical, credit.get(span_id)))
        stack += [(part, depth + 1) for part in reversed(trajectory.graph.children.get(span_id, []))]
    return rows


def _row(span: Span, depth: int, first: int, critical: bool, credit: float | None) -> dict[str, Any]:
    return {
        "id": span.span_id,
        "task": span.attributes.get("task"),
        "depth": depth,
        "name": span.name,
        "note": span.attributes.get("goal") or span.model or (span.agent if span.kind == "agent" else None) or "",
        "kind": span.kind,
        "state": _OK.get(span.status, "running" if span.end_ns is None else "done"),
        "start_s": (span.start_ns - first) / 1e9,
        "duration_s": span.duration_s,
        "critical": critical,
        "credit": credit,
        "href": f"/traces/{span.trace_id}/{span.span_id}",
    }


def task_rows(run: str, tasks: Mapping[str, Mapping[str, Any]], critical: Iterable[str]) -> list[dict[str, Any]]:
    """One row per task in the order of their start; those not started yet come last."""
    path = set(critical)
    order = sorted(tasks, key=lambda name: (tasks[name]["started_s"] is None, tasks[name]["started_s"] or 0.0))
    return [
        {
            "id": name,
            "task": name,
            "depth": 0,
            "name": tasks[name]["action"] or name,
            "note": tasks[name]["goal"],
            "kind": "task",
            "state": tasks[name]["state"],
            "start_s": tasks[name]["started_s"],
            "duration_s": tasks[name]["duration_s"],
            "critical": name in path,
            "credit": tasks[name]["credit"],
            "href": task_address(run, name),
        }
        for name in order
    ]


def task_address(run: str, task: str) -> str:
    """The page of a task."""
    return f"/runs/{quote(run, safe='')}/tasks/{quote(task, safe='')}"


def totals(trajectory: Trajectory, root: str) -> dict[str, Any]:
    """Tokens and cost of a span with its descendants: a span that reports a figure reports it for all inside it."""
    sums: dict[str, Any] = {}
    for name in ("input_tokens", "output_tokens", "cost"):
        values, stack = [], [root]
        while stack:
            span_id = stack.pop()
            value = getattr(trajectory.graph.spans[span_id], name)
            if value is None:
                stack += trajectory.graph.children.get(span_id, [])
            else:
                values.append(value)
        sums[name] = sum(values) if values else None
    return sums
