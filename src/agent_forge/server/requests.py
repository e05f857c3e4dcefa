"""Requests: limits on size and time, bodies checked against their schema, and clients that leave."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Coroutine, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_forge.refusal import Refusal
from agent_forge.server.responses import refusal_response
from agent_forge.server.schemas import BODIES
from agent_forge.server.settings import MIB, ServerSettings

T = TypeVar("T")
CLOSE = {"Connection": "close"}  # the rest of the body may still be on its way
RETRY_S = 1  # after a refusal because memory is full
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class BodyLimits:
    """ASGI middleware: refuses a body that is too large (413), does not arrive in time (408), or has no room beside the
    bodies of the other requests in progress (429)."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self.app = app
        self.max_bytes = settings.max_body
        self.seconds = settings.body_timeout_s
        self.max_held = settings.bodies_in_memory
        self.held = 0  # bytes of the bodies of all requests in progress, complete or not

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False
        body = ArrivingBody(self, receive)

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            lengths = [value for name, value in scope["headers"] if name == b"content-length"]
            if lengths and lengths[0].isdigit() and int(lengths[0]) > self.max_bytes:
                raise self.too_large()
            await self.app(scope, body.receive, watched_send)
        except Refusal as refusal:
            if started:
                raise
            await refusal_response(refusal)(scope, receive, send)
        finally:
            self.held -= body.received

    def too_large(self) -> Refusal:
        what = f"the body is larger than {self.max_bytes / MIB:g} MiB"
        return Refusal(413, what, code="body_too_large", fix="Send it in parts", headers=CLOSE)


class ArrivingBody:
    """The body of one request, as it arrives: counted in what `limits` holds, and checked against its limits."""

    def __init__(self, limits: BodyLimits, receive: Receive) -> None:
        self._limits = limits
        self._receive = receive
        self._complete = False
        self._end = time.monotonic() + limits.seconds
        self.received = 0

    async def receive(self) -> Message:
        """The next message. Raises Refusal."""
        limits = self._limits
        if self._complete:  # all that can still come is that the client leaves
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), max(0.001, self._end - time.monotonic()))
        except asyncio.TimeoutError:
            what = f"the body did not arrive within {limits.seconds:g} s"
            raise Refusal(408, what, code="slow_client", fix="Send it faster", headers=CLOSE) from None
        size = len(message.get("body", b""))
        self.received += size
        limits.held += size
        self._complete = not message.get("more_body", False)
        if self.received > limits.max_bytes:
            raise limits.too_large()
        if size and limits.held > limits.max_held:
            what = f"the requests in progress hold {limits.held / MIB:.0f} MiB"
            headers = {"Retry-After": str(RETRY_S), **({} if self._complete else CLOSE)}
            raise Refusal(429, what, code="full", fix=f"Send it again in {RETRY_S} s", headers=headers)
        return message


async def read_json(request: Request, name: str) -> dict[str, Any]:
    """The body as an object that fits the schema of that name. Raises Refusal (400, 415)."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise Refusal(415, f"the body is {kind!r}", code="unsupported_media_type", fix="Send application/json")
    document = parse_json(await request.body())
    _check(document, name)
    body: dict[str, Any] = _with_whole_numbers(document, BODIES[name])
    return body


def _with_whole_numbers(value: Any, schema: Mapping[str, Any]) -> Any:
    """1.0 is an integer in JSON Schema but not in Python: where the schema wants an integer, it becomes one."""
    options = [schema, *schema.get("anyOf", ())]
    if isinstance(value, float):
        return int(value) if any(option.get("type") == "integer" for option in options) else value
    if isinstance(value, list):
        items = {"anyOf": [option["items"] for option in options if "items" in option]}
        nested = [one for option in items["anyOf"] for one in (option, *option.get("anyOf", ()))]
        return [_with_whole_numbers(item, {"anyOf": nested}) for item in value]
    if isinstance(value, dict):
        fields = {name: one for option in options for name, one in option.get("properties", {}).items()}
        return {name: _with_whole_numbers(item, fields.get(name, {})) for name, item in value.items()}
    return value


def parse_json(body: bytes) -> Any:
    """Standard JSON: no NaN, no lone surrogates. Raises Refusal (400)."""
    try:
        document = json.loads(body, parse_constant=_refuse)
        if _SURROGATE.search(body):
            json.dumps(document, ensure_ascii=False).encode()
        return document
    except RecursionError:
        raise Refusal(400, "the body is nested too deeply", code="invalid_json") from None
    except ValueError as error:  # also for text that is not UTF-8, and numbers that are too long
        raise Refusal(400, f"the body is not JSON: {error}", code="invalid_json") from error


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


@lru_cache(maxsize=16)
def _validator(name: str) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(BODIES[name])


def _check(document: Any, name: str) -> None:
    from jsonschema.exceptions import best_match

    try:
        error = best_match(_validator(name).iter_errors(document))
    except RecursionError:
        raise Refusal(400, "the body is nested too deeply", code="invalid_json") from None
    if error is not None:
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path).lstrip(".")
        message = error.message if len(error.message) <= 500 else f"{error.message[:500]} …"
        raise Refusal(400, f"{path or 'the body'}: {message}", code="invalid_body", param=path or None)


async def unless_left(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; if the client leaves first, the work is cancelled. Raises ClientDisconnect."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(left(request.receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def left(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        continue
