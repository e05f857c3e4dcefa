"""Measures and logs every request, and assigns it to a trace: the caller's (`traceparent`) or a new one."""

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
QUIET = frozenset(("/healthz", "/readyz", "/metrics"))  # polled every few seconds: logged at level debug


class RequestLog:
    """The outermost ASGI middleware, so that it sees refused requests too."""

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

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Trace-Id"] = state["trace_id"]
            await send(message)

        started = time.perf_counter()
        with structlog.contextvars.bound_contextvars(trace_id=trace), self.metrics.in_flight.track_inprogress():
            try:
                await self.app(scope, receive, watched_send)
            finally:
                self._log(scope, status, time.perf_counter() - started)

    def _log(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", None) or "unmatched"
        method = scope["method"] if route != "unmatched" else "any"  # clients must not invent label values
        self.metrics.requests.labels(method, route, str(status)).observe(seconds)
        log = self.log.debug if scope["path"] in QUIET else self.log.info if status < 500 else self.log.error
        log(
            "request",
            method=scope["method"],
            path=scope["path"],
            status=status,
            ms=round(seconds * 1000, 2),
            client=(scope.get("client") or ("local",))[0],
            trace_id=scope["state"]["trace_id"],
            **({"cause": scope["state"]["cause"]} if status >= 500 and "cause" in scope["state"] else {}),
        )


def caller(headers: Headers) -> Span | None:
    """The span that the caller was in, from its W3C `traceparent`; or None.

    >>> caller(Headers({"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})).span_id
    'b7ad6b7169203331'
    """
    match = _PARENT.fullmatch(headers.get("traceparent", ""))
    if match is None or not match[1].strip("0") or not match[2].strip("0"):
        return None
    return Span(match[1], match[2], "caller", "other")
