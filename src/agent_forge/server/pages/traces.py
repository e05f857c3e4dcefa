"""Traces and sessions, with filters by agent, model, status, time and text."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from agent_forge.errors import UsageError
from agent_forge.server.cache import cached
from agent_forge.server.context import Context
from agent_forge.server.dashboard import DashboardPage, Document, NotFound, page_routes, query_number, query_value
from agent_forge.server.pages import trace as one
from agent_forge.traces import Store, Summary
from agent_forge.traces.queries import to_ns
from agent_forge.traces.span import KINDS, STATUSES

SHOWN = 50
SLICE = 500  # traces that a search examines before it checks the time
SEARCH_S = 0.1  # after which a search returns what it has so far
SESSIONS_AMONG = 500  # latest traces to list sessions from
OF_TRACES = ("session", "status")
OF_SPANS = ("agent", "model", "kind", "category", "text")  # need a look at the spans of each trace
PERIODS = {"1h": 3_600, "24h": 86_400, "7d": 7 * 86_400, "30d": 30 * 86_400}
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
    """A page of traces that match the filters of the query, newest first."""
    fields: dict[str, Any] = {name: query_value(request, name) for name in (*OF_TRACES, *OF_SPANS, "since", "until")}
    fields |= {name: query_number(request, name) for name in ("min_reward", "max_reward")}
    filters = {name: value for name, value in fields.items() if value is not None}
    started = time.perf_counter()
    matches, after, until_ns = search(context.traces, filters, query_value(request, "after"))
    return {
        "traces": [trace_line(summary) for summary in matches],
        "next": after,
        "searched_until_s": None if until_ns is None else until_ns / 1e9,
        "searched_for_s": time.perf_counter() - started,
        "filters": fields,
        "filtered": bool(filters),
        "choices": choices(context),
        "version": watch(context, ""),
    }


def search(store: Store, filters: Mapping[str, Any], after: str | None) -> tuple[list[Summary], str | None, int | None]:
    """Matching traces, the cursor for more, and, if the search ran out of time, how far back it has looked.

    No index keeps the order of traces for conditions on spans, so these are tried on slices of the latest traces until
    `SEARCH_S` have passed.
    """
    conditions = _conditions(filters)
    if not set(conditions) & set(OF_SPANS):
        page = store.traces(limit=SHOWN, after=after, **conditions)
        return page.items, page.next, None
    cheap = {name: value for name, value in conditions.items() if name not in OF_SPANS}
    deadline, matches, cursor = time.perf_counter() + SEARCH_S, list[Summary](), after
    while True:
        part = store.traces(limit=SLICE, after=cursor, **cheap)
        if not part.items:
            return matches, None, None
        low, high = part.items[-1].start_ns, part.items[0].start_ns + 1
        window = {**conditions, "since": max(low, cheap.get("since", 0)), "until": min(high, cheap.get("until", high))}
        page = store.traces(limit=SHOWN - len(matches), after=cursor, **window)
        matches += page.items
        if page.next is not None:
            return matches, page.next, None
        if part.next is None:
            return matches, None, None
        cursor = part.next
        if time.perf_counter() > deadline:
            return matches, cursor, low


def _conditions(filters: Mapping[str, Any]) -> dict[str, Any]:
    """The filters as the store takes them, times in nanoseconds. Raises UsageError."""
    conditions = dict(filters)
    for name, words in (("status", STATUSES), ("kind", tuple(KINDS))):
        if name in conditions and conditions[name] not in words:
            raise UsageError(f"there is no {name} {conditions[name]!r}", fix=f"Use one of {', '.join(words)}")
    for name in ("since", "until"):
        if name in conditions:
            back = PERIODS.get(conditions[name])
            conditions[name] = to_ns(time.time() - back if back else str(conditions[name]))
    return conditions


def choices(context: Context) -> dict[str, list[str]]:
    """The values for the filters: what occurs in the store."""

    def find() -> dict[str, list[str]]:
        groups = context.traces.aggregate(GROUPED)
        return {
            name: sorted({str(group.group[name]) for group in groups if group.group[name]})[:200] for name in GROUPED
        }

    values: dict[str, list[str]] = cached(context, "trace choices", find)
    return {**values, "status": list(STATUSES), "kind": list(KINDS), "since": list(PERIODS)}


def trace_line(summary: Summary) -> dict[str, Any]:
    """A trace in one line."""
    duration_s = None if summary.end_ns is None else (summary.end_ns - summary.start_ns) / 1e9
    fields = {name: value for name, value in asdict(summary).items() if not name.endswith("_ns")}
    return {**fields, "started_s": summary.start_ns / 1e9, "duration_s": duration_s, "state": one.state_of(summary)}


def sessions_page(context: Context, request: Request) -> Document:
    """The sessions among the latest traces, newest first."""
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
    """One session: its traces in order, and the analysis of all of them."""
    name = request.path_params["session"]
    page = context.traces.traces(limit=200, session=name, oldest_first=True)
    if not page.items:
        raise NotFound(f"there is no session {name!r}", fix="/sessions lists the latest ones")
    lines = [trace_line(summary) for summary in page]
    spans = [span for line in lines[:50] for span in context.traces.trace(line["trace_id"])]
    analysis = one.analysis(spans[: one.MOST_CREDITED], query_value(request, "credit"))
    return {"session": name, "traces": lines, "more": page.next is not None, **analysis, "version": ""}


def watch(context: Context, _: str) -> str:
    """Changes whenever a new trace or span arrives."""
    newest = context.traces.traces(limit=1)
    return "-".join(f"{one.trace_id}-{one.spans}-{one.unfinished}" for one in newest)


PAGE = DashboardPage("Traces", "/traces", "t", 20, routes, {"traces": watch, "trace": one.watch})
