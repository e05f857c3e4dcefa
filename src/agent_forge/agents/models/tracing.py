"""A span for every model call, where a recorder is in use."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from agent_forge.agents.models.client import ChatClient, Completion, Request

if TYPE_CHECKING:
    from agent_forge.traces import Recorder, Span

_recorder: ContextVar[Recorder | None] = ContextVar("agent_forge_recorder", default=None)


@contextmanager
def use_recorder(recorder: Recorder | None) -> Iterator[None]:
    """Model calls in the block, and in the tasks and threads it starts, leave spans with this recorder."""
    token = _recorder.set(recorder)
    try:
        yield
    finally:
        _recorder.reset(token)


def current_recorder() -> Recorder | None:
    """The recorder that model calls use here."""
    return _recorder.get()


def _recorder_for(client: ChatClient) -> Recorder | None:
    return _recorder.get() if client.leaves_spans else None


async def traced(client: ChatClient, request: Request) -> Completion:
    """The client's answer, with a span around it if a recorder is in use."""
    recorder = _recorder_for(client)
    if recorder is None:
        return await client.answer(request)
    with recorder.span(f"chat {client.name}", "model", **_asked(client, request)) as span:
        completion = await client.answer(request)
        _describe(span, completion)
        return completion


async def traced_pieces(client: ChatClient, request: Request) -> AsyncIterator[str | Completion]:
    """The client's stream, with a span from the first request to the last piece."""
    recorder = _recorder_for(client)
    source = client.pieces(request)
    if recorder is None:
        async for piece in source:
            yield piece
        return
    span = recorder.start(f"chat {client.name}", "model", **_asked(client, request))
    failure: BaseException | str | None = "the stream was not read to its end"
    try:
        async for piece in source:
            if isinstance(piece, Completion):
                _describe(span, piece)
                failure = None
            yield piece
    except Exception as error:
        failure = error
        raise
    finally:
        await _closed(source)
        recorder.end(span, error=failure)


async def _closed(source: Any) -> None:
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()


def _asked(client: ChatClient, request: Request) -> dict[str, Any]:
    inputs: dict[str, Any] = {"messages": [dict(message) for message in request.messages]}
    if request.tools:
        inputs["tools"] = [dict(spec) for spec in request.tools]
    return {
        "inputs": inputs,
        "model": client.name,
        "provider": client.provider,
        "sampling": request.sampling or None,
    }


def _describe(span: Span, completion: Completion) -> None:
    calls = [{"id": c.id, "name": c.name, "arguments": dict(c.arguments)} for c in completion.tool_calls]
    outputs: dict[str, Any] = {"text": completion.text, "finish_reason": completion.finish_reason}
    span.outputs = {**outputs, "tool_calls": calls} if calls else outputs
    span.model = completion.model
    span.input_tokens, span.output_tokens = completion.usage.input_tokens, completion.usage.output_tokens
    for name in ("prompt_ids", "output_ids", "logprobs"):
        value = getattr(completion, name)
        if value is not None:
            setattr(span, name, list(value))
