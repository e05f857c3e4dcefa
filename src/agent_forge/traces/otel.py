"""For programs that use OpenTelemetry: an exporter for their provider, and recorders that join their traces.

    provider.add_span_processor(BatchSpanProcessor(StoreExporter(store)))      theirs into our store
    Recorder(store, join=provider)                                             ours into their traces

Needs the extra `otel`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent_forge._version import __version__
from agent_forge.errors import MissingExtraError, StoreError
from agent_forge.traces.conventions import complete, fill, to_attributes
from agent_forge.traces.otlp import pairs
from agent_forge.traces.span import Span
from agent_forge.traces.values import to_json
from agent_forge.traces.writer import Sink, log

try:
    from opentelemetry import context, trace
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags
except ImportError as missing:
    raise MissingExtraError("OpenTelemetry", "otel") from missing

_STATUS = {StatusCode.UNSET: "unset", StatusCode.OK: "ok", StatusCode.ERROR: "error"}
_CODE = {"unset": StatusCode.UNSET, "ok": StatusCode.OK, "error": StatusCode.ERROR}


class StoreExporter(SpanExporter):
    """Writes the spans of a tracer provider into a store. What it reports as exported is committed."""

    def __init__(self, store: Sink) -> None:
        self._store = store

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Stores the spans in one transaction."""
        try:
            self._store.add([from_otel(span) for span in spans])
        except StoreError as error:
            log.error("%d spans were not exported: %s", len(spans), error)
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing waits here."""
        return True


def from_otel(theirs: ReadableSpan) -> Span:
    """A finished OpenTelemetry span as ours."""
    place, parent = theirs.get_span_context(), theirs.parent
    assert place is not None  # every real span has a context
    span = Span(
        trace.format_trace_id(place.trace_id),
        trace.format_span_id(place.span_id),
        theirs.name,
        "other",
        trace.format_span_id(parent.span_id) if parent is not None else None,
        theirs.start_time or 0,
        theirs.end_time,
        _STATUS[theirs.status.status_code],
        theirs.status.description,
    )
    span.attributes = _plain(theirs.attributes)
    span.links = [
        (trace.format_trace_id(x.context.trace_id), trace.format_span_id(x.context.span_id)) for x in theirs.links
    ]
    span.events = [{"name": e.name, "time_ns": e.timestamp, "attributes": _plain(e.attributes)} for e in theirs.events]
    span.otel_kind = theirs.kind.value + 1  # the SDK counts from 0, OTLP from 1
    if any(link.attributes for link in theirs.links):
        rest = [{"attributes": pairs(_plain(link.attributes))} if link.attributes else {} for link in theirs.links]
        span.otel = {"links": rest}
    span.resource, span.scope = _plain(theirs.resource.attributes), {}
    if scope := theirs.instrumentation_scope:
        data: dict[str, Any] = {"name": scope.name, "version": scope.version, "schemaUrl": scope.schema_url}
        data["attributes"] = _plain(scope.attributes)
        span.scope = {name: value for name, value in data.items() if value}
    return complete(fill(span))


def _plain(attributes: Any) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in (attributes or {}).items()}


class Join:
    """Makes every span of a recorder a span of an OpenTelemetry provider too, with the same ids.

    The parent is the innermost open span: ours, or one of theirs that was opened inside it. A joined span costs what
    the SDK costs, so this is for programs that want one trace, not for the hot path.
    """

    def __init__(self, provider: Any) -> None:
        self._tracer = (trace if provider is True else provider).get_tracer("agent_forge", __version__)
        self._open: dict[str, tuple[Any, int]] = {}  # span id → their span, and what was current when it began

    def begin(self, span: Span, above: Span | None) -> None:
        """Starts their span for `span` and adopts its ids."""
        around = trace.get_current_span().get_span_context()
        theirs = self._tracer.start_span(
            span.name,
            self._parent(above, around),
            kind=SpanKind.CLIENT if span.kind == "model" else SpanKind.INTERNAL,
            start_time=span.start_ns,
        )
        place = theirs.get_span_context()
        existing = {around.span_id, int(above.span_id, 16) if above is not None else 0}
        if not place.is_valid or place.span_id in existing:  # no SDK behind the API: nothing to join
            return
        parent = getattr(theirs, "parent", None)
        span.trace_id, span.span_id = trace.format_trace_id(place.trace_id), trace.format_span_id(place.span_id)
        span.parent_id = trace.format_span_id(parent.span_id) if parent is not None else None
        self._open[span.span_id] = (theirs, around.span_id)

    def _parent(self, above: Span | None, around: SpanContext) -> Any:
        if above is None:
            return None  # their current span
        theirs, before = self._open.get(above.span_id, (None, 0))
        if around.is_valid and around.span_id not in (int(above.span_id, 16), before):
            return None  # a span of theirs was opened inside ours
        if theirs is None:
            place = SpanContext(int(above.trace_id, 16), int(above.span_id, 16), False, TraceFlags(TraceFlags.SAMPLED))
            theirs = NonRecordingSpan(place)
        return trace.set_span_in_context(theirs)

    def enter(self, span: Span) -> Any:
        """Makes their span current, so that instrumented code in the block has it as its parent."""
        theirs = self._open.get(span.span_id)
        return context.attach(trace.set_span_in_context(theirs[0])) if theirs is not None else None

    def leave(self, token: Any) -> None:
        """Undoes `enter`."""
        if token is not None:
            context.detach(token)

    def finish(self, span: Span) -> None:
        """Ends their span with what ours holds."""
        theirs, _ = self._open.pop(span.span_id, (None, 0))
        if theirs is None:
            return
        theirs.set_attributes({key: _allowed(value) for key, value in to_attributes(span).items() if value is not None})
        for event in span.events:
            attributes = {key: _allowed(value) for key, value in event["attributes"].items()}
            theirs.add_event(event["name"], attributes, event["time_ns"])
        theirs.set_status(Status(_CODE[span.status], span.error if span.status == "error" else None))
        theirs.end(span.end_ns)


def _allowed(value: Any) -> Any:
    """The SDK takes strings, booleans, numbers and lists of one of these types; the rest goes in as JSON."""
    basic = (str, bool, int, float)
    uniform = isinstance(value, list) and len({type(item) for item in value}) == 1 and isinstance(value[0], basic)
    return value if uniform or isinstance(value, basic) else to_json(value)
