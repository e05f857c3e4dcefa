"""`/v1/traces`: OTLP over HTTP, in protobuf or JSON, gzipped or not. A response means that the spans are on disk.

One thread stores all waiting requests in one transaction. When too many bytes arrive and wait (see `BodyLimits`),
requests are refused with 429 and Retry-After; exporters obey it and send them again, so nothing is lost.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_forge.errors import AgentForgeError, StoreError, TraceError
from agent_forge.refusal import Refusal
from agent_forge.server.context import Context
from agent_forge.server.metrics import metrics_of
from agent_forge.server.responses import utf8
from agent_forge.server.settings import MIB
from agent_forge.traces.masking import mask_rows
from agent_forge.traces.rows import TRACE, Row

PROTOBUF, JSON = "application/x-protobuf", "application/json"
SPANS_PER_TRANSACTION = 5_000


def routes(context: Context) -> list[Route]:
    """The path that every OTLP exporter uses."""

    async def take(request: Request) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            return await _take(context, request, kind)
        except (Refusal, StoreError) as error:
            refusal = error if isinstance(error, Refusal) else _unavailable(str(error))
            if refusal.status >= 500:
                request.state.cause = str(refusal)
            metrics_of(context).intake_refused.labels(refusal.code or str(refusal.status)).inc()
            return status_response(refusal, kind)

    return [Route("/v1/traces", take, methods=["POST"])]


async def _take(context: Context, request: Request, kind: str) -> Response:
    if kind not in (PROTOBUF, JSON):
        raise Refusal(415, f"the content type is {kind!r}", code="media_type", fix=f"Send {PROTOBUF} or {JSON}")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", "deflate"):
        raise Refusal(415, f"the encoding {encoding!r} is not supported", code="encoding", fix="Send gzip or identity")
    intake = await run_in_threadpool(intake_of, context)  # the first one opens the store
    trace_request = TraceRequest(await request.body(), kind, encoding)
    await intake.store(trace_request)
    return Response(export_response(kind, trace_request.rejected), media_type=kind)


@dataclass(slots=True, eq=False)
class TraceRequest:
    """The body of one request, on its way into the store."""

    body: bytes
    kind: str
    encoding: str
    done: Callable[[BaseException | None], None] = lambda error: None
    rows: list[Row] | None = None
    rejected: list[TraceError] = field(default_factory=list)  # the faults of spans that could not be read
    unpacked: int = 0

    def open(self, most: int, mask: str | None) -> int:
        """Unpacks, parses and masks the body, and counts its spans. Raises TraceError; Refusal if it is too large."""
        body = self.body if self.encoding == "identity" else unpack(self.body, most)
        self.unpacked = len(body)
        self.rows = (_read_protobuf if self.kind == PROTOBUF else _read_json)(body, self.rejected)
        if self.rejected and not self.rows:
            raise self.rejected[0]
        self.rows = mask_rows(self.rows, mask)
        return len(self.rows)


class TraceIntake:
    """The queue of requests, and the thread that stores them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._max_unpacked = context.settings.max_unpacked
        self._mask = context.settings.mask
        self._queue: deque[TraceRequest] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.held = 0  # bytes in the queue
        self._thread = threading.Thread(target=self._run, name="agent-forge-intake", daemon=True)
        self._thread.start()

    async def store(self, request: TraceRequest) -> None:
        """Returns when the spans are on disk. Raises Refusal: 400 for an invalid trace request, 413, 503."""
        loop = asyncio.get_running_loop()
        stored: asyncio.Future[None] = loop.create_future()
        request.done = partial(_report, loop, stored)
        with self._changed:
            if self._closed:
                raise _unavailable("the server is shutting down")
            self._queue.append(request)
            self.held += len(request.body)
            self._changed.notify()
        try:
            await asyncio.shield(stored)
        except TraceError as error:
            raise Refusal(400, str(error), code="invalid") from error

    def close(self) -> None:
        """Stores what is in the queue, then stops."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closed:
                    self._changed.wait()
                if not self._queue:
                    return
            self._store_some()

    def _store_some(self) -> None:
        started = time.monotonic()
        requests, count = [], 0
        while self._queue and count < SPANS_PER_TRANSACTION:
            request = self._queue.popleft()
            try:
                count += request.open(self._max_unpacked, self._mask)
                requests.append(request)
            except Exception as error:
                self._done(request, error)
        if requests:
            self._write(requests)
            metrics_of(self._context).intake.observe(time.monotonic() - started)

    def _write(self, requests: list[TraceRequest]) -> None:
        """Stores all in one transaction; if that fails on a span, one by one, so that only the bad request fails."""
        rows = [row for request in requests for row in request.rows or ()]
        error: Exception | None = None
        try:
            self._context.traces.add_rows(rows)
        except TraceError as fault:
            if len(requests) > 1:
                for request in requests:
                    self._write([request])
                return
            error = fault
        except Exception as fault:
            error = fault
        if error is None:
            self._publish(requests, rows)
        for request in requests:
            self._done(request, error)

    def _done(self, request: TraceRequest, error: BaseException | None) -> None:
        with self._changed:
            self.held -= len(request.body)
        if error is not None and not isinstance(error, AgentForgeError):
            error = StoreError(f"the spans could not be stored: {type(error).__name__}: {error}")
        request.done(error)

    def _publish(self, requests: list[TraceRequest], rows: list[Row]) -> None:
        metrics = metrics_of(self._context)
        metrics.spans.inc(len(rows))
        metrics.span_bytes.inc(sum(request.unpacked for request in requests))
        traces = list(dict.fromkeys(row[TRACE] for row in rows))
        self._context.hub.publish("traces", {"kind": "stored", "spans": len(rows), "traces": traces[:100]})


def intake_of(context: Context) -> TraceIntake:
    """The intake of a server."""

    def make_intake() -> TraceIntake:
        _ = context.traces  # opened first, so that it is closed last
        return TraceIntake(context)

    intake: TraceIntake = context.part("intake", make_intake)
    return intake


def _report(loop: asyncio.AbstractEventLoop, stored: asyncio.Future[None], error: BaseException | None) -> None:
    with suppress(RuntimeError):  # the loop was closed: nobody waits any more
        loop.call_soon_threadsafe(_settle, stored, error)


def _settle(stored: asyncio.Future[None], error: BaseException | None) -> None:
    if stored.done():  # the client has left
        return
    if error is None:
        stored.set_result(None)
    else:
        stored.set_exception(error)


def _unavailable(why: str) -> Refusal:
    return Refusal(503, why, code="unavailable", headers={"Retry-After": "5"})


def unpack(body: bytes, most: int) -> bytes:
    """Unpacks gzip (also of several members) or zlib.

    Raises Refusal (413) as soon as it becomes too large, TraceError for anything else.
    """
    try:
        if body[:2] == b"\x1f\x8b":
            content = gzip.GzipFile(fileobj=io.BytesIO(body)).read(most + 1)
        else:
            inflating = zlib.decompressobj()
            content = inflating.decompress(body, most + 1)
            if not inflating.eof and len(content) <= most:
                raise EOFError
    except EOFError as error:
        raise TraceError("the body cannot be unpacked: its end is missing") from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"the body cannot be unpacked: {error}") from error
    if len(content) > most:
        what = f"the body unpacks to more than {most / MIB:g} MiB"
        raise Refusal(413, what, code="too_large", fix="Send smaller batches")
    return content


def _read_protobuf(body: bytes, rejected: list[TraceError]) -> list[Row]:
    from agent_forge.traces.otlp_protobuf import read_protobuf_rows

    return read_protobuf_rows(body, rejected)


def _read_json(body: bytes, rejected: list[TraceError]) -> list[Row]:
    from agent_forge.traces.otlp import read_json_rows

    if body.strip() == b"{}":  # a request without spans, as protobuf's JSON writes it
        return []
    try:
        return read_json_rows(body, rejected)
    except ValueError as error:
        raise TraceError(f"the body is not JSON: {error}") from error
    except (RecursionError, AttributeError, TypeError) as error:
        raise TraceError(f"the body is not an OTLP trace request: {error}") from error


def export_response(kind: str, rejected: list[TraceError]) -> bytes:
    """An ExportTraceServiceResponse. `partialSuccess` has the number of spans that were not stored, and why."""
    message = f"{rejected[0]}{f' ({len(rejected) - 1} more)' if len(rejected) > 1 else ''}" if rejected else ""
    if kind == JSON:
        part = {"rejectedSpans": str(len(rejected)), "errorMessage": message} if rejected else {}
        return utf8(json.dumps({"partialSuccess": part}, ensure_ascii=False, separators=(",", ":")))
    if not rejected:
        return b""
    text = utf8(message)
    success = b"\x08" + _varint(len(rejected)) + b"\x12" + _varint(len(text)) + text
    return b"\x0a" + _varint(len(success)) + success


def status_response(refusal: Refusal, kind: str) -> Response:
    """A refusal as OTLP specifies it: a google.rpc.Status in the encoding of the request."""
    code = {400: 3, 413: 8, 415: 3, 429: 8}.get(refusal.status, 14)
    message = str(refusal)
    if kind == PROTOBUF:
        text = utf8(message)
        body = b"\x08" + _varint(code) + b"\x12" + _varint(len(text)) + text
        return Response(body, refusal.status, refusal.headers, PROTOBUF)
    document = {"code": code, "message": message}
    return Response(utf8(json.dumps(document, ensure_ascii=False)), refusal.status, refusal.headers, JSON)


def _varint(number: int) -> bytes:
    """A number in protobuf's encoding: seven bits per byte, the lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
