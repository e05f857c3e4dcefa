"""The overview: current activity, and the latest of everything."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from agent_forge.server.cache import cached
from agent_forge.server.context import Context
from agent_forge.server.dashboard import DashboardPage, Document, page_routes
from agent_forge.server.drawing.charts import bar_chart
from agent_forge.server.drawing.wording import iso
from agent_forge.server.pages import data, forge, runs, traces
from agent_forge.server.pages.models import entry_line
from agent_forge.traces import Store

HOUR_S = 3_600
# width of the activity window in seconds, and minutes per bar
WINDOWS = ((2 * HOUR_S, 1), (12 * HOUR_S, 5), (48 * HOUR_S, 30), (14 * 24 * HOUR_S, 360), (120 * 24 * HOUR_S, 1_440))
HOW = {
    "runs": "Runs in the journal.",
    "spans": "Spans in the trace store.",
    "errors": "Share of the finished spans in the time shown that ended in an error.",
    "models": "Checkpoints in the registry.",
    "audits": "Reports saved by `agent-forge data audit --save`.",
    "activity": "Finished spans by the time they started, from the aggregates of the store.",
}


def routes(context: Context) -> list[BaseRoute]:
    """The overview."""
    return page_routes(context, "/", "overview.html", overview_page, view)


def overview_page(context: Context, request: Request) -> Document:
    """Current activity, and the latest of everything."""
    lines, _ = context.journal.page(8)
    newest = context.traces.traces(limit=8)
    models = context.registry.ls()
    audits = data.data_page(context, request)["audits"]
    return {
        "counts": {
            "runs": context.journal.count(),
            "spans": cached(context, "spans", context.traces.count),
            "models": len(models),
            "audits": len(audits),
        },
        "activity": cached(context, "activity", lambda: activity(context.traces, time.time()), 5.0),
        "runs": [runs.run_line(context, line) for line in lines],
        "traces": [traces.trace_line(summary) for summary in newest],
        "sessions": [forge.session_line(context, one) for one in context.registry.sessions()[:5]],
        "models": [entry_line(entry) for entry in models[:5]],
        "audits": audits[:5],
        "version": watch(context, ""),
        "how": HOW,
    }


def view(document: Document) -> dict[str, Any]:
    """The activity as a picture."""
    activity = document["activity"]
    wide = activity["window_s"] > 2 * 86_400
    chart = bar_chart(
        activity["bars"],
        window=(activity["from_s"], activity["to_s"]),
        x_label="time (UTC)",
        y_label="spans",
        x_text=lambda at: iso(at)[5:10] if wide else iso(at)[11:16],
        step=activity["minutes"] * 60,
        name="finished spans over time",
    )
    return {"chart": chart}


def activity(store: Store, now_s: float) -> dict[str, Any]:
    """Finished spans over time, in the shortest window that contains the latest span."""
    latest = next((summary.start_ns / 1e9 for summary in store.traces(limit=1)), None)
    if latest is None:
        return {"bars": [], "minutes": 1, "spans": 0, "errors": 0, "window_s": 0, "from_s": now_s, "to_s": now_s}
    age = max(0.0, now_s - latest)
    window, minutes = next((pair for pair in WINDOWS if pair[0] * 0.75 > age), WINDOWS[-1])
    ticks = store.timeline(minutes=minutes, since=now_s - window)
    return {
        "bars": [(tick.start_ns / 1e9, tick.spans, tick.errors) for tick in ticks],
        "minutes": minutes,
        "window_s": window,
        "from_s": now_s - window,
        "to_s": now_s,
        "spans": sum(tick.spans for tick in ticks),
        "errors": sum(tick.errors for tick in ticks),
    }


def watch(context: Context, _: str) -> str:
    """Changes with the runs, the traces and the sessions."""
    parts = (runs.watch, traces.watch, forge.watch_all, data.watch)
    return "|".join(part(context, "") for part in parts)


PAGE = DashboardPage("Overview", "/", "o", 0, routes, {"overview": watch})
