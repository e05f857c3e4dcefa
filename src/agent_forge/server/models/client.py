"""A model of this server as a client for agents: without HTTP, in the same batch as all other requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from agent_forge.errors import ModelError
from agent_forge.inference import ChatClient, Completion, Request, TokenUsage, ToolCall
from agent_forge.refusal import Refusal
from agent_forge.server.models.pool import ReadyModel
from agent_forge.server.models.request import CompletionRequest, chat_request
from agent_forge.server.models.response import CompletionChoice, pieces_of


class EngineClient(ChatClient):
    """Without a temperature it takes the likeliest token, as other local models do."""

    provider = "agent-forge"

    def __init__(self, model: ReadyModel) -> None:
        self.name = model.name
        self._model = model

    async def answer(self, request: Request) -> Completion:
        """The complete answer. Raises ModelError."""
        async for piece in self.pieces(request):
            if isinstance(piece, Completion):
                return piece
        raise AssertionError("unreachable: the pieces end with a completion or an error")

    async def pieces(self, request: Request) -> AsyncIterator[str | Completion]:
        """The text as it is written, then the Completion. Leaving the stream removes the request from the batch."""
        completion = self._submit(request)
        last: CompletionChoice | None = None
        try:
            async for choice, shown, _ in pieces_of(completion):
                last = choice
                if shown:
                    yield shown
        finally:
            self._model.engine.cancel(job for job in completion.jobs if job.finish is None)
        if last is None:
            raise AssertionError("unreachable: a request has a job")
        yield self._completion(completion, last)

    def _submit(self, request: Request) -> CompletionRequest:
        body: dict[str, Any] = {"temperature": 0.0, **request.sampling, "messages": request.messages}
        if request.tools:
            body["tools"] = request.tools
        try:
            completion = chat_request(self._model, body, asyncio.get_running_loop())
            self._model.engine.submit(completion.jobs)
        except Refusal as refusal:
            raise ModelError(str(refusal)) from refusal
        return completion

    def _completion(self, completion: CompletionRequest, choice: CompletionChoice) -> Completion:
        calls = tuple(ToolCall(call.id, call.name, json.loads(call.arguments)) for call in choice.calls)
        usage = TokenUsage(completion.prompt_tokens, completion.written)
        return Completion(choice.text, self.name, choice.finish, calls, usage)
