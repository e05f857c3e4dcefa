"""A model of this server as a client for agents: no HTTP in between, and the same batch as everyone else's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from agent_forge.agents.models import ChatClient, Completion, Request, TokenUsage, ToolCall
from agent_forge.errors import ModelError
from agent_forge.server.answers import Refused
from agent_forge.server.models.answered import Choice, written
from agent_forge.server.models.asked import Asked, asked_chat
from agent_forge.server.models.pool import Ready


class EngineClient(ChatClient):
    """Without a temperature the likeliest token is taken, as `LocalModel` does."""

    provider = "agent-forge"

    def __init__(self, model: Ready) -> None:
        self.name = model.name
        self._model = model

    async def answer(self, request: Request) -> Completion:
        """The whole answer. Raises ModelError."""
        async for piece in self.pieces(request):
            if isinstance(piece, Completion):
                return piece
        raise AssertionError("unreachable: the pieces end with a completion or an error")

    async def pieces(self, request: Request) -> AsyncIterator[str | Completion]:
        """The text as it is written, then the Completion. Leaving the stream takes the request out of the batch."""
        asked = self._asked(request)
        last: Choice | None = None
        try:
            async for choice, shown, _ in written(asked):
                last = choice
                if shown:
                    yield shown
        finally:
            self._model.engine.cancel(job for job in asked.jobs if job.finish is None)
        if last is None:
            raise AssertionError("unreachable: a request has a job")
        yield self._completion(asked, last)

    def _asked(self, request: Request) -> Asked:
        body: dict[str, Any] = {"temperature": 0.0, **request.sampling, "messages": request.messages}
        if request.tools:
            body["tools"] = request.tools
        try:
            asked = asked_chat(self._model, body, asyncio.get_running_loop())
            self._model.engine.submit(asked.jobs)
        except Refused as refused:
            raise ModelError(str(refused)) from refused
        return asked

    def _completion(self, asked: Asked, choice: Choice) -> Completion:
        calls = tuple(ToolCall(call.id, call.name, json.loads(call.arguments)) for call in choice.calls)
        usage = TokenUsage(asked.prompt_tokens, asked.written)
        return Completion(choice.text, self.name, choice.finish, calls, usage)
