"""The routes of the agent API."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_forge.refusal import Refusal
from agent_forge.server.context import Context
from agent_forge.server.events import ServerEvents
from agent_forge.server.requests import read_json, unless_left
from agent_forge.server.responses import json_response
from agent_forge.server.runs.run import ActiveRun
from agent_forge.server.runs.runs import runs_of
from agent_forge.server.sse import HEARTBEAT_S, encode, event_stream


def routes(context: Context) -> list[Route]:
    """`/v1/runs` and what is under it."""

    async def start(request: Request) -> Response:
        body = await read_json(request, "run")
        model = await _model(context, request, body.get("model"))
        run = await run_in_threadpool(runs_of(context).start, body, model)
        url = f"/v1/runs/{run.name}"
        started = {"run": run.name, "state": run.state, "url": url, "events": f"{url}/events"}
        return json_response(started, 202, {"Location": url})

    def list_runs(request: Request) -> Response:
        return json_response({"runs": runs_of(context).documents()})

    def show_run(request: Request) -> Response:
        return json_response(runs_of(context).document(request.path_params["run"]))

    async def approve(request: Request) -> Response:
        name = request.path_params["run"]
        body = await read_json(request, "approval")
        changes = body.get("args") if body["approved"] else None
        answer = body["approved"] if changes is None else changes
        await run_in_threadpool(runs_of(context).decide, name, body["task"], answer)
        return json_response({"run": name, **{key: body[key] for key in ("task", "approved", "args") if key in body}})

    async def cancel(request: Request) -> Response:
        name = request.path_params["run"]
        state = await run_in_threadpool(runs_of(context).cancel, name)
        return json_response({"run": name, "state": state}, 202)

    async def events(request: Request) -> Response:
        name = request.path_params["run"]
        run = runs_of(context).find(name)
        if run is None and context.events is not None and await run_in_threadpool(runs_of(context).has_begun, name):
            return event_stream(_events_elsewhere(context, context.events, name, _seen(request)))
        return event_stream(_events(context, run or _active_run(context, request), _seen(request)))

    return [
        Route("/v1/runs", start, methods=["POST"]),
        Route("/v1/runs", list_runs, methods=["GET"]),
        Route("/v1/runs/{run}", show_run),
        Route("/v1/runs/{run}/events", events),
        Route("/v1/runs/{run}/approve", approve, methods=["POST"]),
        Route("/v1/runs/{run}/cancel", cancel, methods=["POST"]),
    ]


async def _model(context: Context, request: Request, name: str | None) -> Any:
    """A model of this server as a client; a request can never name a URL or a folder."""
    if name is None:
        return None
    from agent_forge.server.models.pool import models_of

    models = await run_in_threadpool(models_of, context)
    ready = await unless_left(request, models.get(name))
    from agent_forge.server.models.client import EngineClient

    return EngineClient(ready)


def _active_run(context: Context, request: Request) -> ActiveRun:
    name = request.path_params["run"]
    run = runs_of(context).find(name)
    if run is None:
        raise Refusal(
            404, f"this server has no run {name[:128]!r}", code="run_not_found", fix="GET /v1/runs lists them"
        )
    return run


def _seen(request: Request) -> int:
    """How many events the client has, by the id of the last: browsers send it when they reconnect."""
    last = request.headers.get("last-event-id", "")
    return int(last) + 1 if last.isdecimal() and len(last) < 10 else 0


async def _events_elsewhere(
    context: Context, events: ServerEvents, name: str, seen: int
) -> AsyncGenerator[bytes, None]:
    """As `_events`, of a run that another server has or had. One whose server died ends as the journal says, after a
    while without news: the last events come a moment after the journal knows of the end."""
    topic, number, place, finished, quiet = f"run:{name}", 0, "", False, False
    with context.hub.subscribe(topic) as news:
        while True:
            ended = await run_in_threadpool(runs_of(context).has_ended, name)
            for at, event in await run_in_threadpool(events.past, topic, place):
                place = at
                if number >= seen:
                    yield encode(event, event["kind"], number)
                number += 1
                finished = event["kind"] == "finished"
            if finished or (ended and (quiet or not number)):
                yield encode(await run_in_threadpool(runs_of(context).document, name), "result")
                return
            quiet = await news.next(HEARTBEAT_S) is None
            if quiet:
                yield b": still here\n\n"


async def _events(context: Context, run: ActiveRun, seen: int) -> AsyncGenerator[bytes, None]:
    """All events of a run, past and to come; after the last one, its result."""
    with context.hub.subscribe(f"run:{run.name}") as news:
        at = seen
        while True:
            for event in run.events[at:]:
                yield encode(event, event["kind"], at)
                at += 1
                if event["kind"] == "finished":
                    document = await run_in_threadpool(runs_of(context).document, run.name)
                    yield encode(document, "result")
                    return
            if at >= len(run.events) and run.events and run.events[-1]["kind"] == "finished":  # all was sent
                return
            if await news.next(HEARTBEAT_S) is None:
                yield b": still here\n\n"
