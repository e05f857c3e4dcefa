"""How much a client may send, and how long it may take."""

from __future__ import annotations

import asyncio
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_forge.server.answers import Refused
from agent_forge.server.settings import MIB, ServerSettings

CLOSE = {"Connection": "close"}  # the rest of the body may still be on its way


class BodyLimits:
    """ASGI middleware: a body that is too large is refused with 413, one that does not arrive in time with 408."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self.app = app
        self.most = settings.max_body
        self.seconds = settings.body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = False

        async def noting(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            self._check_length(scope)
            await self.app(scope, self._limited(receive), noting)
        except Refused as refused:
            if begun:
                raise
            await refused.answer(scope, receive, send)

    def _check_length(self, scope: Scope) -> None:
        lengths = [value for name, value in scope["headers"] if name == b"content-length"]
        if lengths and lengths[0].isdigit() and int(lengths[0]) > self.most:
            raise self._too_large()

    def _limited(self, receive: Receive) -> Receive:
        received = 0
        whole = False
        end = time.monotonic() + self.seconds

        async def limited() -> Message:
            nonlocal received, whole
            if whole:  # what may still come is that the client leaves
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(0.001, end - time.monotonic()))
            except asyncio.TimeoutError:
                what = f"the body did not arrive within {self.seconds:g} s"
                raise Refused(408, what, code="slow_client", fix="send it faster", headers=CLOSE) from None
            received += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if received > self.most:
                raise self._too_large()
            return message

        return limited

    def _too_large(self) -> Refused:
        limit = f"{self.most / MIB:g} MiB"
        return Refused(
            413, f"the body is larger than {limit}", code="body_too_large", fix="send it in parts", headers=CLOSE
        )
