"""One trace: its spans on the time line, who waited for whom, rewards and credit; and one span by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from agent_forge.server.context import Context
from agent_forge.server.drawing.graph import Node, draw_graph
from agent_forge.server.drawing.wording import duration
from agent_forge.server.page import Document, NotThere, asked, page_routes
from agent_forge.server.pages.steps import MOST_ROWS, span_rows, totals
from agent_forge.traces import Store, Summary, assemble
from agent_forge.traces.credit import STRATEGIES, credit_by
from agent_forge.traces.span import FIELDS, Span
from agent_forge.traces.trajectory import Trajectory

CREDITED = 1_500
HOW = {
    "total_s": "From the first start of a span to the last end.",
    "spans": "Every span of the trace in the store; those with errors have the status error.",
    "work_s": "The durations of the spans that did the work (those that contain no others), added up.",
    "critical_path_s": "The heaviest chain of spans that came necessarily one after the other, by their links.",
    "idle_s": "Time in which no span that does work was running.",
    "parallelism": "Work divided by the whole time: how many spans were at work at once, on average.",
    "reward": "The reward of the outermost spans, else the mean of the reward spans; a dash where nothing was judged.",
    "credit": "The outcome shared out over the spans by the strategy chosen; the shares add up to the outcome.",
    "tokens": "The outermost spans that state tokens, added up.",
    "cost": "The outermost spans that state a cost, added up.",
}


def routes(context: Context) -> list[BaseRoute]:
    """A trace and its spans."""
    return [
        *page_routes(context, "/traces/{trace}/{span}", "span.html", span_page),
        *page_routes(context, "/traces/{trace}", "trace.html", trace_page, view),
    ]


def state_of(summary: Summary) -> str:
    """How a trace ended, in the words of the runs; "open" while its outermost span has not come in."""
    if summary.status is None:
        return "open"
    if summary.unfinished and summary.status != "error":
        return "running"
    if summary.status == "error":
        return "failed"
    return "done" if summary.status == "ok" or not summary.errors else "failed"


def trace_page(context: Context, request: Request) -> Document:
    """The document of one trace."""
    trace_id = request.path_params["trace"]
    summary = _summary(context.traces, trace_id)
    spans = context.traces.trace(summary.trace_id)
    rows = None if asked(request, "rows") == "all" else MOST_ROWS
    return {
        "trace_id": summary.trace_id,
        "name": summary.name,
        "state": state_of(summary),
        "error": summary.error,
        "agent": summary.agent,
        "session": summary.session,
        "started_s": summary.start_ns / 1e9,
        "run": context.journal.of_trace(summary.trace_id),
        **understood(spans, asked(request, "credit"), rows),
        "version": watch(context, summary.trace_id),
    }


def _summary(store: Store, beginning: str) -> Summary:
    """The trace whose id begins so. Raises NotThere."""
    word = beginning.lower()
    found = store.trace_ids(word, limit=2) if word and set(word) <= set("0123456789abcdef") else []
    if len(found) != 1:
        what = f"{len(found)} or more traces begin with" if found else "there is no trace"
        raise NotThere(f"{what} {beginning[:64]!r}", fix="/traces lists them")
    return store.traces(trace_id=found[0], limit=1).items[0]


def understood(spans: Sequence[Span], strategy: str | None, most_rows: int | None = MOST_ROWS) -> Document:
    """What spans come to when they are put together: figures, rows on the time line, a graph, and credit."""
    trajectory = assemble(spans)
    strategy = strategy or "shapley"
    if strategy not in STRATEGIES:
        raise NotThere(f"there is no strategy {strategy!r}", fix=f"one of {', '.join(STRATEGIES)}")
    outcome, origin = trajectory.outcome
    credit = trajectory.credit(strategy) if len(spans) <= CREDITED else {}
    rows = span_rows(trajectory, credit if origin != "unit" else {})
    figures = ("total_s", "work_s", "idle_s", "critical_path_s", "parallelism", "parallelism_limit", "success")
    figures += ("reward", "cost", "input_tokens", "output_tokens", "critical_path", "tools")  # type: ignore[assignment]
    nodes, edges = _linked(trajectory)
    return {
        "figures": {name: getattr(trajectory, name) for name in figures},
        "spans": len(spans),
        "errors": sum(span.status == "error" for span in spans),
        "rows": rows[:most_rows],
        "rows_in_all": len(rows),
        "nodes": nodes,
        "edges": edges,
        "outcome": outcome,
        "outcome_from": origin,
        "credit_strategy": strategy,
        "credit_strategies": list(STRATEGIES),
        "credit_error_bound": getattr(credit, "error_bound", 0.0),
        "credit_by_agent": credit_by(trajectory.graph, credit, "agent") if credit and origin != "unit" else {},
        "rewards": [_reward(span) for span in spans if span.reward is not None],
        "faults": [fault.message for fault in trajectory.faults][:20],
        "how": HOW,
    }


def _reward(span: Span) -> dict[str, Any]:
    return {"span_id": span.span_id, "trace_id": span.trace_id, "name": span.name, "kind": span.kind,
            "agent": span.agent, "reward": span.reward}  # fmt: skip


def _linked(trajectory: Trajectory) -> tuple[list[dict[str, Any]], list[list[str]]]:
    """The spans that used each other's results, as a graph."""
    edges = [
        [source, span_id]
        for span_id in trajectory.graph.spans
        for source in trajectory.graph.sources[span_id]
        if source in trajectory.graph.spans
    ]
    known = {span_id for edge in edges for span_id in edge}
    path = trajectory.critical_path
    critical = {*path, *(around for leaf in path for around in trajectory.graph.ancestors(leaf))}
    nodes = [
        {
            "id": span.span_id,
            "name": str(span.attributes.get("task") or span.name),
            "note": duration(span.duration_s),
            "state": "failed" if span.status == "error" else "running" if span.end_ns is None else "done",
            "critical": span.span_id in critical,
            "href": f"/traces/{span.trace_id}/{span.span_id}",
        }
        for span in trajectory.spans
        if span.span_id in known
    ]
    return nodes, edges


def view(document: Document) -> dict[str, Any]:
    """The linked spans as a picture."""
    nodes = [
        Node(node["id"], node["name"], node["note"], node["state"], node["href"], node["critical"])
        for node in document["nodes"]
    ]
    edges = [(source, target) for source, target in document["edges"]]
    strong = {node["id"] for node in document["nodes"] if node["critical"]}
    critical = {edge for edge in edges if strong.issuperset(edge)}
    return {"graph": draw_graph(nodes, edges, critical, "spans that used each other's results")}


def span_page(context: Context, request: Request) -> Document:
    """The document of one span: inputs, outputs, tokens, cost, reward and credit."""
    summary = _summary(context.traces, request.path_params["trace"])
    spans = context.traces.trace(summary.trace_id)
    trajectory = assemble(spans)
    span = trajectory.graph.spans.get(request.path_params["span"])
    if span is None:
        raise NotThere(f"the trace has no span {request.path_params['span'][:40]!r}")
    _, origin = trajectory.outcome
    credit = trajectory.credit() if len(spans) <= CREDITED and origin != "unit" else {}
    parts = trajectory.graph.children.get(span.span_id, [])
    return {
        **{name: getattr(span, name) for name in FIELDS if name not in ("otel", "links")},
        "links": [list(link) for link in span.links],
        "trace_id": summary.trace_id,
        "state": "failed" if span.status == "error" else "running" if span.end_ns is None else "done",
        "started_s": span.start_ns / 1e9,
        "duration_s": span.duration_s,
        "totals": totals(trajectory, span.span_id),
        "credit": credit.get(span.span_id),
        "critical": span.span_id in trajectory.critical_path,
        "messages": messages_of(span),
        "parts": [_brief(trajectory.graph.spans[part]) for part in parts],
        "uses": [_brief(trajectory.graph.spans[name]) for name in trajectory.graph.sources[span.span_id]
                 if name in trajectory.graph.spans],
        "how": HOW,
    }  # fmt: skip


def _brief(span: Span) -> dict[str, Any]:
    state = "failed" if span.status == "error" else "done"
    address = f"/traces/{span.trace_id}/{span.span_id}"
    return {"name": span.name, "kind": span.kind, "duration_s": span.duration_s, "state": state, "href": address}


def messages_of(span: Span) -> list[dict[str, str]]:
    """The conversation of a model call, where its input is one: a list of messages with a role."""
    given = span.inputs.get("messages") if isinstance(span.inputs, Mapping) else span.inputs
    if not isinstance(given, list) or not given or not all(isinstance(m, Mapping) and "role" in m for m in given):
        return []
    return [{"role": str(m["role"]), "text": _text(m.get("content"))} for m in given]


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) if isinstance(part, Mapping) else str(part) for part in content)
    return "" if content is None else str(content)


def watch(context: Context, trace_id: str) -> str:
    """Changes whenever the trace has grown."""
    found = context.traces.traces(trace_id=trace_id, limit=1)
    return "-".join(f"{one.spans}-{one.unfinished}-{one.end_ns}" for one in found)
