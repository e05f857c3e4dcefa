"""Server-sent events: the wire format, and a subscription as a response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agent_forge.server.hub import Event, Subscription
from agent_forge.server.requests import left
from agent_forge.server.responses import utf8

HEARTBEAT_S = 15.0
HEADERS = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}


def encode(event: Event, name: str | None = None, number: int | None = None) -> bytes:
    """One event in the wire format.

    >>> encode({"done": 3}, "progress", 7)
    b'id: 7\\nevent: progress\\ndata: {"done":3}\\n\\n'
    """
    head = "" if number is None else f"id: {number}\n"
    if name is not None:
        head += f"event: {name}\n"
    return utf8(f"{head}data: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n")


_ENDLESS: set[asyncio.Future[None]] = set()


def end_streams() -> None:
    """Ends the streams that would never end by themselves, in the event loop of a server that shuts down."""
    for sending in list(_ENDLESS):
        sending.cancel()


class EventStream(Response):
    """A response that sends what a generator yields. When the client leaves, the generator is closed at once.

    `endless` streams last as long as a page is open; they do not keep the server from shutting down.
    """

    def __init__(
        self, source: AsyncIterator[bytes], after: Callable[[], object] | None = None, endless: bool = False
    ) -> None:
        self._source = source
        self._endless = endless
        self._after = after  # called at the end, even if nothing was sent
        self.background = None
        self.status_code = 200
        self.media_type = "text/event-stream"
        self.charset = "utf-8"
        self.init_headers(HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(left(receive))
        if self._endless:
            _ENDLESS.add(sending)
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.cancelled():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            elif sending.done():
                sending.result()
        finally:
            _ENDLESS.discard(sending)
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
            if isinstance(self._source, AsyncGenerator):
                await self._source.aclose()
            if self._after is not None:
                self._after()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self._source:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def event_stream(source: AsyncIterator[bytes]) -> Response:
    """An endless response that sends encoded events as they come."""
    return EventStream(source, endless=True)


def follow(subscription: Subscription, first: Iterable[Event] = ()) -> Response:
    """A subscription as an endless response: `first`, then what is published, with comments as a heartbeat."""

    async def events() -> AsyncGenerator[bytes, None]:
        with subscription:
            yield b": welcome\n\n"
            for event in first:
                yield encode(event, event.get("kind"))
            while True:
                news = await subscription.next(HEARTBEAT_S)
                yield b": still here\n\n" if news is None else encode(news, news.get("kind"))

    return event_stream(events())
