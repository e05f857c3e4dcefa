"""OTLP trace requests in protobuf. Needs opentelemetry-proto, which the extras `otel` and `server` bring."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from agent_forge.errors import MissingExtraError, TraceError
from agent_forge.traces.conventions import fields_of, session_around
from agent_forge.traces.otlp import LAST_NS, STATUSES, pairs, read_any, write_request
from agent_forge.traces.rows import Row, make_row, source_text, to_spans
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


def read_protobuf(data: bytes) -> list[Span]:
    """The spans of a request in protobuf.

    Raises TraceError if it is not one, MissingExtraError without opentelemetry-proto.
    """
    return to_spans(read_protobuf_rows(data))


def read_protobuf_rows(data: bytes, rejected: list[TraceError] | None = None) -> list[Row]:
    """The spans of a request in protobuf as rows, as `otlp.read_rows` returns those of one in JSON. Raises the same."""
    message = _message()
    try:
        request = message.FromString(data)
    except Exception as error:  # google.protobuf.message.DecodeError, from a package that may be missing
        raise TraceError("this is not an OTLP trace request in protobuf") from error
    rows: list[Row] = []
    with collection_paused():
        for group in request.resource_spans:
            resource = _attributes(group.resource.attributes)
            for part in group.scope_spans:
                scope = _scope(part, group.schema_url)
                source, session = source_text(resource, scope), session_around(resource, scope)
                for span in part.spans:
                    try:
                        rows.append(_row(span, source, session))
                    except TraceError as fault:
                        if rejected is None:
                            raise
                        rejected.append(fault)
    return rows


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


def _row(span: Any, source: str, session: str | None) -> Row:
    trace_id, span_id, parent, name = span.trace_id, span.span_id, span.parent_span_id, span.name
    _check_ids("a span", trace_id, span_id)
    start, end = span.start_time_unix_nano, span.end_time_unix_nano
    if start > LAST_NS or end > LAST_NS:
        raise TraceError("a span's times are out of range")
    attributes = _attributes(span.attributes)
    fields = fields_of(attributes, name)
    fields["otel_kind"] = span.kind
    values, state = _extra_of(span), span.status
    otel = {field: value for field, value in zip(_EXTRA, values, strict=True) if value} if any(values) else {}
    code, message = state.code, state.message
    if not 0 <= code < len(STATUSES):
        raise TraceError(f"a span's status is {code}", fix="It must be 0, 1 or 2")
    if message and code != 2:
        otel["message"] = message
    links: Any = ()
    extra: dict[str, Any] = {}
    if events := span.events:
        extra["events"] = [_event(event) for event in events]
    if linked := span.links:
        links = _links(linked, otel)
    if otel:
        extra["otel"] = otel
    return make_row(
        trace_id.hex(), span_id.hex(), parent.hex() if len(parent) == 8 and parent != _NO_SPAN else None, name,
        fields.get("kind", "other"), start, end or None, STATUSES[code], (message or None) if code == 2 else None,
        fields.get("agent"), fields.get("model"), fields.get("session") or session, fields,
        source, None, None, attributes, links, extra,
    )  # fmt: skip


def _check_ids(what: str, trace_id: bytes, span_id: bytes) -> None:
    if len(trace_id) != 16 or len(span_id) != 8 or trace_id == _NO_TRACE or span_id == _NO_SPAN:
        raise TraceError(f"{what}'s ids are not 16 and 8 bytes")


def _event(theirs: Any) -> dict[str, Any]:
    event = {"name": theirs.name, "time_ns": theirs.time_unix_nano, "attributes": _attributes(theirs.attributes)}
    if theirs.dropped_attributes_count:
        event["droppedAttributesCount"] = theirs.dropped_attributes_count
    return event


def _links(links: Any, otel: dict[str, Any]) -> list[tuple[str, str]]:
    """The ids of links; what else they hold is added to `otel`."""
    rest = []
    for link in links:
        _check_ids("a link", link.trace_id, link.span_id)
        extra = {"traceState": link.trace_state, "attributes": pairs(_attributes(link.attributes)), "flags": link.flags}
        rest.append({name: value for name, value in extra.items() if value})
    if any(rest):
        otel["links"] = rest
    return [(link.trace_id.hex(), link.span_id.hex()) for link in links]


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
