"""`/v1/traces/{trace}/reward`: a score of a trace or of one of its spans, by a judge."""

from __future__ import annotations

from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_forge.refusal import Refusal
from agent_forge.server.context import Context
from agent_forge.server.requests import read_json
from agent_forge.server.responses import json_response
from agent_forge.traces.scores import USER, add_score, score_document


def routes(context: Context) -> list[Route]:
    """The path under which a trace is scored."""

    async def reward(request: Request) -> Response:
        body = await read_json(request, "reward")
        return json_response(await run_in_threadpool(_score, context, request.path_params["trace"], body))

    return [Route("/v1/traces/{trace}/reward", reward, methods=["POST"])]


def _score(context: Context, trace: str, body: dict[str, Any]) -> dict[str, Any]:
    store = context.traces
    ids = store.trace_ids(trace.lower(), limit=2)
    if len(ids) != 1:
        what = "several traces begin with" if ids else "there is no trace"
        raise Refusal(404, f"{what} {trace[:64]!r}", code="trace_not_found", fix="/traces.json lists them")
    span = add_score(
        store,
        store.trace(ids[0]),
        body["value"],
        span_id=body.get("span"),
        by=body.get("by") or USER,
        components=body.get("components"),
        comment=body.get("comment"),
    )
    context.hub.publish("traces", {"kind": "stored", "spans": 1, "traces": ids})
    return score_document(store, span)
