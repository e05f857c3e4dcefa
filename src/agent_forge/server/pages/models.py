"""The checkpoints: a list with size against quality, one with its lineage, several side by side."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from agent_forge.errors import UsageError
from agent_forge.server.context import Context
from agent_forge.server.dashboard import DashboardPage, Document, NotFound, page_routes, query_value
from agent_forge.server.drawing.charts import Line, pareto, scatter_chart
from agent_forge.server.drawing.graph import WHOLE, Node, draw_graph
from agent_forge.server.drawing.wording import count, measured, size

MOST = 4  # side by side
PREFERRED = ("bits per byte",)
# whether lower or higher is better, by a word in the name of the metric; unknown for others
LOWER_IS_BETTER = ("bits per byte", "bits_per_byte", "loss", "perplexity", "ppl", "latency", "error")
HIGHER_IS_BETTER = ("accuracy", "reward", "score", "pass", "fitness")


def routes(context: Context) -> list[BaseRoute]:
    """The list, the comparison, and one checkpoint."""
    return [
        *page_routes(context, "/models", "models.html", models_page, models_view),
        *page_routes(context, "/models/compare", "models_compare.html", compare_page),
        *page_routes(context, "/models/{digest}", "model.html", model_page, model_view),
    ]


def models_page(context: Context, request: Request) -> Document:
    """All checkpoints, newest first, and one metric against their size."""
    entries = [entry_line(entry) for entry in context.registry.ls()]
    names = metric_names(entries)
    metric = query_value(request, "metric") or next((n for n in PREFERRED if n in names), names[0] if names else None)
    return {
        "models": entries,
        "metrics": names,
        "metric": metric,
        "lower_is_better": lower_is_better(metric or ""),
        "version": f"{len(entries)}-{entries[0]['digest'] if entries else ''}",
    }


def entry_line(entry: Any) -> dict[str, Any]:
    """A checkpoint with its card."""
    return {
        "digest": entry.digest,
        "name": entry.name,
        "phase": entry.phase,
        "path": str(entry.path),
        "parameters": entry.parameters,
        "bytes": entry.bytes,
        "parents": list(entry.parents),
        "created_s": entry.created_s,
        "card": dict(entry.card),
        "metrics": dict(entry.card.get("metrics", {})),
    }


def metric_names(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """The metrics on the cards, the most frequent first."""
    counts = Counter(name for entry in entries for name in entry["metrics"])
    return sorted(counts, key=lambda name: (-counts[name], name))


def lower_is_better(metric: str) -> bool | None:
    """Whether lower values of a metric are better, by its name; None if unknown.

    >>> lower_is_better("bits per byte"), lower_is_better("gsm accuracy"), lower_is_better("memory gate mean")
    (True, False, None)
    """
    if any(word in metric for word in HIGHER_IS_BETTER):
        return False
    return True if any(word in metric for word in LOWER_IS_BETTER) else None


def front(document: Mapping[str, Any]) -> tuple[list[Line], list[tuple[float, float]]]:
    """Size against the selected metric: the points by phase, and the Pareto front."""
    metric = document["metric"]
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for entry in document["models"]:
        if metric in entry["metrics"] and entry["bytes"]:
            groups.setdefault(entry["phase"], []).append(entry)
    lines = [
        Line(
            phase,
            [(float(one["bytes"]), float(one["metrics"][metric]["value"])) for one in members],
            labels=[f"{phase} {one['digest'][:6]}" if len(members) > 1 else phase for one in members],
            links=[f"/models/{one['digest']}" for one in members],
        )
        for phase, members in groups.items()
    ]
    if document["lower_is_better"] is None:
        return lines, []
    sign = 1 if document["lower_is_better"] else -1
    best = pareto([(x, sign * y) for line in lines for x, y in line.points])
    return lines, [(x, sign * y) for x, y in best]


def models_view(document: Document) -> dict[str, Any]:
    """Size against quality as a picture."""
    lines, best = front(document)
    chart = scatter_chart(
        lines,
        x_label="size",
        text=lambda value: measured(value, document["metric"] or ""),
        y_label=document["metric"] or "",
        x_text=size,
        front=best,
        log_x=True,
        size=(760, 280),
    )
    return {"chart": chart}


def model_page(context: Context, request: Request) -> Document:
    """One checkpoint: its origin, what was measured and how, and its relatives."""
    entries = {entry.digest: entry_line(entry) for entry in context.registry.ls()}
    entry = _find(entries, request.path_params["digest"])
    family = relatives(entries, entry["digest"])
    nodes = [_relative(entries.get(digest), digest, entry["digest"]) for digest in family]
    edges = [[parent, child] for child in family if child in entries for parent in entries[child]["parents"]]
    brief = ("digest", "name", "metrics", "parameters", "bytes")
    before = [{name: entries[one][name] for name in brief} for one in entry["parents"] if one in entries]
    return {**entry, "relatives": nodes, "edges": edges, "before": before}


def _find(entries: Mapping[str, Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    prefix = name.rpartition("-")[2].lower()
    matches = [entry for digest, entry in entries.items() if prefix and digest.startswith(prefix)]
    if len(matches) != 1:
        what = f"{len(matches)} checkpoints begin with" if matches else "there is no checkpoint"
        raise NotFound(f"{what} {name[:64]!r}", fix="`agent-forge models ls` lists them")
    return matches[0]


def relatives(entries: Mapping[str, Mapping[str, Any]], digest: str) -> list[str]:
    """The ancestors and descendants of a checkpoint, and itself. Ancestors may no longer be in the registry."""
    children: dict[str, list[str]] = {}
    for entry in entries.values():
        for parent in entry["parents"]:
            children.setdefault(parent, []).append(entry["digest"])
    family = {digest: None}
    for step in (lambda one: entries[one]["parents"] if one in entries else [], lambda one: children.get(one, [])):
        stack = [digest]
        while stack:
            for one in step(stack.pop()):
                if one not in family:
                    family[one] = None
                    stack.append(one)
    return list(family)


def _relative(entry: Mapping[str, Any] | None, digest: str, self_digest: str) -> dict[str, Any]:
    if entry is None:
        return {"digest": digest, "name": digest[:12], "note": "not in the registry", "own": False, "registered": False}
    note = f"{count(entry['parameters'])} parameters"
    return {"digest": digest, "name": entry["phase"], "note": note, "own": digest == self_digest, "registered": True}


def model_view(document: Document) -> dict[str, Any]:
    """The lineage as a picture."""
    edges = [(parent, child) for parent, child in document["edges"]]
    return {"graph": draw_graph(graph_nodes(document), edges, name="lineage", room=WHOLE)}


def graph_nodes(document: Mapping[str, Any]) -> list[Node]:
    """The relatives as boxes, the checkpoint itself marked."""
    return [
        Node(
            one["digest"],
            one["name"],
            one["note"],
            "done" if one["registered"] else "waiting",
            f"/models/{one['digest']}" if one["registered"] else "",
            one["own"],
            title=f"{one['name']} {one['digest'][:12]}",
        )
        for one in document["relatives"]
    ]


def compare_page(context: Context, request: Request) -> Document:
    """Some checkpoints side by side."""
    names = request.query_params.getlist("model")
    if not 2 <= len(names) <= MOST:
        raise UsageError(f"a comparison needs two to {MOST} checkpoints", fix="Select them in the list of models")
    entries = {entry.digest: entry_line(entry) for entry in context.registry.ls()}
    return compare([_find(entries, name) for name in names])


def compare(entries: Sequence[Mapping[str, Any]]) -> Document:
    """The metrics of some checkpoints by name; `best` is the index of the best, if it is significantly better."""
    rows = [_metric_row(name, [entry["metrics"].get(name) for entry in entries]) for name in metric_names(entries)]
    shown = ("digest", "name", "phase", "parameters", "bytes", "created_s", "parents")
    return {"models": [{name: entry[name] for name in shown} for entry in entries], "metrics": rows}


def _metric_row(name: str, metrics: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    lower, best = lower_is_better(name), None
    values = [(float(m["value"]), m.get("stderr"), place) for place, m in enumerate(metrics) if m is not None]
    if lower is not None and len(values) > 1:
        (first, error, place), (second, other, _) = sorted(values, key=lambda one: one[0], reverse=not lower)[:2]
        if error is not None and other is not None and abs(second - first) > 2 * math.hypot(error, other):
            best = place
    return {"name": name, "values": list(metrics), "best": best, "lower_is_better": lower}


PAGE = DashboardPage("Models", "/models", "m", 50, routes)
