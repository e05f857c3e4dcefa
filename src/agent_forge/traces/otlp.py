"""OTLP, the wire format of OpenTelemetry: trace requests as JSON, to spans and back.

Reading keeps every attribute as it came and fills the span's fields from them (`conventions.py`), so what is read,
stored and written again says the same: see `test_traces_otlp.py`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from agent_forge._version import __version__
from agent_forge.errors import TraceError
from agent_forge.traces.conventions import fields_of, session_around, to_attributes
from agent_forge.traces.rows import Row, make_row, source_text, to_spans
from agent_forge.traces.span import Span, collection_paused
from agent_forge.traces.values import parse, to_json

KINDS = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")  # by OTLP's number
STATUSES = ("unset", "ok", "error")  # by OTLP's number
_CODES: dict[int | str, str] = {
    **dict(enumerate(STATUSES)),
    **{f"STATUS_CODE_{name.upper()}": name for name in STATUSES},
}
_TEXT = frozenset({str})
LAST_NS = 2**63 - 1  # the largest number a database holds
# Fields of an OTLP span without a counterpart in ours: stored as they are in `span.otel`.
_EXTRA = frozenset(("traceState", "flags", "droppedAttributesCount", "droppedEventsCount", "droppedLinksCount"))
SCOPE = {"name": "agent_forge", "version": __version__}


def read_request(document: Any) -> list[Span]:
    """The spans of an ExportTraceServiceRequest (a parsed JSON object). Raises TraceError if it is not one.

    >>> span = {"traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "b7ad6b7169203331", "name": "chat",
    ...         "startTimeUnixNano": "1", "endTimeUnixNano": "3",
    ...         "attributes": [{"key": "gen_ai.usage.input_tokens", "value": {"intValue": "7"}}]}
    >>> [chat] = read_request({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})
    >>> chat.input_tokens, chat.duration_ns
    (7, 2)
    """
    return to_spans(read_rows(document))


def read_json(data: bytes) -> list[Span]:
    """The spans of the JSON text of a request. Raises TraceError, or ValueError if it is not JSON."""
    return to_spans(read_json_rows(data))


def read_json_rows(data: bytes, rejected: list[TraceError] | None = None) -> list[Row]:
    """The rows of the JSON text of a request, as `read_rows` returns them. Raises ValueError if it is not JSON."""
    with collection_paused():
        return read_rows(parse(data), rejected)


def read_rows(document: Any, rejected: list[TraceError] | None = None) -> list[Row]:
    """The spans of a request as rows for `Store.add_rows`. Raises TraceError if it is not a request.

    With a list for `rejected`, the fault of each span that cannot be read is added to it, and the others are returned.
    """
    if not isinstance(document, dict) or not document.keys() & {"resourceSpans", "resource_spans"}:
        raise TraceError("this is not an OTLP trace request", fix='It must be an object with "resourceSpans"')
    rows: list[Row] = []
    for number, group in enumerate(_list(document, "resourceSpans", "resource_spans")):
        group_at = f"resourceSpans[{number}]"
        scopes = _list(group, "scopeSpans", "scope_spans") or _list(group, "instrumentationLibrarySpans")
        try:
            resource = _attributes((group.get("resource") or {}).get("attributes"))
        except _FAULTS as error:
            _reject(rejected, _fault("the resource", error, group_at), group, scopes)
            continue
        for place, part in enumerate(scopes):
            part_at = f"{group_at}.scopeSpans[{place}]"
            try:
                scope = _scope(part, group.get("schemaUrl"))
            except _FAULTS as error:
                _reject(rejected, _fault("the scope", error, part_at), part, [part])
                continue
            source, session = source_text(resource, scope), session_around(resource, scope)
            for index, data in enumerate(_list(part, "spans")):
                try:
                    rows.append(_row(data, source, session))
                except _FAULTS as error:
                    fault = _fault("the span", error, f"{part_at}.spans[{index}]")
                    if rejected is None:
                        raise fault from error
                    rejected.append(fault)
    return rows


def _reject(rejected: list[TraceError] | None, fault: TraceError, holder: Any, scopes: list[Any]) -> None:
    """Adds a fault to `rejected` once per span that it makes unreadable: those of a resource or scope."""
    if rejected is None or not isinstance(holder, dict):
        raise fault
    rejected.extend(fault for part in scopes for _ in _list(part, "spans"))


_FAULTS = (KeyError, ValueError, TypeError, AttributeError, OverflowError)


def _fault(what: str, error: Exception, where: str) -> TraceError:
    missing = isinstance(error, KeyError)
    return TraceError(f"{what} has no {error}" if missing else f"{what} cannot be read: {error}", where=where)


def _list(data: Any, *names: str) -> list[Any]:
    for name in names:
        items = data.get(name) if isinstance(data, dict) else None
        if isinstance(items, list):
            return items
        if items is not None:
            raise TraceError(f"{name!r} is not a list")
    return []


def _scope(part: dict[str, Any], resource_schema: str | None) -> dict[str, Any]:
    data = part.get("scope") or part.get("instrumentationLibrary") or {}
    scope = {name: data[name] for name in ("name", "version", "droppedAttributesCount") if data.get(name)}
    if data.get("attributes"):
        scope["attributes"] = _attributes(data["attributes"])
    if part.get("schemaUrl"):
        scope["schemaUrl"] = part["schemaUrl"]
    if resource_schema:
        scope["resourceSchemaUrl"] = resource_schema
    return scope


def _row(data: dict[str, Any], source: str, session: str | None) -> Row:
    if "traceId" not in data:  # some writers use protobuf's own names
        data = {camel(name): value for name, value in data.items()}
    name, parent = str(data.get("name", "")), data.get("parentSpanId")
    attributes = _attributes(data["attributes"]) if "attributes" in data else {}
    fields = fields_of(attributes, name)
    fields["otel_kind"] = _kind(data.get("kind", 0))
    otel = {field: data[field] for field in sorted(_EXTRA) if data.get(field)} if _EXTRA & data.keys() else {}
    status, error = "unset", None
    links: list[tuple[str, str]] = []
    extra: dict[str, Any] = {}
    if state := data.get("status"):
        status = _CODES[state.get("code", 0)]
        if message := str(state.get("message") or ""):
            if status == "error":
                error = message
            else:
                otel["message"] = message
    if data.get("events"):
        extra["events"] = [_event(event) for event in data["events"]]
    if data.get("links"):
        links = _links(data["links"], otel)
    if otel:
        extra["otel"] = otel
    return make_row(
        _id(data["traceId"], 32), _id(data["spanId"], 16), _id(parent, 16) if parent and parent.strip("0") else None,
        name, fields.get("kind", "other"), _time(data.get("startTimeUnixNano")),
        _time(data.get("endTimeUnixNano")) or None, status, error, fields.get("agent"), fields.get("model"),
        fields.get("session") or session, fields, source, None, None, attributes, links, extra,
    )  # fmt: skip


def _id(text: str, digits: int) -> str:
    if len(text) != digits:  # protobuf's own JSON writes bytes as base64, OTLP's as hexadecimal
        text = base64.b64decode(text, validate=True).hex()
    data = bytes.fromhex(text)
    if 2 * len(data) != digits or not any(data):  # `fromhex` skips spaces
        raise ValueError(f"its id {text!r} is not {digits} hexadecimal digits")
    return data.hex()


def _time(value: int | str | None) -> int:
    moment = int(value or 0)
    if not 0 <= moment <= LAST_NS:
        raise ValueError("its time is not a number of nanoseconds since 1970")
    return moment


def _kind(kind: int | str) -> int:
    if isinstance(kind, str):
        kind = KINDS.index(kind.removeprefix("SPAN_KIND_")) if not kind.isdecimal() else int(kind)
    if kind.__class__ is not int or not 0 <= kind < 2**31:
        raise ValueError(f"its kind is {kind!r}")
    return kind


def camel(name: str) -> str:
    """Protobuf's name of a field as its JSON has it.

    >>> camel("start_time_unix_nano")
    'startTimeUnixNano'
    """
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def _attributes(pairs: list[dict[str, Any]] | None) -> dict[str, Any]:
    attributes = {}
    for pair in pairs or ():
        value = pair.get("value") or {}
        if "stringValue" in value:
            attributes[pair["key"]] = value["stringValue"]
        elif "intValue" in value:
            attributes[pair["key"]] = int(value["intValue"])
        else:
            attributes[pair["key"]] = read_any(value)
    if not _TEXT.issuperset(map(type, attributes)):
        raise ValueError("an attribute's key is not text")
    return attributes


def read_any(value: Mapping[str, Any]) -> Any:
    """The value of an AnyValue."""
    for name, content in value.items():
        if (read := _VALUES.get(name) or _VALUES.get(camel(name))) is not None:
            return read(content)
    return None


_VALUES: dict[str, Any] = {
    "stringValue": str,
    "intValue": int,
    "boolValue": lambda value: value in (True, "true"),
    "doubleValue": float,
    "arrayValue": lambda value: [read_any(item) for item in value.get("values") or ()],
    "kvlistValue": lambda value: _attributes(value.get("values")),
    "bytesValue": partial(base64.b64decode, validate=True),
}


def _event(data: dict[str, Any]) -> dict[str, Any]:
    event = {
        "name": str(data.get("name", "")),
        "time_ns": int(data.get("timeUnixNano") or data.get("time_unix_nano") or 0),
        "attributes": _attributes(data.get("attributes")),
    }
    if dropped := data.get("droppedAttributesCount"):
        event["droppedAttributesCount"] = dropped
    return event


def _links(links: list[dict[str, Any]], otel: dict[str, Any]) -> list[tuple[str, str]]:
    """The ids of links; what else they hold is added to `otel`."""
    links = [{camel(name): value for name, value in link.items()} for link in links]
    rest = [{name: value for name, value in link.items() if name not in ("traceId", "spanId")} for link in links]
    if any(rest):
        otel["links"] = rest
    return [(_id(link["traceId"], 32), _id(link["spanId"], 16)) for link in links]


# Writing


def write_request(spans: Iterable[Span]) -> dict[str, Any]:
    """An ExportTraceServiceRequest as a JSON object."""
    resources: dict[str, dict[str, Any]] = {}
    for span in spans:
        scope = span.scope if span.scope is not None else SCOPE
        key = to_json([span.resource, scope.get("resourceSchemaUrl")])
        group = resources.get(key)
        if group is None:
            group = resources[key] = {"resource": {"attributes": pairs(span.resource or {})}, "scopes": {}}
            if scope.get("resourceSchemaUrl"):
                group["schemaUrl"] = scope["resourceSchemaUrl"]
        part = group["scopes"].setdefault(to_json(scope), {"scope": _scope_data(scope), "spans": []})
        if scope.get("schemaUrl"):
            part["schemaUrl"] = scope["schemaUrl"]
        part["spans"].append(_span_data(span))
    for group in resources.values():
        group["scopeSpans"] = list(group.pop("scopes").values())
    return {"resourceSpans": list(resources.values())}


def _scope_data(scope: Mapping[str, Any]) -> dict[str, Any]:
    data = {name: scope[name] for name in ("name", "version", "droppedAttributesCount") if scope.get(name)}
    if scope.get("attributes"):
        data["attributes"] = pairs(scope["attributes"])
    return data


def _span_data(span: Span) -> dict[str, Any]:
    otel = span.otel or {}
    kind = span.otel_kind if span.otel_kind is not None else 3 if span.kind == "model" else 1
    data: dict[str, Any] = {"traceId": span.trace_id, "spanId": span.span_id}
    data |= {name: otel[name] for name in sorted(_EXTRA) if name in otel}
    if span.parent_id:
        data["parentSpanId"] = span.parent_id
    data |= {"name": span.name, "kind": kind, "startTimeUnixNano": str(span.start_ns)}
    if span.end_ns is not None:
        data["endTimeUnixNano"] = str(span.end_ns)
    data["attributes"] = pairs(to_attributes(span))
    if span.events:
        data["events"] = [_event_data(event) for event in span.events]
    if span.links:
        rest = otel.get("links") or []
        data["links"] = [
            {"traceId": trace, "spanId": other, **(rest[place] if place < len(rest) else {})}
            for place, (trace, other) in enumerate(span.links)
        ]
    message = span.error or otel.get("message")
    if span.status != "unset" or message:
        data["status"] = {"code": STATUSES.index(span.status)} | ({"message": message} if message else {})
    return data


def _event_data(event: Mapping[str, Any]) -> dict[str, Any]:
    dropped = event.get("droppedAttributesCount")
    return {
        "timeUnixNano": str(event["time_ns"]),
        "name": event["name"],
        "attributes": pairs(event.get("attributes") or {}),
    } | ({"droppedAttributesCount": dropped} if dropped else {})


def pairs(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Attributes as OTLP's list of keys and values."""
    return [{"key": key, "value": _any_value(value)} for key, value in attributes.items()]


def _any_value(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)} if -(2**63) <= value < 2**63 else {"stringValue": str(value)}
    if isinstance(value, float):
        finite = value - value == 0
        return {"doubleValue": value if finite else str(value).replace("inf", "Infinity").replace("nan", "NaN")}
    if isinstance(value, (list, tuple)):
        return {"arrayValue": {"values": [_any_value(item) for item in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": pairs(value)}}
    if isinstance(value, bytes):
        return {"bytesValue": base64.b64encode(value).decode()}
    return {} if value is None else {"stringValue": str(value)}
