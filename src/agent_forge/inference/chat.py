"""The base class of this package's clients: it builds the request and records a span for every call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agent_forge.inference.client import (
    Completion,
    CompletionStream,
    Message,
    Request,
    SamplingOptions,
    Tools,
    digest_of,
)
from agent_forge.inference.policy import NAME
from agent_forge.inference.prices import cost_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

# A `traces.Recorder`, which this room does not import: it starts and ends spans, and a span takes any attribute.
Recorder = Any
Span = Any

_recorder: ContextVar[Recorder | None] = ContextVar("agent_forge_recorder", default=None)
_recorded: ContextVar[frozenset[str]] = ContextVar("agent_forge_tools_recorded", default=frozenset())


@contextmanager
def use_recorder(recorder: Recorder | None) -> Iterator[None]:
    """Records spans of all model calls in the block, and in the tasks and threads it starts, with this recorder."""
    token = _recorder.set(recorder)
    try:
        yield
    finally:
        _recorder.reset(token)


def current_recorder() -> Recorder | None:
    """The recorder in use for model calls."""
    return _recorder.get()


@contextmanager
def tools_recorded(digest: str) -> Iterator[None]:
    """Model calls in the block name the tools they offer by this digest: a span above theirs holds the schemas."""
    token = _recorded.set(_recorded.get() | {digest})
    try:
        yield
    finally:
        _recorded.reset(token)


class ChatClient(ABC):
    """A client has a `name` and a `provider`, and answers a request whole or piece by piece."""

    name: str
    provider: str
    public_prices: bool = False  # whether its models may be those that public prices are for
    leaves_spans: bool = True  # False for a client that wraps another, which records the span itself

    @property
    def policy(self) -> str | None:
        """The policy that acts: a model named AGENT@VERSION is one, in this process and behind a URL alike."""
        name = getattr(self, "name", "")
        return name if NAME.fullmatch(name) else None

    @abstractmethod
    async def answer(self, request: Request) -> Completion:
        """The whole answer. Raises ModelError."""

    @abstractmethod
    def pieces(self, request: Request) -> AsyncIterator[str | Completion]:
        """The text as it arrives, and last the Completion. Raises ModelError."""

    async def complete(
        self, messages: Sequence[Message], *, tools: Tools | None = None, **sampling: Unpack[SamplingOptions]
    ) -> Completion:
        """The whole answer. `sampling`: temperature, max_tokens, stop, seed. Raises ModelError."""
        request = Request.of(messages, tools, **sampling)
        recorder = _recorder.get() if self.leaves_spans else None
        if recorder is None:
            return self._priced(await self.answer(request))
        with recorder.span(f"chat {self.name}", "model", **_inputs(self, request)) as span:
            completion = self._priced(await self.answer(request))
            _describe(span, completion)
            return completion

    def _priced(self, completion: Completion) -> Completion:
        """The answer with its cost, if that is known: of the model that answered, else of the one that was asked."""
        usage = completion.usage
        if usage.cost is not None:
            return completion
        cost = cost_of(usage, completion.model, self.name, public=self.public_prices)
        return completion if cost is None else replace(completion, usage=replace(usage, cost=cost))

    def stream(
        self, messages: Sequence[Message], *, tools: Tools | None = None, **sampling: Unpack[SamplingOptions]
    ) -> CompletionStream:
        """The answer as it is written; iterating raises ModelError."""
        return CompletionStream(self._traced_pieces(Request.of(messages, tools, **sampling)))

    async def _traced_pieces(self, request: Request) -> AsyncIterator[str | Completion]:
        """The pieces, with a span that ends with the last of them."""
        recorder = _recorder.get() if self.leaves_spans else None
        span = recorder.start(f"chat {self.name}", "model", **_inputs(self, request)) if recorder else None
        failure: BaseException | str | None = "the stream was not read to its end"
        source = self.pieces(request)
        try:
            async for piece in source:
                if not isinstance(piece, Completion):
                    yield piece
                    continue
                failure, completion = None, self._priced(piece)
                if span is not None:
                    _describe(span, completion)
                yield completion
        except Exception as error:
            failure = error
            raise
        finally:
            close = getattr(source, "aclose", None)
            if close is not None:
                await close()
            if recorder is not None and span is not None:
                recorder.end(span, error=failure)


def _inputs(client: ChatClient, request: Request) -> dict[str, Any]:
    inputs: dict[str, Any] = {"messages": [dict(message) for message in request.messages]}
    attributes = {}
    if request.tools:
        digest = digest_of(request.tools) if _recorded.get() else None
        if digest in _recorded.get():
            attributes["tools_digest"] = digest
        else:
            inputs["tools"] = [dict(spec) for spec in request.tools]
    return {
        "inputs": inputs,
        "attributes": attributes,
        "model": client.name,
        "policy": client.policy,
        "provider": client.provider,
        "sampling": request.sampling or None,
    }


def _describe(span: Span, completion: Completion) -> None:
    calls = [{"id": c.id, "name": c.name, "arguments": dict(c.arguments)} for c in completion.tool_calls]
    outputs: dict[str, Any] = {"text": completion.text, "finish_reason": completion.finish_reason}
    span.outputs = {**outputs, "tool_calls": calls} if calls else outputs
    span.model = completion.model
    span.input_tokens, span.output_tokens = completion.usage.input_tokens, completion.usage.output_tokens
    span.cost = completion.usage.cost
    for name in ("prompt_ids", "output_ids", "logprobs"):
        value = getattr(completion, name)
        if value is not None:
            setattr(span, name, list(value))
