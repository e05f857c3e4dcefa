"""The forge: sessions, and one session as a pipeline with the curves of each phase, live."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from agent_forge.server.context import Context
from agent_forge.server.dashboard import DashboardPage, Document, NotFound, page_routes
from agent_forge.server.drawing.graph import WHOLE, Node, draw_graph
from agent_forge.server.drawing.wording import duration, number, share
from agent_forge.server.series import PhaseSeries, draw, draw_stages, phase_series

SHOWN = 100
HOW = {
    "gate": "The metric on held-out data before and after the phase, what a control with the same compute reached, and "
    "the standard error of the difference. It passes when the gain, also over a control, is larger than two standard "
    "errors; an unmeasured phase never passes.",
    "curves": "Every number that the phase reported while it ran, from the events.jsonl of the session.",
    "duration_s": "From the start of the phase to its end, from the registry.",
    "left_s": "The remaining steps, at the pace so far.",
}


def routes(context: Context) -> list[BaseRoute]:
    """The list of sessions, and one of them."""
    return [
        *page_routes(context, "/forge", "forge.html", forge_page),
        *page_routes(context, "/forge/{session}", "forge_session.html", session_page, view),
    ]


def forge_page(context: Context, request: Request) -> Document:
    """The sessions, newest first."""
    return {
        "sessions": [session_line(context, session) for session in context.registry.sessions()[:SHOWN]],
        "version": watch_all(context, ""),
    }


def session_line(context: Context, session: Mapping[str, Any]) -> dict[str, Any]:
    """A session in one line."""
    phases = context.registry.phases(session["session"])
    states = {phase["name"]: phase["state"] for phase in phases}
    return {
        "session": session["session"],
        "pipeline": session["pipeline"].get("name"),
        "state": session["state"],
        "started_s": session["started_s"],
        "duration_s": (session["ended_s"] or time.time()) - session["started_s"],
        "phases": {name: states.get(name, "waiting") for name in session["pipeline"].get("phases", {})},
    }


def session_page(context: Context, request: Request) -> Document:
    """One session: the pipeline as a graph, and the gate, curves and checkpoint of each phase."""
    name = request.path_params["session"]
    session = next((one for one in context.registry.sessions() if one["session"] == name), None)
    if session is None:
        raise NotFound(f"there is no session {name!r}", fix="`agent-forge forge ls` lists them")
    rows = {row["name"]: row for row in context.registry.phases(name)}
    series = phase_series(events_file(context, name))
    steps: Mapping[str, Any] = session["pipeline"].get("phases", {})
    over = session["state"] != "running"
    phases = [_phase(each, steps[each], rows.get(each, {}), series.get(each), over) for each in steps]
    return {
        **session_line(context, session),
        "config": session["pipeline"],
        "phases": phases,
        "handoffs": [one for one in context.registry.handoffs() if one["session"] == name],
        "version": watch(context, name),
        "how": HOW,
    }


def _phase(
    name: str, step: Mapping[str, Any], row: Mapping[str, Any], series: PhaseSeries | None, over: bool
) -> dict[str, Any]:
    state = row.get("state", "waiting")
    if over and state == "running":
        state = "interrupted"
    started, ended = row.get("started_s"), row.get("ended_s")
    progress = None if series is None else series.progress(step.get("config", {}))
    return {
        "name": name,
        "phase": step.get("phase"),
        "after": list(step.get("after", ())),
        "config": step.get("config", {}),
        "state": state,
        "error": row.get("error"),
        "gate": row.get("gate"),
        "checkpoint": row.get("checkpoint"),
        "started_s": started,
        "duration_s": None if started is None else (ended or time.time()) - started,
        "progress": 1.0 if state in ("completed", "no gain", "skipped") else progress,
        "left_s": series.left_s(progress) if series is not None and state == "running" else None,
        "series": [] if series is None else series.charts(),
        "once": {} if series is None else series.constants(),
        "stages": [] if series is None else series.stages,
        "events": 0 if series is None else series.events,
    }


def graph_nodes(document: Mapping[str, Any]) -> list[Node]:
    """The phases as boxes."""
    return [
        Node(
            phase["name"],
            phase["name"],
            _note(phase),
            phase["state"],
            f"#phase-{phase['name']}",
            progress=phase["progress"] if phase["state"] == "running" else None,
            title=f"{phase['name']}: {phase['phase']} ({phase['state']})",
        )
        for phase in document["phases"]
    ]


def _note(phase: Mapping[str, Any]) -> str:
    if phase["state"] == "running":
        done = "" if phase["progress"] is None else share(phase["progress"])
        left = "" if phase["left_s"] is None else f", {duration(phase['left_s'])} left"
        return f"{done}{left}" or "running"
    gate = phase["gate"] or {}
    if gate.get("after") is not None:
        return f"{number(gate.get('before'))} → {number(gate['after'])} {gate['metric']}"
    return str(phase["state"])


def view(document: Document) -> dict[str, Any]:
    """The pipeline as a picture, and the curves of each phase."""
    edges = [(source, phase["name"]) for phase in document["phases"] for source in phase["after"]]
    charts = {
        phase["name"]: [*filter(None, [draw_stages(phase["stages"])]), *(draw(chart) for chart in phase["series"])]
        for phase in document["phases"]
    }
    return {"graph": draw_graph(graph_nodes(document), edges, name="the pipeline", room=WHOLE), "charts": charts}


def events_file(context: Context, session: str) -> Path:
    """The events of a session. Its name comes from the registry, never directly from a request."""
    return context.home / "sessions" / session / "events.jsonl"


def watch_all(context: Context, _: str) -> str:
    """Changes whenever a session starts, ends, or enters another phase."""
    latest = context.registry.sessions()[:3]
    return "-".join(f"{one['session']}:{one['state']}:{_states(context, one['session'])}" for one in latest)


def watch(context: Context, session: str) -> str:
    """Changes whenever the session has reported something."""
    row = next((one for one in context.registry.sessions() if one["session"] == session), None)
    if row is None:
        return ""
    file = events_file(context, session)
    size = file.stat().st_size if file.exists() else 0
    return f"{row['state']}-{size}-{_states(context, session)}"


def _states(context: Context, session: str) -> str:
    return ",".join(phase["state"] for phase in context.registry.phases(session))


PAGE = DashboardPage("Forge", "/forge", "f", 40, routes, {"forge": watch_all, "session": watch})
