"""The first page: what is going on, and what was there lately."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from agent_forge.server.context import Context
from agent_forge.server.drawing.charts import bar_chart
from agent_forge.server.drawing.wording import iso
from agent_forge.server.page import Document, page_routes
from agent_forge.server.pages import Page, data, forge, runs, traces
from agent_forge.server.pages.models import entry_line
from agent_forge.server.recent import recent
from agent_forge.traces import Store

HOUR_S = 3_600
# how wide a window of activity is shown, and the minutes of one bar in it
WINDOWS = ((2 * HOUR_S, 1), (12 * HOUR_S, 5), (48 * HOUR_S, 30), (14 * 24 * HOUR_S, 360), (120 * 24 * HOUR_S, 1_440))
HOW = {
    "runs": "Runs in the journal under the home folder.",
    "spans": "Spans in the trace store: everything that was recorded.",
    "errors": "Spans that ended in an error, of all finished spans in the time shown.",
    "models": "Checkpoints in the registry.",
    "audits": "Reports that `agent-forge data audit --keep` has put under the home folder.",
    "activity": "Finished spans by the moment they started, from the store's sums by the minute and hour.",
}


def routes(context: Context) -> list[BaseRoute]:
    """The overview."""
    return page_routes(context, "/", "overview.html", overview_page, view)


def overview_page(context: Context, request: Request) -> Document:
    """What is going on, and the latest of everything."""
    lines, _ = context.journal.page(8)
    newest = context.traces.traces(limit=8)
    models = context.registry.ls()
    audits = data.data_page(context, request)["audits"]
    return {
        "counts": {
            "runs": context.journal.count(),
            "spans": recent(context, "spans", context.traces.count),
            "models": len(models),
            "audits": len(audits),
        },
        "activity": recent(context, "activity", lambda: activity(context.traces, time.time()), 5.0),
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
    found = document["activity"]
    wide = found["window_s"] > 2 * 86_400
    drawn = bar_chart(
        found["bars"],
        window=(found["from_s"], found["to_s"]),
        x_label="time (UTC)",
        y_label="spans",
        x_text=lambda at: iso(at)[5:10] if wide else iso(at)[11:16],
        step=found["minutes"] * 60,
        name="finished spans over time",
    )
    return {"chart": drawn}


def activity(store: Store, now_s: float) -> dict[str, Any]:
    """Finished spans over time: of the shortest window that reaches back to the latest span."""
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


PAGE = Page("Overview", "/", "o", 0, routes, {"overview": watch})
