"""The application: route modules put together behind the guards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from agent_forge.errors import AgentForgeError
from agent_forge.server.answers import Refused, error_answer
from agent_forge.server.bodies import BodyLimits
from agent_forge.server.context import Context
from agent_forge.server.logs import make_log
from agent_forge.server.observing import Observing
from agent_forge.server.security import Guard
from agent_forge.server.settings import ServerSettings

# Each has `routes(context) -> list of Starlette routes`. The pages come last: theirs is `/`.
MODULES = (
    "agent_forge.server.health",
    "agent_forge.server.metrics",
    "agent_forge.server.models.routes",
    "agent_forge.server.runs.routes",
    "agent_forge.server.intake",
    "agent_forge.server.openapi",
)
PAGES = "agent_forge.server.pages"


def create_app(settings: ServerSettings | None = None) -> Starlette:
    """The server as an ASGI application. `app.state.context` is its Context.

    >>> app = create_app(ServerSettings(home="."))
    >>> app.state.context.settings.host
    '127.0.0.1'
    """
    context = Context(settings or ServerSettings())
    log = make_log(context.settings.log_level)
    app = Starlette(
        routes=_routes(context),
        middleware=[
            Middleware(Observing, context=context, log=log),
            Middleware(Guard, settings=context.settings),
            Middleware(BodyLimits, settings=context.settings),
        ],
        exception_handlers={
            Refused: _refused,
            HTTPException: _http_error,
            ClientDisconnect: _left,
            AgentForgeError: _failed,
            Exception: _broken,
        },
        lifespan=_lifespan,
    )
    app.state.context = context
    return app


def _routes(context: Context) -> list[BaseRoute]:
    modules = [*MODULES, *([PAGES] if find_spec(PAGES) is not None else [])]
    return [route for module in modules for route in import_module(module).routes(context)]


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    yield
    await run_in_threadpool(app.state.context.close)


async def _left(request: Request, error: Exception) -> Response:
    """Nobody reads it; 499 is what proxies write into their logs for it."""
    return Response(status_code=499)


async def _refused(request: Request, error: Any) -> Response:
    answer: Response = error.answer
    return answer


async def _http_error(request: Request, error: Any) -> Response:
    message = f"there is no {request.url.path!r} here" if error.status_code == 404 else str(error.detail)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    return error_answer(error.status_code, message, code=code, headers=error.headers)


async def _failed(request: Request, error: Any) -> Response:
    """A fault of ours that has its own words: a store that is gone, a model that cannot be loaded."""
    return error_answer(400 if error.exit_code == 2 else 500, str(error), code=type(error).__name__)


async def _broken(request: Request, error: Exception) -> Response:
    """A fault that nobody foresaw: the log has it, the client learns no more than that."""
    return error_answer(500, "something went wrong in the server; its log says what", code="internal_error")
