"""Health checks: `/healthz` and `/readyz`."""

from __future__ import annotations

import shutil
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_forge._version import __version__
from agent_forge.errors import AgentForgeError
from agent_forge.server.context import Context
from agent_forge.server.responses import json_response

LEAST_FREE = 1 << 20  # bytes of disk below which nothing more is promised


def routes(context: Context) -> list[Route]:
    """`/healthz`: the process responds. `/readyz`: the disk has room, the trace store opens, the models are loaded."""

    async def healthz(request: Request) -> Response:
        return json_response({"status": "ok", "version": __version__})

    async def readyz(request: Request) -> Response:
        checks = {**_disk(context), "traces": await run_in_threadpool(_traces, context), **_models(context)}
        ready = all(state == "ok" for state in checks.values())
        return json_response({"status": "ok" if ready else "not ready", "checks": checks}, 200 if ready else 503)

    return [Route("/healthz", healthz), Route("/readyz", readyz)]


def _disk(context: Context) -> dict[str, str]:
    try:
        if not isinstance(place := context.place, Path):  # a database elsewhere has a disk of its own
            return {}
    except AgentForgeError as error:
        return {"disk": error.what}
    return {"disk": "the disk is full" if shutil.disk_usage(place).free < LEAST_FREE else "ok"}


def _traces(context: Context) -> str:
    try:
        context.traces.traces(limit=1)
    except AgentForgeError as error:
        return error.what
    return "ok"


def _models(context: Context) -> dict[str, str]:
    models = context.parts.get("models")
    return {} if models is None else {f"model {name}": state for name, state in models.states().items()}
