"""Rollouts: where each stands, the bounds over time, the decisions, and buttons for people; experiments below them."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from agent_forge.errors import StoreError
from agent_forge.rollout import TraceReadings, analyse
from agent_forge.rollout.experiments import experiments, picture
from agent_forge.server.cache import cached
from agent_forge.server.context import Context
from agent_forge.server.dashboard import DashboardPage, Document, NotFound, page_routes
from agent_forge.server.drawing.charts import Line, line_chart
from agent_forge.server.drawing.wording import signed
from agent_forge.server.rollouts import rollouts_of
from agent_forge.traces.queries import to_ns

SHOWN = 200  # decisions in the log of the page; all of them are in the JSON


def routes(context: Context) -> list[BaseRoute]:
    """The list, one rollout, one experiment."""
    return [
        *page_routes(context, "/rollouts", "rollouts.html", rollouts_page),
        *page_routes(context, "/rollouts/experiments/{name}", "experiment.html", experiment_page, experiment_view),
        *page_routes(context, "/rollouts/{name}", "rollout.html", rollout_page, rollout_view),
    ]


def rollouts_page(context: Context, request: Request) -> Document:
    """Every rollout with its latest decision, and every experiment."""
    rollouts = rollouts_of(context)
    rows = []
    for name in rollouts.names():
        try:
            document = rollouts.document(name)
            decisions = document.pop("decisions")
            rows.append({**document, "latest": decisions[-1] if decisions else None, "error": None})
        except StoreError as error:
            rows.append({"name": name, "state": "damaged", "error": str(error)})
    running = [
        {"name": name, "state": state, "variants": dict(each.variants), "metric": each.metric}
        for name, (each, state) in experiments(rollouts).items()
    ]
    return {"rollouts": rows, "experiments": running, "policies": rollouts.policies(), "version": _version(context, "")}


def rollout_page(context: Context, request: Request) -> Document:
    """One rollout and every decision about it."""
    name = request.path_params["name"]
    rollouts = rollouts_of(context)
    if name not in rollouts.names():
        raise NotFound(f"there is no rollout {name[:100]!r}")
    return {**rollouts.document(name), "version": _version(context, name)}


def rollout_view(document: Document) -> dict[str, Any]:
    """The gain of every metric with its bounds, over the days since the rollout was made."""
    decisions = document["decisions"]
    measured = [decision for decision in decisions if decision["action"] != "create"]
    names = dict.fromkeys(
        name
        for decision in measured
        for name, figure in decision["figures"].items()
        if isinstance(figure, dict) and "lower" in figure
    )
    charts = {}
    for name in names:
        points = [
            (to_ns(decision["at"]) / 1e9, decision["figures"][name])
            for decision in measured
            if name in decision["figures"]
        ]
        first = points[0][0]
        lines = [
            Line(kind, [((at - first) / 86_400, figure[kind]) for at, figure in points])
            for kind in ("upper", "gain", "lower")
        ]
        charts[name] = line_chart(lines, x_label="days", y_label=f"gain in {name}", text=signed)
    return {"charts": charts, "log": list(reversed(decisions))[:SHOWN]}


def experiment_page(context: Context, request: Request) -> Document:
    """What an experiment has found so far, at most a few seconds old."""
    name = request.path_params["name"]
    found = experiments(rollouts_of(context)).get(name)
    if found is None:
        raise NotFound(f"there is no experiment {name[:100]!r}")
    experiment, state = found
    report = cached(
        context, f"experiment:{name}", lambda: analyse(experiment, TraceReadings(context.traces).exposed(name))
    )
    return {**report.to_json(), "state": state, "metric": experiment.metric, "svg": picture(report)}


def experiment_view(document: Document) -> dict[str, Any]:
    from markupsafe import Markup

    return {"picture": Markup(document["svg"])}  # noqa: S704  (our own drawing, whose texts are escaped)


def _version(context: Context, name: str) -> str:
    """Changes whenever a rollout, or the one of that name, has changed."""
    with rollouts_of(context).db.read() as cursor:
        where, values = (" WHERE name = ?", (name,)) if name else ("", ())
        rows = cursor.execute(f"SELECT count(*), sum(version) FROM rollouts{where}", values).fetchone()  # noqa: S608
    return "-".join(str(value) for value in rows)


PAGE = DashboardPage("Rollouts", "/rollouts", "l", 55, routes, {"rollouts": _version})
