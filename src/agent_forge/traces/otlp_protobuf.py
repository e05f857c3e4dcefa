"""OTLP trace requests in protobuf. Needs opentelemetry-proto, which the extras `otel` and `server` bring."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any

from agent_forge.errors import MissingExtraError, TraceError
from agent_forge.traces.conventions import complete, fill_fields, session_around
from agent_forge.traces.otlp import LAST_NS, STATUSES, pairs, read_any, write_request
from agent_forge.traces.span import Span, collection_paused
from agent_forge.traces.values import to_json

# Levels of lists and objects that are written: each is up to three messages, and protobuf's readers stop at a hundred.
DEEPEST = 24
_NO_TRACE, _NO_SPAN = bytes(16), bytes(8)
# Fields without a counterpart in ours, by their names in JSON and in protobuf.
_EXTRA = {
    "traceState": "trace_state",
    "flags": "flags",
    "droppedAttributesCount": "dropped_attributes_count",
    "droppedEventsCount": "dropped_events_count",
    "droppedLinksCount": "dropped_links_count",
}
_extra_of = attrgetter(*_EXTRA.values())


def read_protobuf(data: bytes, *, whole: bool = True, rejected: list[TraceError] | None = None) -> list[Span]:
    """The spans of a request in protobuf, as `otlp.read_request` returns those of one in JSON.

    Raises TraceError if it is not one, MissingExtraError without opentelemetry-proto.
    """
    message = _message()
    try:
        request = message.FromString(data)
    except Exception as error:  # google.protobuf.message.DecodeError, from a package that may be missing
        raise TraceError("this is not an OTLP trace request in protobuf") from error
    with collection_paused():
        spans = list(_spans(request, rejected))
        return [complete(span) for span in spans] if whole else spans


def _spans(request: Any, rejected: list[TraceError] | None) -> Iterator[Span]:
    for group in request.resource_spans:
        resource = _attributes(group.resource.attributes)
        for part in group.scope_spans:
            scope = _scope(part, group.schema_url)
            session = session_around(resource, scope)
            for theirs in part.spans:
                try:
                    span = _span(theirs, resource, scope)
                except TraceError as fault:
                    if rejected is None:
                        raise
                    rejected.append(fault)
                    continue
                if session and not span.session:
                    span.session = session
                yield span


def _message() -> Any:
    try:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    except ImportError as error:
        raise MissingExtraError("OTLP in protobuf", "otel") from error
    return ExportTraceServiceRequest


def _scope(part: Any, resource_schema: str) -> dict[str, Any]:
    scope = {
        "name": part.scope.name,
        "version": part.scope.version,
        "droppedAttributesCount": part.scope.dropped_attributes_count,
        "attributes": _attributes(part.scope.attributes),
        "schemaUrl": part.schema_url,
        "resourceSchemaUrl": resource_schema,
    }
    return {name: value for name, value in scope.items() if value}


# Every access to a field of a message costs about 0.1 µs, and to a message inside it 0.2: the functions below read a
# field once, and those that are usually empty together.


def _span(theirs: Any, resource: dict[str, Any], scope: dict[str, Any]) -> Span:
    trace_id, span_id, parent = theirs.trace_id, theirs.span_id, theirs.parent_span_id
    _check_ids("a span", trace_id, span_id)
    start, end = theirs.start_time_unix_nano, theirs.end_time_unix_nano
    if start > LAST_NS or end > LAST_NS:
        raise TraceError("a span's times are out of range")
    parent_id = parent.hex() if len(parent) == 8 and parent != _NO_SPAN else None
    span = Span(trace_id.hex(), span_id.hex(), theirs.name, "other", parent_id, start, end or None)
    span.rare = {"resource": resource, "scope": scope, "otel_kind": theirs.kind}
    if attributes := theirs.attributes:
        span.attributes = _attributes(attributes)
        fill_fields(span)
    _read_status(span, theirs.status)
    if events := theirs.events:
        span.events = [_event(event) for event in events]
    if links := theirs.links:
        _read_links(span, links)
    extra = _extra_of(theirs)
    if any(extra):
        present = {name: value for name, value in zip(_EXTRA, extra, strict=True) if value}
        span.otel = {**(span.otel or {}), **present}
    return span


def _check_ids(what: str, trace_id: bytes, span_id: bytes) -> None:
    if len(trace_id) != 16 or len(span_id) != 8 or trace_id == _NO_TRACE or span_id == _NO_SPAN:
        raise TraceError(f"{what}'s ids are not 16 and 8 bytes")


def _read_status(span: Span, status: Any) -> None:
    code, message = status.code, status.message
    if not 0 <= code < len(STATUSES):
        raise TraceError(f"a span's status is {code}", fix="It must be 0, 1 or 2")
    span.status = STATUSES[code]
    if message and code == 2:
        span.error = message
    elif message:
        span.otel = {**(span.otel or {}), "message": message}


def _event(theirs: Any) -> dict[str, Any]:
    event = {"name": theirs.name, "time_ns": theirs.time_unix_nano, "attributes": _attributes(theirs.attributes)}
    if theirs.dropped_attributes_count:
        event["droppedAttributesCount"] = theirs.dropped_attributes_count
    return event


def _read_links(span: Span, links: Any) -> None:
    rest = []
    for link in links:
        _check_ids("a link", link.trace_id, link.span_id)
        span.links.append((link.trace_id.hex(), link.span_id.hex()))
        extra = {"traceState": link.trace_state, "attributes": pairs(_attributes(link.attributes)), "flags": link.flags}
        rest.append({name: value for name, value in extra.items() if value})
    if any(rest):
        span.otel = {**(span.otel or {}), "links": rest}


def _attributes(pairs: Any) -> dict[str, Any]:
    attributes = {}
    for pair in pairs:
        value = pair.value
        # Trying the usual kinds of value costs less than asking which one it is.
        attributes[pair.key] = value.string_value or value.int_value or value.double_value or _value(value)
    return attributes


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    content = getattr(value, kind)
    if kind == "array_value":
        return [_value(item) for item in content.values]
    return _attributes(content.values) if kind == "kvlist_value" else content


# Writing


def write_protobuf(spans: Iterable[Span]) -> bytes:
    """An ExportTraceServiceRequest in protobuf. Raises MissingExtraError without opentelemetry-proto.

    Values that nest deeper than protobuf's readers go are written as JSON text.
    """
    message = _message()
    from google.protobuf.json_format import ParseDict  # type: ignore[import-untyped]

    request = write_request(spans)
    for group in request["resourceSpans"]:
        for part in group["scopeSpans"]:
            for span in part["spans"]:
                _to_base64(span)
                for holder in (span, *span.get("events", ())):
                    holder["attributes"] = [{**pair, "value": _shallow(pair["value"])} for pair in holder["attributes"]]
    data: bytes = ParseDict(request, message()).SerializeToString()
    return data


def _to_base64(span: dict[str, Any]) -> None:
    """Protobuf's JSON reader takes bytes as base64."""
    for part in (span, *span.get("links", ())):
        for name in ("traceId", "spanId", "parentSpanId"):
            if name in part:
                part[name] = base64.b64encode(bytes.fromhex(part[name])).decode()


def _shallow(value: dict[str, Any], depth: int = DEEPEST) -> dict[str, Any]:
    items = (value.get("arrayValue") or value.get("kvlistValue") or {}).get("values")
    if not items:
        return value
    if depth == 0:
        return {"stringValue": to_json(read_any(value))}
    if "arrayValue" in value:
        return {"arrayValue": {"values": [_shallow(item, depth - 1) for item in items]}}
    return {"kvlistValue": {"values": [{**pair, "value": _shallow(pair["value"], depth - 1)} for pair in items]}}
