"""What every model client answers to, and what it answers with."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from agent_forge.agents.tools import Tool, Toolbox
from agent_forge.errors import ModelError

Message = Mapping[str, Any]
"""A chat message as the OpenAI API has it: role, content, and for tools tool_calls or tool_call_id."""
Tools = Toolbox | Sequence[Tool | Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens read and written; None where the model did not say."""

    input_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asks for. Its arguments are JSON, not yet checked against the tool's schema."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's answer. Token ids and log probabilities are there when a checkpoint was asked to keep them."""

    text: str
    model: str
    finish_reason: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    usage: TokenUsage = TokenUsage()
    prompt_ids: tuple[int, ...] | None = None
    output_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What a model is asked: the messages, the tools it may call (as the OpenAI API has them), and how to sample."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    temperature: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling settings that were given."""
        named = {"temperature": self.temperature, "max_tokens": self.max_tokens, "seed": self.seed}
        given = {name: value for name, value in named.items() if value is not None}
        return {**given, "stop": list(self.stop)} if self.stop else given

    @property
    def body(self) -> dict[str, Any]:
        """The request as JSON, without what was not given."""
        tools = {"tools": [dict(spec) for spec in self.tools]} if self.tools else {}
        return {"messages": [dict(message) for message in self.messages], **tools, **self.sampling}

    @property
    def digest(self) -> str:
        """The same for the same request, whatever the order of keys."""
        canonical = json.dumps(self.body, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


class CompletionStream:
    """Text as it is written, then the whole: `async for piece in stream: ...`, then `stream.completion`."""

    def __init__(self, source: AsyncIterator[str | Completion]) -> None:
        self._source = source
        self._completion: Completion | None = None

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        while True:
            item = await self._source.__anext__()
            if isinstance(item, str):
                return item
            self._completion = item

    @property
    def completion(self) -> Completion:
        """The whole answer, with tool calls and usage. Raises ModelError while the stream has not ended."""
        if self._completion is None:
            raise ModelError("the stream has not ended", fix="read it to the end first: `async for piece in stream`")
        return self._completion

    async def aclose(self) -> None:
        """Stops reading; the connection is closed, a checkpoint stops writing."""
        close = getattr(self._source, "aclose", None)
        if close is not None:
            await close()


@runtime_checkable
class ModelClient(Protocol):
    """A model that answers chat messages: by URL, in this process, or from a recording."""

    @property
    def name(self) -> str:
        """The model's name, for spans and results."""

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] | None = None,
        seed: int | None = None,
    ) -> Completion:
        """The answer. Raises ModelError."""

    def stream(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] | None = None,
        seed: int | None = None,
    ) -> CompletionStream:
        """The answer as it is written. Iterating raises ModelError."""


class ChatClient(ABC):
    """What the clients of this package share: the call as a Request, and a span around it.

    A client has a `name` and a `provider` and says how it answers a request, whole and piece by piece.
    """

    name: str
    provider: str
    leaves_spans: bool = True  # False for a client that asks another one, which leaves them

    @abstractmethod
    async def answer(self, request: Request) -> Completion:
        """The whole answer. Raises ModelError."""

    @abstractmethod
    def pieces(self, request: Request) -> AsyncIterator[str | Completion]:
        """The text as it comes, and last the Completion. Raises ModelError."""

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] | None = None,
        seed: int | None = None,
    ) -> Completion:
        """The answer. Raises ModelError."""
        from agent_forge.agents.models.tracing import traced

        request = _request(messages, tools, temperature, max_tokens, stop, seed)
        return await traced(self, request)

    def stream(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] | None = None,
        seed: int | None = None,
    ) -> CompletionStream:
        """The answer as it is written. Iterating raises ModelError."""
        from agent_forge.agents.models.tracing import traced_pieces

        request = _request(messages, tools, temperature, max_tokens, stop, seed)
        return CompletionStream(traced_pieces(self, request))


def _request(
    messages: Sequence[Message],
    tools: Tools | None,
    temperature: float | None,
    max_tokens: int | None,
    stop: Sequence[str] | None,
    seed: int | None,
) -> Request:
    given: object = messages
    if isinstance(given, str):
        raise ModelError("messages is a text", fix='give a list: [{"role": "user", "content": "..."}]')
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    return Request(tuple(messages), tuple(specs_of(tools)), temperature, max_tokens, stops, seed)


def specs_of(tools: Tools | None) -> list[dict[str, Any]]:
    """Tools in the format of the OpenAI API: from a toolbox, from tools, or as they are."""
    if tools is None:
        return []
    return [each.spec if isinstance(each, Tool) else dict(each) for each in tools]
