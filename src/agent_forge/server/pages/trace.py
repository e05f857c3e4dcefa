"""One trace: its spans on the timeline, their dependencies, rewards and credit; and each span in detail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from agent_forge.server.context import Context
from agent_forge.server.dashboard import Document, NotFound, page_routes, query_value
from agent_forge.server.drawing.graph import Node, draw_graph
from agent_forge.server.drawing.wording import duration
from agent_forge.server.pages.steps import MOST_ROWS, span_rows, totals
from agent_forge.traces import Store, Summary, assemble
from agent_forge.traces.credit import STRATEGIES, credit_by
from agent_forge.traces.scores import USER, is_score, roots, scores
from agent_forge.traces.span import FIELDS, Span
from agent_forge.traces.trajectory import Trajectory

MOST_CREDITED = 1_500  # spans of a trace up to which a page computes credit
HOW = {
    "total_s": "From the first start of a span to the last end.",
    "spans": "All spans of the trace in the store; those with status error count as errors.",
    "work_s": "The sum of the durations of the innermost spans, which do the work.",
    "critical_path_s": "The longest chain of dependent spans, by their links.",
    "idle_s": "Time in which no innermost span was running.",
    "parallelism": "Work divided by duration: how many spans ran at the same time, on average.",
    "reward": "The mean over the judges; if nobody judged the trace, the reward that the program recorded, if any.",
    "credit": "The reward, divided among the spans by the selected strategy; the shares add up to the reward.",
    "tokens": "The sum over the outermost spans that report tokens.",
    "cost": "The sum over the outermost spans that report a cost.",
}


def routes(context: Context) -> list[BaseRoute]:
    """A trace and its spans."""
    return [
        *page_routes(context, "/traces/{trace}/{span}", "span.html", span_page),
        *page_routes(context, "/traces/{trace}", "trace.html", trace_page, view),
    ]


def state_of(summary: Summary) -> str:
    """How a trace ended, in the words of runs; "open" until its outermost span arrives."""
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
    rows = None if query_value(request, "rows") == "all" else MOST_ROWS
    return {
        "trace_id": summary.trace_id,
        "name": summary.name,
        "state": state_of(summary),
        "error": summary.error,
        "agent": summary.agent,
        "session": summary.session,
        "started_s": summary.start_ns / 1e9,
        "run": context.journal.of_trace(summary.trace_id),
        **analysis(spans, query_value(request, "credit"), rows),
        "version": watch(context, summary.trace_id),
    }


def _summary(store: Store, prefix: str) -> Summary:
    """The trace whose id begins with `prefix`. Raises NotFound."""
    word = prefix.lower()
    ids = store.trace_ids(word, limit=2) if word and set(word) <= set("0123456789abcdef") else []
    if len(ids) != 1:
        what = "several traces begin with" if ids else "there is no trace"
        raise NotFound(f"{what} {prefix[:64]!r}", fix="/traces lists them")
    return store.traces(trace_id=ids[0], limit=1).items[0]


def analysis(spans: Sequence[Span], strategy: str | None, most_rows: int | None = MOST_ROWS) -> Document:
    """The analysis of spans: figures, rows on the timeline, a graph, and credit."""
    trajectory = assemble(spans)
    strategy = strategy or "shapley"
    if strategy not in STRATEGIES:
        raise NotFound(f"there is no strategy {strategy!r}", fix=f"Use one of {', '.join(STRATEGIES)}")
    credit = trajectory.credit(strategy) if len(spans) <= MOST_CREDITED else {}
    rows = span_rows(trajectory, credit)
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
        "outcome": trajectory.reward,
        "credit_strategy": strategy,
        "credit_strategies": list(STRATEGIES),
        "credit_error_bound": getattr(credit, "error_bound", 0.0),
        "credit_by_agent": credit_by(trajectory.graph, credit, "agent") if credit else {},
        "rewards": [_reward(span) for span in spans if span.reward is not None and not is_score(span)],
        "root": roots(spans)[0].span_id,
        "scores": [judgement.to_json() for judgement in scores(spans)],
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
    linked = {span_id for edge in edges for span_id in edge}
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
        if span.span_id in linked
    ]
    return nodes, edges


def view(document: Document) -> dict[str, Any]:
    """The linked spans as a picture, and the score that the thumbs gave."""
    nodes = [
        Node(node["id"], node["name"], node["note"], node["state"], node["href"], node["critical"])
        for node in document["nodes"]
    ]
    edges = [(source, target) for source, target in document["edges"]]
    strong = {node["id"] for node in document["nodes"] if node["critical"]}
    critical = {edge for edge in edges if strong.issuperset(edge)}
    own = [one["value"] for one in document["scores"] if one["judge"] == USER and one["span_id"] == document["root"]]
    picture = draw_graph(nodes, edges, critical, "spans and the results they used")
    return {"graph": picture, "own_score": own[-1] if own else None}


def span_page(context: Context, request: Request) -> Document:
    """The document of one span: inputs, outputs, tokens, cost, reward and credit."""
    summary = _summary(context.traces, request.path_params["trace"])
    spans = context.traces.trace(summary.trace_id)
    trajectory = assemble(spans)
    span = trajectory.graph.spans.get(request.path_params["span"])
    if span is None:
        raise NotFound(f"the trace has no span {request.path_params['span'][:40]!r}")
    credit = trajectory.credit() if len(spans) <= MOST_CREDITED else {}
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
    """The conversation in the input of a model call (messages with a role), if there is one."""
    inputs = span.inputs.get("messages") if isinstance(span.inputs, Mapping) else span.inputs
    if not isinstance(inputs, list) or not inputs or not all(isinstance(m, Mapping) and "role" in m for m in inputs):
        return []
    return [{"role": str(m["role"]), "text": _text(m.get("content"))} for m in inputs]


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) if isinstance(part, Mapping) else str(part) for part in content)
    return "" if content is None else str(content)


def watch(context: Context, trace_id: str) -> str:
    """Changes whenever the trace has grown."""
    traces = context.traces.traces(trace_id=trace_id, limit=1)
    return "-".join(f"{one.spans}-{one.unfinished}-{one.end_ns}" for one in traces)
