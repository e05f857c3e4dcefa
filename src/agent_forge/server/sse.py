"""Server-sent events: the wire format, and a subscription as an answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable

from starlette.responses import StreamingResponse

from agent_forge.server.hub import Event, Subscription

HEARTBEAT_S = 15.0
HEADERS = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}


def encoded(event: Event, name: str | None = None, number: int | None = None) -> bytes:
    """One event as it goes over the wire.

    >>> encoded({"done": 3}, "progress", 7)
    b'id: 7\\nevent: progress\\ndata: {"done":3}\\n\\n'
    """
    head = "" if number is None else f"id: {number}\n"
    if name is not None:
        head += f"event: {name}\n"
    return f"{head}data: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def event_stream(source: AsyncIterator[bytes]) -> StreamingResponse:
    """An answer that sends encoded events as they come."""
    return StreamingResponse(source, media_type="text/event-stream", headers=HEADERS)


def follow(subscription: Subscription, first: Iterable[Event] = ()) -> StreamingResponse:
    """A subscription as an answer that never ends: `first`, then what is published, with a comment as a heartbeat."""

    async def events() -> AsyncIterator[bytes]:
        with subscription:
            yield b": welcome\n\n"
            for event in first:
                yield encoded(event, event.get("kind"))
            while True:
                news = await subscription.next(HEARTBEAT_S)
                yield b": still here\n\n" if news is None else encoded(news, news.get("kind"))

    return event_stream(events())
