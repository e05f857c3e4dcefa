"""The intake of traces: what real exporters send, what broken ones send, and what happens when it is too much."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent_forge.errors import TraceError
from agent_forge.server.intake import TraceRequest, intake_of, unpack
from agent_forge.traces import Span
from agent_forge.traces.otlp import write_request
from agent_forge.traces.otlp_protobuf import write_protobuf
from agent_forge.traces.recorder import new_span_id, new_trace_id
from agent_forge.traces.rows import to_rows

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed: the extra `otel` brings it")

PROTOBUF, JSON = "application/x-protobuf", "application/json"
FIXTURES = Path(__file__).parents[1] / "traces" / "fixtures" / "otlp"


def some_spans(count: int = 3) -> list[Span]:
    trace = new_trace_id()
    made = [Span(trace, new_span_id(), f"step {n}", "tool", None, 10 + n, 20 + n, "ok") for n in range(count)]
    for span in made:
        span.inputs = {"question": "otters?"}
    return made


def post(server: Any, body: bytes, kind: str = PROTOBUF, **headers: str) -> Any:
    with server.client() as client:
        return client.post("/v1/traces", content=body, headers={"Content-Type": kind, **headers})


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", [PROTOBUF, JSON])
def test_spans_are_on_disk_when_it_answers(plain: Any, kind: str, packed: bool) -> None:
    spans = some_spans()
    body = write_protobuf(spans) if kind == PROTOBUF else json.dumps(write_request(spans)).encode()
    headers = {"Content-Encoding": "gzip"} if packed else {}
    answer = post(plain, gzip.compress(body) if packed else body, kind, **headers)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == kind
    assert answer.content == (b"" if kind == PROTOBUF else b'{"partialSuccess":{}}')
    stored = plain.context.traces.trace(spans[0].trace_id)
    assert [span.name for span in stored] == ["step 0", "step 1", "step 2"]
    assert stored[0].inputs == {"question": "otters?"}


def test_a_client_of_agent_lightning_keeps_its_rollout_and_its_steps(plain: Any) -> None:
    """Its exporter names rollout and attempt in the resource; rewards are annotations after what they judge."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    from agent_forge.traces import Store
    from agent_forge.traces.lightning import step_rewards

    ids = {"agentlightning.rollout_id": "ro-17", "agentlightning.attempt_id": "at-1"}
    provider = TracerProvider(resource=Resource.create(ids))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=f"{plain.url}/v1/traces")))
    tracer = provider.get_tracer("agentlightning")
    call = {"gen_ai.operation.name": "chat", "prompt_token_ids": [1, 2], "response_token_ids": [3]}
    with tracer.start_as_current_span("agent") as outer:
        for value in (0.25, 1.0):
            with tracer.start_as_current_span("openai.chat.completion", attributes=call):
                pass
            reward = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": value}
            with tracer.start_as_current_span("agentlightning.annotation", attributes=reward):
                pass
    provider.shutdown()
    with Store.open(plain.context.home) as store:  # another reader: what the server said it has is on disk
        spans = list(store.trace(f"{outer.get_span_context().trace_id:032x}"))
        assert {span.trace_id for span in store.search(session="ro-17", limit=99)} == {spans[0].trace_id}
    assert sorted(step_rewards(spans).values()) == [0.25, 1.0]
    calls = [span for span in spans if span.kind == "model"]
    assert [(span.prompt_ids, span.output_ids) for span in calls] == [([1, 2], [3])] * 2
    assert {span.resource["agentlightning.attempt_id"] for span in spans if span.resource} == {"at-1"}


def test_the_sdk_exports_into_it(plain: Any) -> None:
    """The exporter of the OpenTelemetry SDK itself, gzipped protobuf, nested spans with an error."""
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": "shop"}))
    exporter = OTLPSpanExporter(endpoint=f"{plain.url}/v1/traces", compression=Compression.Gzip)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer = provider.get_tracer("shop")
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "small", "gen_ai.usage.input_tokens": 7}
    with tracer.start_as_current_span("order") as outer:
        trace_id = f"{outer.get_span_context().trace_id:032x}"
        with tracer.start_as_current_span("chat small", attributes=attributes):
            pass
        with pytest.raises(ValueError, match="sold out"), tracer.start_as_current_span("pay"):
            raise ValueError("sold out")
    assert provider.force_flush()
    provider.shutdown()
    stored = {span.name: span for span in plain.context.traces.trace(trace_id)}
    assert set(stored) == {"order", "chat small", "pay"}
    assert stored["chat small"].parent_id == stored["order"].span_id
    assert (stored["chat small"].kind, stored["chat small"].model, stored["chat small"].input_tokens) == (
        "model",
        "small",
        7,
    )
    assert stored["pay"].status == "error"
    assert stored["order"].resource["service.name"] == "shop"


@pytest.mark.parametrize("name", ["openinference-langchain", "openinference-openai", "openllmetry-openai"])
def test_what_instrumented_frameworks_sent_is_taken(plain: Any, name: str) -> None:
    """PhaseSeries from LangChain and OpenAI programs under OpenInference and OpenLLMetry."""
    text = (FIXTURES / f"{name}.json").read_text()
    requests = [line for line in text.splitlines() if line.strip()] if text.count("\n{") else [text]
    before = plain.context.traces.count()
    for request in requests:
        assert post(plain, request.encode(), JSON).status_code == 200
    assert plain.context.traces.count() > before


AGENT = Path(__file__).with_name("server_langgraph_agent.py")


def test_an_instrumented_agent_runs_against_the_server(live: Any) -> None:
    """A LangGraph agent that asks our model through LangChain's OpenAI client, traced by OpenInference, live."""
    python = os.environ.get("AGENT_FORGE_LANGGRAPH_PYTHON", sys.executable)
    needs = "import langgraph, langchain_openai, openinference.instrumentation.langchain"
    if subprocess.run([python, "-c", needs], capture_output=True, check=False).returncode:
        pytest.skip(
            "LangGraph and OpenInference are not installed: name an environment with langgraph, langchain-openai and"
            " openinference-instrumentation-langchain in AGENT_FORGE_LANGGRAPH_PYTHON"
        )
    ran = subprocess.run([python, str(AGENT), live.url], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    spans = live.context.traces.trace(ran.stdout.split()[-1])
    assert {"conversation", "LangGraph", "ask", "ChatOpenAI"} <= {span.name for span in spans}
    model = next(span for span in spans if span.kind == "model")
    assert model.input_tokens > 0
    assert model.output_tokens == 12
    assert len({span.trace_id for span in spans}) == 1


BROKEN = [
    (b"garbage", PROTOBUF, {}, 400, "not an OTLP trace request"),
    (b"\x0a\xff\xff\xff\xff\x7f", PROTOBUF, {}, 400, "not an OTLP trace request"),
    (b"\x0a\x03\x12\x01\x0a", PROTOBUF, {}, 400, "not an OTLP trace request"),
    (b"not json", JSON, {}, 400, "not JSON"),
    (b"[]", JSON, {}, 400, "not an OTLP trace request"),
    (b'{"resourceSpans": 7}', JSON, {}, 400, "not a list"),
    (b'{"resourceSpans": [7]}', JSON, {}, 400, ""),
    (b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "zz"}]}]}]}', JSON, {}, 400, ""),
    (b'{"a":' * 50_000, JSON, {}, 400, ""),
    (b"\x1f\x8b junk", PROTOBUF, {"Content-Encoding": "gzip"}, 400, "cannot be unpacked"),
    (gzip.compress(b"x" * 1000, mtime=0)[:20], PROTOBUF, {"Content-Encoding": "gzip"}, 400, "its end is missing"),
    (b"", PROTOBUF, {"Content-Encoding": "br"}, 415, "Send gzip"),
    (b"<xml/>", "text/xml", {}, 415, "Send application/x-protobuf"),
]


@pytest.mark.parametrize(("body", "kind", "headers", "status", "says"), BROKEN)
def test_a_broken_request_is_told_so(
    plain: Any, body: bytes, kind: str, headers: dict[str, str], status: int, says: str
) -> None:
    before = plain.context.traces.count()
    answer = post(plain, body, kind, **headers)
    assert answer.status_code == status
    if kind == PROTOBUF:  # a google.rpc.Status: the code in field 1, the message in field 2
        assert answer.content[:1] == b"\x08"
        assert says.encode() in answer.content
    else:
        assert says in answer.json()["message"]
        assert answer.json()["code"] in (3, 8)
    assert plain.context.traces.count() == before


def test_good_spans_are_stored_beside_bad_ones_which_are_counted(plain: Any) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
        ExportTraceServiceRequest,
        ExportTraceServiceResponse,
    )

    for kind in (PROTOBUF, JSON):
        spans = some_spans()
        document = write_request(spans)
        group = document["resourceSpans"][0]["scopeSpans"][0]["spans"]
        if kind == JSON:
            group[0]["traceId"], group[1]["startTimeUnixNano"] = "zz", "soon"
            answer = post(plain, json.dumps(document).encode(), kind)
            success = answer.json()["partialSuccess"]
            rejected, why = int(success["rejectedSpans"]), success["errorMessage"]
        else:
            request = ExportTraceServiceRequest.FromString(write_protobuf(spans))
            request.resource_spans[0].scope_spans[0].spans[0].trace_id = b"zz"
            request.resource_spans[0].scope_spans[0].spans[1].start_time_unix_nano = 2**64 - 1
            answer = post(plain, request.SerializeToString(), kind)
            partial_success = ExportTraceServiceResponse.FromString(answer.content).partial_success
            rejected, why = partial_success.rejected_spans, partial_success.error_message
        assert (answer.status_code, rejected) == (200, 2)
        assert "(1 more)" in why
        assert [span.span_id for span in plain.context.traces.trace(spans[2].trace_id)] == [spans[2].span_id]


@pytest.mark.parametrize("at", ["span", "resource", "scope"])
def test_a_fault_costs_no_more_than_the_spans_it_is_in(plain: Any, at: str) -> None:
    """An all-zero trace id costs its span; an attribute without a key costs the spans of its resource or scope."""
    good, bad = some_spans(1), some_spans(2)
    document = {"resourceSpans": [write_request(spans)["resourceSpans"][0] for spans in (bad, good)]}
    group = document["resourceSpans"][0]
    nameless = {"attributes": [{"value": {"intValue": "1"}}]}
    if at == "span":
        for span in group["scopeSpans"][0]["spans"]:
            span["traceId"] = "0" * 32
    else:
        (group if at == "resource" else group["scopeSpans"][0])[at] = nameless
    answer = post(plain, json.dumps(document).encode(), JSON)
    assert answer.status_code == 200
    success = answer.json()["partialSuccess"]
    assert success["rejectedSpans"] == "2"
    assert f"the {at}" in success["errorMessage"]
    assert len(plain.context.traces.trace(good[0].trace_id)) == 1
    assert plain.context.traces.trace(bad[0].trace_id) == []


def test_a_request_that_is_all_bad_is_refused(plain: Any) -> None:
    document = write_request(some_spans(2))
    document["resourceSpans"][0]["resource"] = {"attributes": [{"value": {}}]}
    answer = post(plain, json.dumps(document).encode(), JSON)
    assert answer.status_code == 400
    assert "the resource has no 'key'" in answer.json()["message"]


def test_a_status_in_protobuf_can_be_read(plain: Any) -> None:
    status = pytest.importorskip("google.rpc.status_pb2", reason="googleapis-common-protos is not installed")
    found = status.Status.FromString(post(plain, b"garbage").content)
    assert found.code == 3
    assert "not an OTLP trace request" in found.message


def test_one_bad_request_does_not_spoil_those_beside_it(plain: Any) -> None:
    """They are stored in one transaction; the one at fault is found and the others are kept."""
    good, bad = some_spans(), some_spans()
    bad[1].input_tokens = 2**70  # no database takes it
    outcomes: dict[str, Any] = {}
    parcels = [
        TraceRequest(b"", PROTOBUF, "identity", partial(outcomes.__setitem__, name), to_rows(spans))
        for name, spans in (("good", good), ("bad", bad))
    ]
    intake_of(plain.context)._write(parcels)
    assert outcomes["good"] is None
    assert isinstance(outcomes["bad"], TraceError)
    assert len(plain.context.traces.trace(good[0].trace_id)) == 3
    assert plain.context.traces.trace(bad[0].trace_id) == []
    body = json.dumps(write_request(bad)).encode()
    assert post(plain, body.replace(str(2**70).encode(), b"1" + b"0" * 25), JSON).status_code in (200, 400)


def test_when_the_store_is_slow_senders_wait_and_nothing_is_lost(start_server: Callable[..., Any]) -> None:
    """Another holds the database: requests pile up to the limit, then 429 and Retry-After; after it, all pass."""
    import sqlite3

    server = start_server(bodies_in_memory=2_000)
    post(server, write_protobuf(some_spans(1)))
    holding = sqlite3.connect(server.context.home / "traces.db", isolation_level=None)
    holding.execute("BEGIN IMMEDIATE")
    sent = [some_spans(4) for _ in range(12)]
    answers: list[list[int]] = [[] for _ in sent]

    def send(place: int) -> None:  # as exporters do: again, until it is taken
        while not answers[place] or answers[place][-1] == 429:
            answer = post(server, write_protobuf(sent[place]))
            answers[place].append(answer.status_code)
            if answer.status_code == 429:
                assert answer.headers["retry-after"] == "1"
                time.sleep(0.1)

    threads = [threading.Thread(target=send, args=(place,)) for place in range(len(sent))]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 20
    while not any(429 in codes for codes in list(answers)) and time.monotonic() < end:
        time.sleep(0.02)
    holding.execute("ROLLBACK")
    holding.close()
    for thread in threads:
        thread.join(timeout=60)
    assert any(429 in codes for codes in answers)
    assert [codes[-1] for codes in answers] == [200] * len(sent)
    assert all(len(server.context.traces.trace(spans[0].trace_id)) == 4 for spans in sent)
    assert server.context.parts["intake"].held == 0


def test_a_store_that_cannot_be_written_is_unavailable(start_server: Callable[..., Any]) -> None:
    server = start_server()
    post(server, write_protobuf(some_spans(1)))
    server.context.traces.close()
    place = server.context.home / "traces.db"
    for file in server.context.home.glob("traces.db*"):
        file.unlink()
    place.mkdir()
    answer = post(server, write_protobuf(some_spans(1)))
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "5"


@pytest.mark.parametrize("kind", [PROTOBUF, JSON])
@pytest.mark.parametrize(
    ("mask", "kept"), [(None, {b"corp.io"}), ("pii", set()), ("none", {b"corp.io", b"ghp_", b"hunter2"})]
)
def test_what_comes_in_is_masked_before_it_is_written(
    start_server: Callable[..., Any], kind: str, mask: str | None, kept: set[bytes]
) -> None:
    """No byte of a secret is in any file of the home folder; without a mask (the control) all are."""
    server = start_server(mask=mask)
    spans = some_spans(2)
    spans[0].name = "clone ghp_0123456789abcdefghijABCDEFGHIJ012345"
    spans[0].error, spans[0].status = "x://a:hunter2@b refused", "error"
    spans[1].inputs = {"password": "hunter2", "to": "jo@corp.io"}
    spans[1].resource = {"db.url": "postgresql://me:hunter2@db/x"}
    body = write_protobuf(spans) if kind == PROTOBUF else json.dumps(write_request(spans)).encode()
    assert post(server, body, kind).status_code == 200
    assert len(server.context.traces.trace(spans[0].trace_id)) == 2
    everything = b"".join(path.read_bytes() for path in server.context.home.rglob("*") if path.is_file())
    assert {canary for canary in (b"ghp_", b"hunter2", b"corp.io") if canary in everything} == kept


def test_those_who_look_on_are_told(plain: Any) -> None:
    import asyncio

    async def look() -> Any:
        with plain.context.hub.subscribe("traces") as news:
            spans = some_spans(2)
            await asyncio.to_thread(post, plain, write_protobuf(spans))
            return spans[0].trace_id, await news.next(20)

    trace, event = asyncio.run(look())
    assert event == {"topic": "traces", "kind": "stored", "spans": 2, "traces": [trace]}


def test_many_small_members_cost_no_more_than_their_number() -> None:
    """Copying what is left after each member made 16 MB of empty ones minutes of work."""

    def cost(members: int) -> float:
        body, spent = gzip.compress(b"") * members, []
        for _ in range(3):
            began = time.process_time()
            assert unpack(body, 10) == b""
            spent.append(time.process_time() - began)
        return min(spent)

    assert cost(16_000) < 8 * cost(4_000)  # 4 if it is linear, 16 if it is quadratic


def test_unpacking_stops_at_the_limit() -> None:
    assert unpack(gzip.compress(b"abc"), 3) == b"abc"
    with pytest.raises(Exception, match="more than") as refused:
        unpack(gzip.compress(b"\0" * 10_000_000), 1000)
    assert refused.value.status == 413
    assert unpack(gzip.compress(b"abc") + gzip.compress(b"def"), 6) == b"abcdef"
    with pytest.raises(Exception, match="more than"):
        unpack(gzip.compress(b"abc") + gzip.compress(b"def"), 5)
    with pytest.raises(TraceError):
        unpack(gzip.compress(b"abc") + b"more", 100)


def test_a_request_without_spans_is_a_request(plain: Any) -> None:
    assert post(plain, b"", PROTOBUF).status_code == 200
    assert post(plain, b" {} ", JSON).status_code == 200
