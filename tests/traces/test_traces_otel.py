"""Together with OpenTelemetry: its spans in our store, ours in its traces, both in one tree."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from trace_spans import full, randoms

from agent_forge.errors import StoreError, TraceError, UsageError
from agent_forge.traces import Recorder, Span, Store, read_request, send_otlp
from agent_forge.traces.otlp_protobuf import read_protobuf

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed: the extra `otel` brings it")

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agent_forge.traces.otel import Join, StoreExporter, from_otel


@pytest.fixture
def provider() -> Iterator[TracerProvider]:
    made = TracerProvider(resource=Resource({"service.name": "shop"}))
    yield made
    made.shutdown()


def test_the_sdk_exports_into_our_store(provider: TracerProvider, store: Store) -> None:
    provider.add_span_processor(BatchSpanProcessor(StoreExporter(store)))
    tracer = provider.get_tracer("shop.lib", "1.2", attributes={"team": "x"})
    with tracer.start_as_current_span("outer") as outer:
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "tiny",
            "gen_ai.usage.input_tokens": 5,
            "list": (1, 2),
        }
        links = [trace.Link(outer.get_span_context(), {"why": "retry"})]
        with tracer.start_as_current_span(
            "call", attributes=attributes, links=links, kind=trace.SpanKind.CLIENT
        ) as call:
            call.add_event("token", {"n": 1})
        with pytest.raises(ValueError, match="no"), tracer.start_as_current_span("fails"):
            raise ValueError("no")
    assert provider.force_flush()
    [summary] = store.traces()
    spans = {span.name: span for span in store.trace(summary.trace_id)}
    assert set(spans) == {"outer", "call", "fails"}
    found = spans["call"]
    assert (found.kind, found.model, found.input_tokens, found.otel_kind) == ("model", "tiny", 5, 3)
    assert found.parent_id == spans["outer"].span_id == trace.format_span_id(outer.get_span_context().span_id)
    assert found.attributes["list"] == [1, 2]
    assert found.links == [(summary.trace_id, spans["outer"].span_id)]
    assert found.events[0]["attributes"] == {"n": 1}
    assert found.resource == {"service.name": "shop"}
    assert found.scope == {"name": "shop.lib", "version": "1.2", "attributes": {"team": "x"}}
    assert spans["fails"].status == "error"
    assert spans["fails"].error == "ValueError: no"


def test_our_reading_of_an_sdk_span_is_that_of_its_own_otlp_encoder(provider: TracerProvider) -> None:
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    caught = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(caught))
    tracer = provider.get_tracer("lib", "1")
    with (
        tracer.start_as_current_span("a") as first,
        tracer.start_as_current_span(
            "b",
            attributes={"x": 1, "y": [1.5]},
            links=[trace.Link(first.get_span_context(), {"k": "v"})],
            kind=trace.SpanKind.SERVER,
        ) as span,
    ):
        span.add_event("e", {"z": True})
    theirs = caught.get_finished_spans()
    encoded = read_protobuf(encode_spans(theirs).SerializeToString())
    ours = sorted((from_otel(span) for span in theirs), key=lambda span: span.name)
    for one, other in zip(ours, sorted(encoded, key=lambda span: span.name), strict=True):
        other.otel = {key: value for key, value in (other.otel or {}).items() if key != "flags"}
        for link in other.otel.get("links", ()):
            link.pop("flags", None)
        one.otel = one.otel or {}
        assert one == other


def test_a_session_of_the_process_and_an_agent_without_a_name_are_read_in_process_too() -> None:
    provider, kept = TracerProvider(resource=Resource({"session.id": "s-1"})), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    with provider.get_tracer("shop").start_as_current_span("invoke_agent Max") as span:
        span.set_attribute("gen_ai.operation.name", "invoke_agent")
    [found] = map(from_otel, kept.get_finished_spans())
    assert (found.session, found.agent) == ("s-1", "Max")


def test_a_store_that_fails_is_reported(provider: TracerProvider) -> None:
    class Full:
        def add(self, spans: object) -> int:
            raise StoreError("the disk is full")

    exporter = StoreExporter(Full())
    caught = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(caught))
    provider.get_tracer("x").start_span("a").end()
    assert exporter.export(caught.get_finished_spans()) is SpanExportResult.FAILURE
    assert exporter.force_flush()


def test_both_worlds_are_one_tree(provider: TracerProvider) -> None:
    theirs_out = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(theirs_out))
    store = Store.open(":memory:")
    provider.add_span_processor(SimpleSpanProcessor(StoreExporter(store)))  # both ways in: still one of each
    recorder = Recorder(store, join=provider)
    tracer = provider.get_tracer("theirs")
    with tracer.start_as_current_span("request"):
        with recorder.span("agent", kind="agent", agent="Explore"):
            with tracer.start_as_current_span("http"):
                with recorder.span("tool", kind="tool", inputs={"q": 1}) as span:
                    span.outputs = {"x": [None]}
            run = recorder.start("run", attributes={"mixed": [1, "a"], "none": None})
            child = recorder.start("task", parent=run)
            recorder.end(child, error="broke")
            recorder.end(run)
    with recorder.span("another trace"):
        pass
    recorder.close()
    expected = {
        "request": None,
        "agent": "request",
        "http": "agent",
        "tool": "http",
        "run": "agent",
        "task": "run",
        "another trace": None,
    }
    names = {trace.format_span_id(s.context.span_id): s.name for s in theirs_out.get_finished_spans()}
    assert {
        s.name: names.get(trace.format_span_id(s.parent.span_id)) if s.parent else None
        for s in theirs_out.get_finished_spans()
    } == expected
    ours = store.search().items
    ids = {span.span_id: span.name for span in ours}
    assert {span.name: ids.get(str(span.parent_id)) for span in ours} == expected
    assert len({span.trace_id for span in ours}) == 2
    assert store.count() == 7
    tool = next(s for s in theirs_out.get_finished_spans() if s.name == "tool")
    assert tool.attributes is not None
    assert tool.attributes["gen_ai.tool.call.arguments"] == '{"q":1}'
    task = next(s for s in theirs_out.get_finished_spans() if s.name == "task")
    assert task.status.description == "broke"


def test_joining_a_parent_that_only_we_know(provider: TracerProvider) -> None:
    recorder = Recorder(Store.open(":memory:"), join=provider)
    remote = Span("a" * 32, "b" * 16, "remote")
    with recorder.span("here", parent=remote) as span:
        pass
    assert (span.trace_id, span.parent_id) == ("a" * 32, "b" * 16)
    recorder.close()


def test_joining_the_api_without_an_sdk_records_as_usual() -> None:
    recorder = Recorder(Store.open(":memory:"), join=trace.NoOpTracerProvider())
    with recorder.span("outer") as outer, recorder.span("inner") as inner:
        pass
    assert inner.parent_id == outer.span_id
    recorder.close()
    assert recorder.store.count() == 2
    Join(True).finish(outer)  # not one of its own


class Collector(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.caught.append((self.path, self.headers, body))  # type: ignore[attr-defined]
        status = self.server.status  # type: ignore[attr-defined]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b"too much" if status != 200 else b"")

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def collector() -> Iterator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), Collector)
    server.caught, server.status = [], 200  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("protobuf", [True, False])
def test_traces_are_sent_to_an_endpoint(collector: HTTPServer, protobuf: bool) -> None:
    spans = [full(), *randoms(20)]
    url = f"http://127.0.0.1:{collector.server_port}"
    assert send_otlp([spans], url, headers={"X-Key": "k"}, protobuf=protobuf, batch=8) == 21
    caught = collector.caught  # type: ignore[attr-defined]
    assert [path for path, _, _ in caught] == ["/v1/traces"] * 3
    assert {headers["X-Key"] for _, headers, _ in caught} == {"k"}
    read = read_protobuf if protobuf else lambda body: read_request(json.loads(body))
    assert [span.span_id for _, _, body in caught for span in read(body)] == [span.span_id for span in spans]


def test_an_endpoint_that_refuses_or_is_not_there(collector: HTTPServer) -> None:
    collector.status = 413  # type: ignore[attr-defined]
    with pytest.raises(TraceError, match="413: too much"):
        send_otlp([[full()]], f"http://127.0.0.1:{collector.server_port}/some/path", protobuf=False)
    with pytest.raises(TraceError, match="cannot be reached"):
        send_otlp([[full()]], "http://127.0.0.1:9", timeout_s=5)
    for wrong in ("file:///etc/passwd", "localhost:4318", "http://"):
        with pytest.raises(UsageError, match="URL"):
            send_otlp([[full()]], wrong)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    from agent_forge.errors import MissingExtraError

    monkeypatch.setitem(sys.modules, "opentelemetry.proto.collector.trace.v1.trace_service_pb2", None)
    with pytest.raises(MissingExtraError, match=r"\[otel\]"):
        read_protobuf(b"\xff")  # not of the ordinary kind: C leaves it to the package
    monkeypatch.delitem(sys.modules, "agent_forge.traces.otel")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(MissingExtraError, match=r"\[otel\]"):
        Recorder(tmp_path, join=True)
