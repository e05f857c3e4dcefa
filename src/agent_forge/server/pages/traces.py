"""Traces and sessions: what happened, found by who, how, when, and what was said."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from agent_forge.errors import UsageError
from agent_forge.server.context import Context
from agent_forge.server.page import Document, NotThere, asked, asked_number, page_routes
from agent_forge.server.pages import Page
from agent_forge.server.pages import trace as one
from agent_forge.server.recent import recent
from agent_forge.traces import Store, Summary
from agent_forge.traces.queries import to_ns
from agent_forge.traces.span import KINDS, STATUSES

SHOWN = 50
SLICE = 500  # traces that a search looks through before it looks at the clock
PATIENCE_S = 0.1  # after which a search shows what it has and where it stands
SESSIONS_AMONG = 500  # the latest traces, among which sessions are listed
OF_TRACES = ("session", "status")
OF_SPANS = ("agent", "model", "kind", "category", "text")  # ask for a span in the trace: that takes a look at each
SPANS_BACK = {"1h": 3_600, "24h": 86_400, "7d": 7 * 86_400, "30d": 30 * 86_400}
GROUPED = ("agent", "model", "category")


def routes(context: Context) -> list[BaseRoute]:
    """The list of traces, the sessions, and what belongs to one trace."""
    return [
        *page_routes(context, "/traces", "traces.html", traces_page),
        *page_routes(context, "/sessions", "sessions.html", sessions_page),
        *page_routes(context, "/sessions/{session:path}", "session.html", session_page, one.view),
        *one.routes(context),
    ]


def traces_page(context: Context, request: Request) -> Document:
    """A page of traces that pass the filters of the query, the newest first."""
    asked_for: dict[str, Any] = {name: asked(request, name) for name in (*OF_TRACES, *OF_SPANS, "since", "until")}
    asked_for |= {name: asked_number(request, name) for name in ("min_reward", "max_reward")}
    filters = {name: value for name, value in asked_for.items() if value is not None}
    started = time.perf_counter()
    found, after, until_ns = search(context.traces, filters, asked(request, "after"))
    return {
        "traces": [trace_line(summary) for summary in found],
        "next": after,
        "searched_until_s": None if until_ns is None else until_ns / 1e9,
        "searched_for_s": time.perf_counter() - started,
        "filters": asked_for,
        "filtered": bool(filters),
        "choices": choices(context),
        "version": watch(context, ""),
    }


def search(store: Store, filters: Mapping[str, Any], after: str | None) -> tuple[list[Summary], str | None, int | None]:
    """Traces that pass, what comes `after` them, and, where patience ended the search, how far back it has looked.

    A condition on spans has no index that keeps the order of traces, so it is tried on slices of the latest traces,
    and what is found within `PATIENCE_S` is shown.
    """
    known = _known(filters)
    if not set(known) & set(OF_SPANS):
        page = store.traces(limit=SHOWN, after=after, **known)
        return page.items, page.next, None
    cheap = {name: value for name, value in known.items() if name not in OF_SPANS}
    deadline, found, edge = time.perf_counter() + PATIENCE_S, list[Summary](), after
    while True:
        part = store.traces(limit=SLICE, after=edge, **cheap)
        if not part.items:
            return found, None, None
        low, high = part.items[-1].start_ns, part.items[0].start_ns + 1
        window = {**known, "since": max(low, cheap.get("since", 0)), "until": min(high, cheap.get("until", high))}
        page = store.traces(limit=SHOWN - len(found), after=edge, **window)
        found += page.items
        if page.next is not None:
            return found, page.next, None
        if part.next is None:
            return found, None, None
        edge = part.next
        if time.perf_counter() > deadline:
            return found, edge, low


def _known(filters: Mapping[str, Any]) -> dict[str, Any]:
    """The filters as the store takes them: times as nanoseconds, and only words that it knows."""
    known = dict(filters)
    for name, words in (("status", STATUSES), ("kind", tuple(KINDS))):
        if name in known and known[name] not in words:
            raise UsageError(f"{name} is {known[name]!r}", fix=f"one of {', '.join(words)}")
    for name in ("since", "until"):
        if name in known:
            back = SPANS_BACK.get(known[name])
            known[name] = to_ns(time.time() - back if back else str(known[name]))
    return known


def choices(context: Context) -> dict[str, list[str]]:
    """The values that filters can take: what occurs in the store."""

    def find() -> dict[str, list[str]]:
        groups = context.traces.aggregate(GROUPED)
        return {
            name: sorted({str(group.group[name]) for group in groups if group.group[name]})[:200] for name in GROUPED
        }

    found: dict[str, list[str]] = recent(context, "trace choices", find)
    return {**found, "status": list(STATUSES), "kind": list(KINDS), "since": list(SPANS_BACK)}


def trace_line(summary: Summary) -> dict[str, Any]:
    """A trace in one line."""
    lasted = None if summary.end_ns is None else (summary.end_ns - summary.start_ns) / 1e9
    kept = {name: value for name, value in asdict(summary).items() if not name.endswith("_ns")}
    return {**kept, "started_s": summary.start_ns / 1e9, "duration_s": lasted, "state": one.state_of(summary)}


def sessions_page(context: Context, request: Request) -> Document:
    """The sessions among the latest traces, the latest first."""
    page = context.traces.traces(limit=SESSIONS_AMONG)
    sessions: dict[str, dict[str, Any]] = {}
    for summary in page:
        if summary.session:
            _add(sessions, summary)
    return {
        "sessions": list(sessions.values()),
        "looked_at": len(page),
        "more": page.next is not None,
        "version": watch(context, ""),
    }


def _add(sessions: dict[str, dict[str, Any]], summary: Summary) -> None:
    start_s = summary.start_ns / 1e9
    empty: dict[str, Any] = {
        "session": summary.session, "traces": 0, "spans": 0, "errors": 0, "first_s": start_s, "last_s": start_s,
        "input_tokens": None, "output_tokens": None, "cost": None, "rewards": [],
    }  # fmt: skip
    row = sessions.setdefault(str(summary.session), empty)
    row["traces"] += 1
    row["spans"] += summary.spans
    row["errors"] += summary.errors
    row["first_s"] = min(row["first_s"], start_s)
    for name in ("input_tokens", "output_tokens", "cost"):
        value = getattr(summary, name)
        if value is not None:
            row[name] = value + (row[name] or 0)
    if summary.reward is not None:
        row["rewards"].append(summary.reward)


def session_page(context: Context, request: Request) -> Document:
    """One session: its traces in order, and all of them put together."""
    name = request.path_params["session"]
    page = context.traces.traces(limit=200, session=name, oldest_first=True)
    if not page.items:
        raise NotThere(f"there is no session {name!r}", fix="/sessions lists the latest ones")
    lines = [trace_line(summary) for summary in page]
    spans = [span for line in lines[:50] for span in context.traces.trace(line["trace_id"])]
    together = one.understood(spans[: one.CREDITED], asked(request, "credit"))
    return {"session": name, "traces": lines, "more": page.next is not None, **together, "version": ""}


def watch(context: Context, _: str) -> str:
    """Changes whenever a newer trace or span comes in."""
    newest = context.traces.traces(limit=1)
    return "-".join(f"{one.trace_id}-{one.spans}-{one.unfinished}" for one in newest)


PAGE = Page("Traces", "/traces", "t", 20, routes, {"traces": watch, "trace": one.watch})
