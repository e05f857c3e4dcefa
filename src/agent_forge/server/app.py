"""The application: the route modules behind the middleware."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from agent_forge.errors import AgentForgeError
from agent_forge.refusal import Refusal
from agent_forge.server.context import Context
from agent_forge.server.logs import make_log
from agent_forge.server.request_log import RequestLog
from agent_forge.server.requests import BodyLimits
from agent_forge.server.responses import error_response, refusal_response, status_of
from agent_forge.server.security import Guard
from agent_forge.server.settings import ServerSettings

# Each has `routes(context)`, a list of Starlette routes. The dashboard comes last: its root is `/`.
MODULES = (
    "agent_forge.server.health",
    "agent_forge.server.metrics",
    "agent_forge.server.models.routes",
    "agent_forge.server.runs.routes",
    "agent_forge.server.intake",
    "agent_forge.server.scores",
    "agent_forge.server.rollouts",
    "agent_forge.server.openapi",
    "agent_forge.server.dashboard",
)


def create_app(settings: ServerSettings | None = None) -> Starlette:
    """The server as an ASGI application. `app.state.context` is its Context.

    >>> app = create_app(ServerSettings(home="."))
    >>> app.state.context.settings.host
    '127.0.0.1'
    """
    context = Context(settings or ServerSettings())
    log = make_log(context.settings.log_level)
    app = Starlette(
        routes=[route for module in MODULES for route in import_module(module).routes(context)],
        middleware=[
            Middleware(RequestLog, context=context, log=log),
            Middleware(Guard, settings=context.settings),
            Middleware(BodyLimits, settings=context.settings),
        ],
        exception_handlers={
            Refusal: _refused,
            HTTPException: _http_error,
            ClientDisconnect: _client_left,
            AgentForgeError: _failed,
            Exception: _broken,
        },
        lifespan=_lifespan,
    )
    app.state.context = context
    return app


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    yield
    await run_in_threadpool(app.state.context.close)


async def _client_left(request: Request, error: Exception) -> Response:
    """Nobody reads it; proxies log it as 499."""
    return Response(status_code=499)


async def _refused(request: Request, error: Any) -> Response:
    return refusal_response(error)


async def _http_error(request: Request, error: Any) -> Response:
    message = f"there is no page {request.url.path!r}" if error.status_code == 404 else str(error.detail)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    return error_response(error.status_code, message, code=code, headers=error.headers)


async def _failed(request: Request, error: Any) -> Response:
    """An error of ours with a message: a store that is gone, a model that cannot be loaded."""
    request.state.cause = str(error)
    status, headers = status_of(error)
    return error_response(status, str(error), code=type(error).__name__, headers=headers)


async def _broken(request: Request, error: Exception) -> Response:
    """A bug: the log has the details, the client learns no more than that."""
    return error_response(500, "internal error; see the log of the server", code="internal_error")
