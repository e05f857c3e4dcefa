"""The model API: `/v1/models`, `/v1/chat/completions`, `/v1/completions`, as OpenAI's clients know them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_forge.errors import ModelError
from agent_forge.server.answers import Refused, json_answer
from agent_forge.server.context import Context
from agent_forge.server.models.pool import models_of
from agent_forge.server.reading import read_json, unless_left

if TYPE_CHECKING:
    from agent_forge.server.models.answered import Choice
    from agent_forge.server.models.asked import Asked


Maker = Callable[[Any, Mapping[str, Any], asyncio.AbstractEventLoop], "Asked"]


def routes(context: Context) -> list[Route]:
    """The routes; models named in the settings begin to load now."""
    if context.settings.models:
        models_of(context)

    def listed(request: Request) -> Response:
        return json_answer({"object": "list", "data": models_of(context).listed()})

    def one(request: Request) -> Response:
        return json_answer(models_of(context).document(request.path_params["model"]))

    async def chat(request: Request) -> Response:
        return await _answer(context, request, "chat")

    async def completion(request: Request) -> Response:
        return await _answer(context, request, "completion")

    return [
        Route("/v1/models", listed),
        Route("/v1/models/{model}", one),
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", completion, methods=["POST"]),
    ]


async def _answer(context: Context, request: Request, kind: str) -> Response:
    body = await read_json(request, kind)
    models = await run_in_threadpool(models_of, context)
    model = await unless_left(request, models.get(body["model"]))
    asked = await _jobs(_maker(kind), model, body)
    model.engine.submit(asked.jobs)
    return await (_streamed if body.get("stream") else _whole)(context, request, asked)


def _maker(kind: str) -> Maker:
    from agent_forge.server.models.asked import asked_chat, asked_completion

    return asked_chat if kind == "chat" else asked_completion


async def _jobs(make: Maker, model: Any, body: Mapping[str, Any]) -> Asked:
    """A grammar takes a while the first time, and so does a long text: then it is made in a thread."""
    if body.get("response_format") or body.get("tools") or len(str(body.get("prompt", ""))) > 10_000:
        return await run_in_threadpool(make, model, body, asyncio.get_running_loop())
    return make(model, body, asyncio.get_running_loop())


async def _whole(context: Context, request: Request, asked: Asked) -> Response:
    from agent_forge.server.models.answered import Frame, whole
    from agent_forge.server.models.recording import Recording

    recording = Recording(context, request, asked)
    choices: list[Choice] = []
    try:
        choices = await unless_left(request, whole(asked))
    except ModelError as error:
        recording.end(choices, error)
        raise Refused(500, str(error), code="model_failed") from error
    finally:
        recording.end(choices)
    return json_answer(Frame(asked).answer(choices))


async def _streamed(context: Context, request: Request, asked: Asked) -> Response:
    from agent_forge.server.models.answered import Frame, streamed
    from agent_forge.server.models.recording import Recording
    from agent_forge.server.sse import EventStream

    recording = Recording(context, request, asked)
    choices: dict[int, Choice] = {}
    source: AsyncGenerator[bytes, None] = streamed(Frame(asked), choices)
    return EventStream(source, after=lambda: recording.end(list(choices.values())))
