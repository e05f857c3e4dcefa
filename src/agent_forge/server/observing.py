"""Every request is measured, logged, and belongs to a trace: the caller's (`traceparent`) or a new one."""

from __future__ import annotations

import re
import time
from typing import Any

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_forge.server.context import Context
from agent_forge.server.metrics import metrics_of
from agent_forge.traces import Span
from agent_forge.traces.recorder import new_trace_id

_PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
QUIET = frozenset(("/healthz", "/readyz", "/metrics"))  # asked every few seconds: logged at the level debug


class Observing:
    """ASGI middleware, the outermost: sees refused requests too."""

    def __init__(self, app: ASGIApp, context: Context, log: Any) -> None:
        self.app = app
        self.metrics = metrics_of(context)
        self.log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        parent = caller(Headers(scope=scope))
        trace = parent.trace_id if parent is not None else new_trace_id()
        state = scope.setdefault("state", {})
        state.update(trace_id=trace, parent=parent)
        status = 500

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Trace-Id"] = state["trace_id"]
            await send(message)

        begun = time.perf_counter()
        with structlog.contextvars.bound_contextvars(trace_id=trace), self.metrics.in_flight.track_inprogress():
            try:
                await self.app(scope, receive, noting)
            finally:
                self._note(scope, status, time.perf_counter() - begun)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", None) or "unmatched"
        self.metrics.requests.labels(scope["method"] if route != "unmatched" else "any", route, str(status)).observe(
            seconds
        )
        tell = self.log.debug if scope["path"] in QUIET else self.log.info if status < 500 else self.log.error
        tell(
            "request",
            method=scope["method"],
            path=scope["path"],
            status=status,
            ms=round(seconds * 1000, 2),
            client=(scope.get("client") or ("local",))[0],
            trace_id=scope["state"]["trace_id"],
        )


def caller(headers: Headers) -> Span | None:
    """The span that the caller was in, from its W3C `traceparent`; None where there is none.

    >>> caller(Headers({"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})).span_id
    'b7ad6b7169203331'
    """
    found = _PARENT.fullmatch(headers.get("traceparent", ""))
    if found is None or not found[1].strip("0") or not found[2].strip("0"):
        return None
    return Span(found[1], found[2], "caller", "other")
