"""The model API: `/v1/models`, `/v1/chat/completions`, `/v1/completions`, compatible with OpenAI's clients."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_forge.errors import ModelError
from agent_forge.refusal import Refusal
from agent_forge.server.context import Context
from agent_forge.server.models.pool import models_of
from agent_forge.server.requests import read_json, unless_left
from agent_forge.server.responses import json_response

if TYPE_CHECKING:
    from agent_forge.server.models.response import CompletionChoice


def routes(context: Context) -> list[Route]:
    """The routes. Models named in the settings start loading now."""
    if context.settings.models:
        models_of(context)

    def list_models(request: Request) -> Response:
        return json_response({"object": "list", "data": models_of(context).documents()})

    def show_model(request: Request) -> Response:
        return json_response(models_of(context).document(request.path_params["model"]))

    async def chat(request: Request) -> Response:
        return await _complete(context, request, "chat")

    async def completion(request: Request) -> Response:
        return await _complete(context, request, "completion")

    return [
        Route("/v1/models", list_models),
        Route("/v1/models/{model}", show_model),
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", completion, methods=["POST"]),
    ]


async def _complete(context: Context, request: Request, kind: str) -> Response:
    from agent_forge.server.models.recording import CompletionRecording
    from agent_forge.server.models.request import chat_request, text_request
    from agent_forge.server.models.response import Envelope, finished_choices, stream
    from agent_forge.server.sse import EventStream

    body = await read_json(request, kind)
    models = await run_in_threadpool(models_of, context)
    model = await unless_left(request, models.get(body["model"]))
    make, loop = chat_request if kind == "chat" else text_request, asyncio.get_running_loop()
    # a new grammar and a long text take a while, during which the event loop must go on
    slow = body.get("response_format") or body.get("tools") or len(str(body.get("prompt", ""))) > 10_000
    completion = await run_in_threadpool(make, model, body, loop) if slow else make(model, body, loop)
    model.engine.submit(completion.jobs)
    recording = CompletionRecording(context, request, completion)
    if body.get("stream"):
        streamed: dict[int, CompletionChoice] = {}
        source = stream(Envelope(completion), streamed)
        return EventStream(source, after=lambda: recording.end(list(streamed.values())))
    choices: list[CompletionChoice] = []
    try:
        choices = await unless_left(request, finished_choices(completion))
    except ModelError as error:
        recording.end(choices, error)
        raise Refusal(500, str(error), code="model_failed") from error
    finally:
        recording.end(choices)
    return json_response(Envelope(completion).complete(choices))
