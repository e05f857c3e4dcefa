"""One run: its plan as a graph, its tasks on the timeline, and each task in detail."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agent_forge.plans import Plan
from agent_forge.runtime import Journal, StoredRun
from agent_forge.server.context import Context
from agent_forge.server.dashboard import Document, NotFound, page_routes, query_value, render
from agent_forge.server.drawing.graph import Node, draw_graph
from agent_forge.server.drawing.wording import duration
from agent_forge.server.pages.steps import MOST_ROWS, span_rows, task_address, task_rows, totals
from agent_forge.server.responses import utf8
from agent_forge.server.runs.runs import runs_of
from agent_forge.traces import Store, assemble
from agent_forge.traces.span import Span
from agent_forge.traces.trajectory import Trajectory

MOST_CREDITED = 1_500  # spans of a trace up to which a page computes credit

HOW = {
    "wall_s": "From the start of the run to its end, on the clock of the process that ran it.",
    "work_s": "The sum of the durations of all tasks: the time of a serial run.",
    "critical_path_s": "The longest chain of dependent tasks, by their actual durations: no schedule can be faster.",
    "tasks": "Tasks whose result is in the journal.",
    "reward": "The reward of the outermost spans of the trace, else the mean of its reward spans.",
    "speed_up": "Serial time divided by actual time.",
    "tokens": "As reported by the models, summed over the spans of the run; a dash if none reported any.",
    "cost": "As recorded on the model calls; a dash if no price was known.",
    "credit": "The Shapley value of each span in the game on the dependency graph of the trace: the outcome, divided "
    "among the spans that led to it.",
}


def routes(context: Context) -> list[BaseRoute]:
    """A run, its tasks, and the run as one file."""

    def export(request: Request) -> Response:
        name = request.path_params["run"]
        page = single_page(run_document(context.journal, context.traces, name, None))
        safe = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
        headers = {"Content-Disposition": f'attachment; filename="run-{safe}.html"'}
        return Response(utf8(page), media_type="text/html", headers=headers)

    return [
        Route("/runs/{run}/page", export),
        *page_routes(context, "/runs/{run}/tasks/{task:path}", "task.html", task_page),
        *page_routes(context, "/runs/{run}", "run.html", run_page, view),
    ]


def run_page(context: Context, request: Request) -> Document:
    """The document of a run's page."""
    rows = None if query_value(request, "rows") == "all" else MOST_ROWS
    name = request.path_params["run"]
    document = run_document(context.journal, context.traces, name, rows)
    return {**document, "approvals": runs_of(context).waiting(name), "version": watch(context, name)}


def run_document(journal: Journal, store: Store, run: str, most_rows: int | None = MOST_ROWS) -> Document:
    """Everything about one run. Raises StoreError if it does not exist."""
    record = journal.load(run)
    traced = store.trace(record.summary.trace_id) if record.summary.trace_id else []
    trajectory = assemble(traced) if traced else None
    outputs = trajectory.roots[0].outputs if trajectory is not None and trajectory.roots else None
    credit, credit_from = _credit(trajectory)
    spans = {} if trajectory is None else _task_spans(trajectory, run)
    tasks = _tasks(record, spans, trajectory, credit)
    plan = record.plan
    path = _critical_path(plan, tasks)
    rows = task_rows(run, tasks, path) if trajectory is None else _rows(run, trajectory, credit, tasks, path)
    return {
        "run": run,
        "state": record.summary.state,
        "error": record.summary.error,
        "request": record.summary.notes.get("request"),
        "answer": outputs.get("answer") if isinstance(outputs, Mapping) else None,
        "created_s": record.summary.created_s,
        "ended_s": record.summary.ended_s,
        "trace_id": record.summary.trace_id,
        "times": _times(record, tasks, path, trajectory),
        "usage": _usage(trajectory),
        "counts": dict(Counter(task["state"] for task in tasks.values())),
        "tasks": tasks,
        "critical_path": path,
        "edges": [] if plan is None else [[dep, name] for name, deps in plan.dependencies.items() for dep in deps],
        "rows": rows[:most_rows],
        "rows_in_all": len(rows),
        "credit_from": credit_from,
        "version": journal.version(run),
        "approvals": {},
        "how": HOW,
    }


def alone(document: Document) -> Document:
    """The document for a self-contained page: links lead to tasks and spans further down on the same page."""
    owner = {span: name for name, task in document["tasks"].items() for span in task["spans"]}
    rows = [{**row, "href": f"#{row['task'] or owner.get(row['id'], 'main')}"} for row in document["rows"]]
    return {**document, "rows": rows, "details": True}


def single_page(document: Document) -> str:
    """The run as one HTML file."""
    shown = alone(document)
    return render(None, None, "run.html", {**shown, **view(shown), "plain": document, "written_s": time.time()})


def view(document: Document) -> dict[str, Any]:
    """The plan as a picture."""
    nodes = graph_nodes(document, inside="details" in document)
    edges = [(source, target) for source, target in document["edges"]]
    name = f"plan of {len(nodes)} tasks, the critical path in bold"
    ends = [row["start_s"] + (row["duration_s"] or 0.0) for row in document["rows"] if row["start_s"] is not None]
    return {
        "graph": draw_graph(nodes, edges, set(pairwise(document["critical_path"])), name),
        "whole_s": max(ends, default=0.0),
    }


def graph_nodes(document: Mapping[str, Any], inside: bool = False) -> list[Node]:
    """The tasks as boxes."""
    path = set(document["critical_path"])
    return [
        Node(
            name,
            name,
            _note(task),
            task["state"],
            f"#{name}" if inside else task_address(document["run"], name),
            name in path,
            title=f"{name}: {task['goal'] or task['action'] or ''} ({task['state']})",
        )
        for name, task in document["tasks"].items()
    ]


def _note(task: Mapping[str, Any]) -> str:
    """The second line of a box: the tool, and the duration."""
    took = duration(task["duration_s"]) if task["duration_s"] is not None else task["state"].replace("_", " ")
    return f"{task['action']} · {took}" if task["action"] else took


def task_page(context: Context, request: Request) -> Document:
    """The document of one task: its inputs, its result, and its spans."""
    run, name = request.path_params["run"], request.path_params["task"]
    document = run_document(context.journal, context.traces, run, None)
    if name not in document["tasks"]:
        raise NotFound(f"run {run!r} has no task {name!r}")
    task = document["tasks"][name]
    waits = [source for source, target in document["edges"] if target == name]
    serves = [target for source, target in document["edges"] if source == name]
    inner = [row for row in document["rows"] if row["id"] in task["spans"]]
    return {"run": run, "task": name, **task, "waits_for": waits, "needed_by": serves, "rows": inner, "how": HOW}


def watch(context: Context, run: str) -> str:
    """Changes whenever the journal has a new entry about the run, or a task asks for an approval."""
    active = runs_of(context).find(run)
    asked = [] if active is None else active.waiting_for_approval
    return "+".join([context.journal.version(run), *asked])


def _credit(trajectory: Trajectory | None) -> tuple[dict[str, float], dict[str, Any] | None]:
    if trajectory is None or len(trajectory.spans) > MOST_CREDITED:
        return {}, None
    if trajectory.reward is None:  # nobody judged it: there is no credit to show
        return {}, None
    shares = trajectory.credit()
    source = {"outcome": trajectory.reward, "strategy": "shapley", "error_bound": shares.error_bound}
    return dict(shares), source


def _task_spans(trajectory: Trajectory, run: str) -> dict[str, Span]:
    """The span of each task of the run."""
    own = {span.span_id for span in trajectory.spans if span.kind == "run" and span.attributes.get("run") == run}
    return {
        span.attributes["task"]: span
        for span in trajectory.spans
        if span.parent_id in own and isinstance(span.attributes.get("task"), str)
    }


def _tasks(
    record: StoredRun, spans: Mapping[str, Span], trajectory: Trajectory | None, credit: Mapping[str, float]
) -> dict[str, dict[str, Any]]:
    now_s = time.time() - record.summary.created_s
    tasks = {}
    for name, logged in record.tasks.items():
        task, span = record.planned(name), spans.get(name)
        inner = _inside(trajectory, span)
        running = logged.state == "running" and logged.started_s is not None
        tasks[name] = {
            "state": logged.state,
            "goal": (span.attributes.get("goal") if span else None) or (task.goal if task else ""),
            "action": task.action if task else None,
            "args": dict(task.args) if task else {},
            "inputs": span.inputs if span else None,
            "result": logged.result,
            "error": logged.error,
            "attempts": logged.attempts,
            "same_as": logged.same_as,
            "side_effects": logged.side_effects,
            "started_s": logged.started_s,
            "ended_s": logged.ended_s,
            "duration_s": now_s - (logged.started_s or 0.0) if running else logged.duration_s,
            "tokens": logged.tokens,
            **(totals(trajectory, span.span_id) if trajectory and span else _NO_TOTALS),
            "credit": sum(credit[part] for part in inner if part in credit) if credit and inner else None,
            "span_id": span.span_id if span else None,
            "spans": inner,
            "items": [{"state": item.state, "result": item.result, "error": item.error}
                      for _, item in sorted(logged.items.items())],
        }  # fmt: skip
        if tasks[name]["cost"] is None:
            tasks[name]["cost"] = logged.cost
    return tasks


_NO_TOTALS = {"input_tokens": None, "output_tokens": None, "cost": None}


def _inside(trajectory: Trajectory | None, span: Span | None) -> list[str]:
    """The ids of a span and of all spans inside it."""
    if trajectory is None or span is None:
        return []
    ids, stack = [], [span.span_id]
    while stack:
        ids.append(stack.pop())
        stack += trajectory.graph.children.get(ids[-1], [])
    return ids


def _critical_path(plan: Plan | None, tasks: Mapping[str, Mapping[str, Any]]) -> list[str]:
    if plan is None:
        return []
    durations = {name: float(tasks[name]["duration_s"] or 0.0) for name in plan.leaves}
    path = plan.critical_path(durations if any(durations.values()) else None)
    return [name for name in path if tasks[name]["state"] != "skipped"]


def _rows(
    run: str,
    trajectory: Trajectory,
    credit: Mapping[str, float],
    tasks: Mapping[str, Mapping[str, Any]],
    path: Sequence[str],
) -> list[dict[str, Any]]:
    """The spans of the trace, where tasks link to their own page; then the tasks without a span."""
    rows = span_rows(trajectory, credit)
    own = {task["span_id"]: name for name, task in tasks.items() if task["span_id"]}
    for row in rows:
        row["task"] = own.get(row["id"])
        if row["task"]:
            row["href"] = task_address(run, row["task"])
            row["state"] = tasks[row["task"]]["state"]
            row["critical"] = row["task"] in path
        elif own:
            row["critical"] = False
    spanless = {name: task for name, task in tasks.items() if not task["span_id"]}
    return rows + task_rows(run, spanless, path)


def _times(
    record: StoredRun, tasks: Mapping[str, Mapping[str, Any]], path: Sequence[str], trajectory: Trajectory | None
) -> dict[str, Any]:
    wall = None
    if trajectory is not None:
        own = [s for s in trajectory.spans if s.kind == "run" and s.attributes.get("run") == record.summary.run]
        wall = own[-1].duration_s if own else None
    if wall is None:
        wall = (record.summary.ended_s or time.time()) - record.summary.created_s
    work = sum(task["duration_s"] or 0.0 for task in tasks.values())
    return {
        "wall_s": wall,
        "work_s": work,
        "critical_path_s": sum(tasks[name]["duration_s"] or 0.0 for name in path),
        "speed_up": work / wall if wall else None,
    }


def _usage(trajectory: Trajectory | None) -> dict[str, Any]:
    if trajectory is None:
        return {**_NO_TOTALS, "reward": None, "spans": 0, "model_calls": None, "tool_calls": None}
    kinds = [span.kind for span in trajectory.spans]
    return {
        "input_tokens": trajectory.input_tokens,
        "output_tokens": trajectory.output_tokens,
        "cost": trajectory.cost,
        "reward": trajectory.reward,
        "spans": len(trajectory.spans),
        "model_calls": kinds.count("model"),
        "tool_calls": kinds.count("tool"),
    }
