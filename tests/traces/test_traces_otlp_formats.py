"""The same request in protobuf and in JSON gives the same spans. Protobuf's own JSON writer is the reference."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from pathlib import Path
from pprint import pformat
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_spans import randoms

from agent_forge.errors import TraceError
from agent_forge.traces import Span, Store, rows, write_request
from agent_forge.traces.conventions import FIELD_RULES, KIND_OF, NAMES
from agent_forge.traces.otlp import read_json, read_json_rows
from agent_forge.traces.otlp_protobuf import read_protobuf, read_protobuf_rows, write_protobuf

pb = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
json_format = pytest.importorskip("google.protobuf.json_format")
FIXTURES = sorted((Path(__file__).parent / "fixtures" / "otlp").glob("*.pb"))
QUIET = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])

scalars = st.one_of(
    st.text(max_size=8), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.binary(max_size=6), st.none()
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1, max_size=4), inner, max_size=3),
    max_leaves=6,
)
names = st.one_of(st.text(min_size=1, max_size=6), st.sampled_from([*FIELD_RULES, *KIND_OF]))
attributes = st.dictionaries(
    names, values | st.sampled_from([v for kinds in KIND_OF.values() for v in kinds]), max_size=8
)


def put_value(target: Any, value: Any) -> None:
    kinds = {str: "string_value", bool: "bool_value", int: "int_value", float: "double_value", bytes: "bytes_value"}
    if type(value) in kinds:
        setattr(target, kinds[type(value)], value)
    elif isinstance(value, list):
        target.array_value.SetInParent()
        for item in value:
            put_value(target.array_value.values.add(), item)
    elif isinstance(value, dict):
        target.kvlist_value.SetInParent()
        put_pairs(target.kvlist_value.values, value)


def put_pairs(target: Any, pairs: dict[str, Any]) -> None:
    for key, value in pairs.items():
        pair = target.add()
        pair.key = key
        put_value(pair.value, value)


@st.composite
def requests(draw: Any) -> Any:
    """Requests with every field, also with times, states and ids that are refused."""
    request = pb.ExportTraceServiceRequest()
    group = request.resource_spans.add(schema_url=draw(st.sampled_from(["", "https://a"])))
    put_pairs(group.resource.attributes, draw(attributes))
    part = group.scope_spans.add(schema_url=draw(st.sampled_from(["", "https://b"])))
    part.scope.name, part.scope.version = draw(st.text(max_size=4)), draw(st.text(max_size=2))
    part.scope.dropped_attributes_count = draw(st.sampled_from([0, 3]))
    put_pairs(part.scope.attributes, draw(attributes))
    for _ in range(draw(st.integers(0, 3))):
        span = part.spans.add(name=draw(st.text(max_size=5)), kind=draw(st.integers(0, 5)))
        span.trace_id = draw(st.binary(min_size=16, max_size=16) | st.binary(min_size=17, max_size=17))
        span.span_id = draw(st.binary(min_size=8, max_size=8).filter(any))
        span.parent_span_id = draw(st.sampled_from([b"", b"12345678"]))
        span.start_time_unix_nano = draw(st.integers(0, 2**63))
        span.end_time_unix_nano = draw(st.sampled_from([0, 1, 2**62, 2**63]))
        span.trace_state, span.flags = draw(st.sampled_from(["", "a=b"])), draw(st.sampled_from([0, 257]))
        span.dropped_events_count = draw(st.sampled_from([0, 2**32 - 1]))
        span.status.code, span.status.message = draw(st.integers(0, 2)), draw(st.sampled_from(["", "oh"]))
        put_pairs(span.attributes, draw(attributes))
        if draw(st.booleans()):
            event = span.events.add(name=draw(st.text(max_size=4)), time_unix_nano=draw(st.integers(0, 2**64 - 1)))
            put_pairs(event.attributes, draw(attributes))
        if draw(st.booleans()):
            span.links.add(trace_id=draw(st.binary(min_size=16, max_size=16).filter(any)), span_id=b"abcdefgh",
                           trace_state=draw(st.sampled_from(["", "c=d"])))  # fmt: skip
    return request


def written(spans: Any) -> str:
    """As text, because NaN equals nothing; keys sorted, because in a set of attributes their order says nothing."""
    return pformat([asdict(span) for span in spans])


def read_or_refusal(read: Any, data: bytes) -> str:
    try:
        return written(read(data))
    except TraceError:
        return "refused"


@given(requests())
@QUIET
def test_random_requests_say_the_same_in_both_formats(request: Any) -> None:
    text = json_format.MessageToJson(request).encode()
    assert read_or_refusal(read_protobuf, request.SerializeToString()) == read_or_refusal(
        lambda data: read_json(data) if request.resource_spans else [], text
    )


def test_damaged_protobuf_is_read_or_refused() -> None:
    rng, read = random.Random(5), 0
    originals = [file.read_bytes() for file in FIXTURES] + [write_protobuf(randoms(20))]
    for _ in range(1000):
        data = bytearray(rng.choice(originals)[: rng.choice([60, 400, 10**9])])
        for _ in range(rng.randrange(4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        read += read_or_refusal(read_protobuf, bytes(data)) != "refused"
    assert read > 50


# Sessions and agents, which are not told by the span's attributes alone

AROUND = (*NAMES["session"], "user.id")
TOLD = (*NAMES["session"], *NAMES["agent"])
told_values = st.sampled_from(["", "s", "caf\u00e9 \U0001f600", "nul \0", 7, True, 1.5, ["s"], {"k": "s"}])
around = st.dictionaries(st.sampled_from(AROUND), told_values, max_size=2)
kind_told = st.sampled_from(
    [{}, {"openinference.span.kind": "AGENT"}, {"openinference.span.kind": "LLM"}, {"traceloop.span.kind": "agent"},
     {"gen_ai.operation.name": "invoke_agent"}, {"gen_ai.operation.name": "create_agent"},
     {"gen_ai.operation.name": "chat"}, {"agent_forge.kind": "agent"},
     {"gen_ai.operation.name": "?", "traceloop.span.kind": "agent"},
     {"agent_forge.kind": "agent", "openinference.span.kind": "AGENT"},
     {"openinference.span.kind": "LLM", "llm.invocation_parameters": '{"model": "m"}'},
     {"llm.invocation_parameters": "{}", "gen_ai.request.model": "m", "gen_ai.operation.name": "chat"},
     {"embedding.invocation_parameters": '{"model_name": "\\ud800"}', "openinference.span.kind": "EMBEDDING"}]
)  # fmt: skip
span_names = st.sampled_from(
    ["", "run", "invoke_agent", "invoke_agent ", "invoke_agent Max", "create_agent \u00e9", "Max.agent", ".agent", "\0"]
)
some_spans = st.lists(
    st.tuples(span_names, kind_told, st.dictionaries(st.sampled_from(TOLD), told_values, max_size=2)), max_size=3
)


@st.composite
def placements(draw: Any) -> Any:
    """A request whose sessions, agents and kinds stand on spans, scopes and resources."""
    request, number = pb.ExportTraceServiceRequest(), 0
    for _ in range(draw(st.integers(1, 2))):
        group = request.resource_spans.add()
        put_pairs(group.resource.attributes, draw(around))
        for _ in range(draw(st.integers(1, 2))):
            part = group.scope_spans.add()
            put_pairs(part.scope.attributes, draw(around))
            for name, kind, pairs in draw(some_spans):
                number += 1
                span = part.spans.add(name=name, trace_id=b"t" * 16, span_id=b"%08d" % number)
                put_pairs(span.attributes, kind | pairs)
    return request


def stored(spans: list[Span] | None = None, rows_read: list[Any] | None = None) -> list[Any]:
    """The columns that hold fields, and the sums by agent, of spans or of rows."""
    with Store.open(":memory:") as store:
        store.add_rows(rows.to_rows(spans or []) if rows_read is None else rows_read)
        columns = ", ".join((*rows.PLAIN, "attributes"))
        fields = store._fetch(f"SELECT {columns} FROM spans ORDER BY span_id", [])
        return [*fields, sorted((group.group, group.spans) for group in store.aggregate(["agent", "kind"]))]


@given(request=placements(), late=st.booleans())
@settings(QUIET, max_examples=25)
def test_sessions_and_agents_are_told_alike_in_both_formats(request: Any, late: bool) -> None:
    """Whatever comes first in JSON; also in the rows that are stored."""
    data = request.SerializeToString()
    document = json.loads(json.dumps(write_request(read_protobuf(data))))
    if late:
        for group in document["resourceSpans"]:
            group["scopeSpans"] = [dict(reversed(part.items())) for part in group["scopeSpans"]]
        document["resourceSpans"] = [dict(reversed(group.items())) for group in document["resourceSpans"]]
    spans, text = read_protobuf(data), json.dumps(document).encode()
    by_id = {span.span_id: span for span in read_json(text)}
    assert written(by_id[span.span_id] for span in spans) == written(spans)
    assert stored(rows_read=read_protobuf_rows(data)) == stored(rows_read=read_json_rows(text)) == stored(spans)
