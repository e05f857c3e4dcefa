"""`/v1/traces`: OTLP over HTTP, in protobuf or JSON, gzipped or not. An answer means: the spans are on disk.

Requests wait for one thread, which stores all that wait in one transaction. When more than `intake_waiting` bytes wait,
a request is refused with 429 and Retry-After, which exporters obey: it is sent again later, and nothing is lost.
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

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_forge.errors import AgentForgeError, StoreError, TraceError
from agent_forge.server.answers import Refused, utf8
from agent_forge.server.context import Context
from agent_forge.server.metrics import metrics_of
from agent_forge.server.settings import MIB
from agent_forge.traces.rows import TRACE, Row

PROTOBUF, JSON = "application/x-protobuf", "application/json"
SPANS_AT_ONCE = 5_000  # spans of a transaction
AGAIN_S = 1  # after a refusal for lack of room


def routes(context: Context) -> list[Route]:
    """The intake, at the path that every OTLP exporter uses."""

    async def take(request: Request) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            return await _take(context, request, kind)
        except Refused as refused:
            metrics_of(context).intake_refused.labels(refused.code or str(refused.status)).inc()
            return status_answer(refused, kind)

    return [Route("/v1/traces", take, methods=["POST"])]


async def _take(context: Context, request: Request, kind: str) -> Response:
    if kind not in (PROTOBUF, JSON):
        raise Refused(415, f"the body is {kind or 'of no type'!r}", code="media_type", fix=f"send {PROTOBUF} or {JSON}")
    packed = request.headers.get("content-encoding", "identity").strip().lower()
    if packed not in ("identity", "gzip", "deflate"):
        raise Refused(415, f"the encoding {packed!r} is not known", code="encoding", fix="send gzip or identity")
    intake = intake_of(context)
    intake.check_room()
    parcel = Parcel(await request.body(), kind, packed)
    await intake.store(parcel)
    return Response(export_response(kind, parcel.rejected), media_type=kind)


@dataclass(slots=True, eq=False)
class Parcel:
    """One request's body, on its way into the store."""

    body: bytes
    kind: str
    packed: str
    done: Callable[[BaseException | None], None] = lambda error: None
    rows: list[Row] | None = None
    rejected: list[TraceError] = field(default_factory=list)  # the faults of spans that could not be read
    unpacked: int = 0

    def open(self, most: int) -> int:
        """Unpacks and reads the body. Raises TraceError, or Refused for one that grows too large."""
        body = self.body if self.packed == "identity" else unpack(self.body, most)
        self.unpacked = len(body)
        self.rows = (_read_protobuf if self.kind == PROTOBUF else _read_json)(body, self.rejected)
        if self.rejected and not self.rows:
            raise self.rejected[0]
        return len(self.rows)


class Intake:
    """Parcels in line, and the thread that stores them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._most = context.settings.intake_waiting
        self._unpacked = context.settings.max_unpacked
        self._line: deque[Parcel] = deque()
        self._news = threading.Condition()
        self._closed = False
        self.held = 0  # bytes in line
        self._thread = threading.Thread(target=self._run, name="agent-forge-intake", daemon=True)
        self._thread.start()

    def check_room(self) -> None:
        """Raises Refused (429) while too much waits."""
        if self.held > self._most:
            raise Refused(
                429,
                f"{self.held / MIB:.0f} MiB of spans wait to be stored",
                code="full",
                fix=f"Send it again in {AGAIN_S} s",
                headers={"Retry-After": str(AGAIN_S)},
            )

    async def store(self, parcel: Parcel) -> None:
        """Returns when the spans are on disk. Raises Refused: 400 for a body that is no trace request, 413, 503."""
        loop = asyncio.get_running_loop()
        stored: asyncio.Future[None] = loop.create_future()
        parcel.done = partial(_hand_over, loop, stored)
        with self._news:
            if self._closed:
                raise _unstored("the server is being stopped")
            self._line.append(parcel)
            self.held += len(parcel.body)
            self._news.notify()
        try:
            await asyncio.shield(stored)
        except TraceError as error:
            raise Refused(400, str(error), code="invalid") from error
        except StoreError as error:
            raise _unstored(str(error)) from error

    def close(self) -> None:
        """Stores what is in line, then ends."""
        with self._news:
            self._closed = True
            self._news.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._news:
                while not self._line and not self._closed:
                    self._news.wait()
                if not self._line:
                    return
            self._store_some()

    def _store_some(self) -> None:
        begun = time.monotonic()
        parcels, count = [], 0
        while self._line and count < SPANS_AT_ONCE:
            parcel = self._line.popleft()
            try:
                count += parcel.open(self._unpacked)
                parcels.append(parcel)
            except Exception as error:
                self._done(parcel, error)
        if parcels:
            self._write(parcels)
            metrics_of(self._context).intake.observe(time.monotonic() - begun)

    def _write(self, parcels: list[Parcel]) -> None:
        """All in one transaction; if something in it cannot be stored, each alone, so that one bears the blame."""
        rows = [row for parcel in parcels for row in parcel.rows or ()]
        error: Exception | None = None
        try:
            self._context.traces.add_rows(rows)
        except TraceError as fault:
            if len(parcels) > 1:
                for parcel in parcels:
                    self._write([parcel])
                return
            error = fault
        except Exception as fault:
            error = fault
        if error is None:
            self._tell(parcels, rows)
        for parcel in parcels:
            self._done(parcel, error)

    def _done(self, parcel: Parcel, error: BaseException | None) -> None:
        with self._news:
            self.held -= len(parcel.body)
        if error is not None and not isinstance(error, AgentForgeError):
            error = StoreError(f"the spans could not be stored: {type(error).__name__}: {error}")
        parcel.done(error)

    def _tell(self, parcels: list[Parcel], rows: list[Row]) -> None:
        metrics = metrics_of(self._context)
        metrics.spans.inc(len(rows))
        metrics.span_bytes.inc(sum(parcel.unpacked for parcel in parcels))
        traces = list(dict.fromkeys(row[TRACE] for row in rows))
        self._context.hub.publish("traces", {"kind": "stored", "spans": len(rows), "traces": traces[:100]})


def intake_of(context: Context) -> Intake:
    """The intake of a server."""

    def made() -> Intake:
        _ = context.traces  # opened first, so that it is closed last
        return Intake(context)

    found: Intake = context.part("intake", made)
    return found


def _hand_over(loop: asyncio.AbstractEventLoop, stored: asyncio.Future[None], error: BaseException | None) -> None:
    with suppress(RuntimeError):  # the loop was closed: nobody waits any more
        loop.call_soon_threadsafe(_settle, stored, error)


def _settle(stored: asyncio.Future[None], error: BaseException | None) -> None:
    if stored.done():  # the client has gone
        return
    if error is None:
        stored.set_result(None)
    else:
        stored.set_exception(error)


def _unstored(why: str) -> Refused:
    return Refused(503, why, code="unavailable", headers={"Retry-After": "5"})


def unpack(body: bytes, most: int) -> bytes:
    """Unpacks gzip or zlib, of several members too.

    Raises Refused (413) as soon as it becomes too large, TraceError for what is neither.
    """
    try:
        if body[:2] == b"\x1f\x8b":
            found = gzip.GzipFile(fileobj=io.BytesIO(body)).read(most + 1)
        else:
            inflating = zlib.decompressobj()
            found = inflating.decompress(body, most + 1)
            if not inflating.eof and len(found) <= most:
                raise EOFError
    except EOFError as error:
        raise TraceError("the body cannot be unpacked: its end is missing") from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"the body cannot be unpacked: {error}") from error
    if len(found) > most:
        what = f"the body unpacks to more than {most / MIB:g} MiB"
        raise Refused(413, what, code="too_large", fix="send smaller batches")
    return found


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
        raise TraceError(f"this is not an OTLP trace request: {error}") from error


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


def status_answer(refused: Refused, kind: str) -> Response:
    """A refusal as OTLP wants it: a google.rpc.Status in the encoding of the request."""
    code = {400: 3, 413: 8, 415: 3, 429: 8}.get(refused.status, 14)
    message = str(refused)
    if kind == PROTOBUF:
        text = utf8(message)
        body = b"\x08" + _varint(code) + b"\x12" + _varint(len(text)) + text
        return Response(body, refused.status, refused.headers, PROTOBUF)
    document = {"code": code, "message": message}
    return Response(utf8(json.dumps(document, ensure_ascii=False)), refused.status, refused.headers, JSON)


def _varint(number: int) -> bytes:
    """A number as protobuf writes it: seven bits a byte, the lowest first."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
