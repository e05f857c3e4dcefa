"""The runs: a list, and two of them side by side."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from agent_forge.errors import UsageError
from agent_forge.runtime import RunSummary
from agent_forge.runtime.result import RUN_STATES
from agent_forge.server.context import Context
from agent_forge.server.dashboard import DashboardPage, Document, page_routes, query_number, query_value
from agent_forge.server.pages import run as one
from agent_forge.server.pages.run import run_document

SHOWN = 50
STATES = ("running", *RUN_STATES)


def routes(context: Context) -> list[BaseRoute]:
    """The list, the comparison, and what belongs to one run."""
    return [
        *page_routes(context, "/runs", "runs.html", runs_page),
        *page_routes(context, "/compare", "compare.html", compare_page),
        *one.routes(context),
    ]


def runs_page(context: Context, request: Request) -> Document:
    """A page of runs, newest first."""
    state = query_value(request, "state")
    if state is not None and state not in STATES:
        raise UsageError(f"there is no state {state!r}", fix=f"Use one of {', '.join(STATES)}")
    before = query_number(request, "before")
    journal = context.journal
    lines, more = journal.page(SHOWN, None if before is None else int(before), state)
    return {
        "runs": [run_line(context, line) for line in lines],
        "next": more,
        "count": journal.count(),
        "state": state,
        "states": STATES,
        "version": journal.version(),
    }


def run_line(context: Context, line: RunSummary) -> dict[str, Any]:
    """A run in one line, with its request."""
    ended = line.ended_s - line.created_s if line.ended_s is not None else None
    return {**line.as_dict(), "request": line.notes.get("request"), "wall_s": ended}


def compare_page(context: Context, request: Request) -> Document:
    """Two runs side by side, task by task."""
    names = request.query_params.getlist("run")[:2]
    if len(names) != 2:
        raise UsageError("a comparison needs two runs", fix="Select two in the list of runs")
    first, second = (run_document(context.journal, context.traces, name, None) for name in names)
    return compare(first, second)


def compare(first: Document, second: Document) -> Document:
    """What two runs have in common and where they differ."""
    names = list(dict.fromkeys([*first["tasks"], *second["tasks"]]))
    rows = [_task_row(name, first["tasks"].get(name), second["tasks"].get(name)) for name in names]
    longest = max([task["duration_s"] or 0.0 for run in (first, second) for task in run["tasks"].values()], default=0.0)
    shown = ("run", "state", "request", "answer", "created_s", "times", "usage", "counts")
    return {
        "runs": [{name: run[name] for name in shown} for run in (first, second)],
        "tasks": rows,
        "longest_s": longest,
        "same_answer": first["answer"] == second["answer"] if first["answer"] or second["answer"] else None,
        "same_plan": first["tasks"].keys() == second["tasks"].keys() and first["edges"] == second["edges"],
        "how": one.HOW,
    }


def _task_row(name: str, first: dict[str, Any] | None, second: dict[str, Any] | None) -> dict[str, Any]:
    times = [task["duration_s"] if task else None for task in (first, second)]
    measured = [value for value in times if value is not None]
    return {
        "task": name,
        "goal": (first or second or {})["goal"],
        "states": [task["state"] if task else None for task in (first, second)],
        "durations_s": times,
        "difference_s": measured[1] - measured[0] if len(measured) == 2 else None,
        "same_result": first["result"] == second["result"] if first and second else None,
    }


def watch(context: Context, _: str) -> str:
    """Changes whenever a run starts, advances or ends."""
    return context.journal.version()


PAGE = DashboardPage("Runs", "/runs", "r", 10, routes, {"runs": watch, "run": one.watch})
