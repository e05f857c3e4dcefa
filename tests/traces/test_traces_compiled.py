"""The C readers and writers against their twins in Python, on real exports, random messages and damaged ones."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from pprint import pformat
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_spans import full, make, randoms

from agent_forge import native
from agent_forge.errors import TraceError
from agent_forge.traces import Span, Store, otlp_native, otlp_protobuf, rows
from agent_forge.traces.compiled import function, no_collection
from agent_forge.traces.conventions import ASKED, FIELD_RULES, KIND_OF, NAMES, complete, read_value
from agent_forge.traces.otlp import read_json, read_request, write_request
from agent_forge.traces.otlp_protobuf import read_protobuf, write_protobuf
from agent_forge.traces.packed import Packed, plain_spans

pb = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
FIXTURES = sorted((Path(__file__).parent / "fixtures" / "otlp").glob("*.pb"))
QUIET = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


Read = Callable[[bytes], Any]


@pytest.fixture(scope="module")
def decode() -> Read:
    return plain_reader(otlp_native.protobuf_reader())


@pytest.fixture(scope="module")
def decode_json() -> Read:
    return plain_reader(otlp_native.json_reader())


def plain_reader(read: Read | None) -> Read:
    """A C reader that gives ordinary spans."""
    if read is None:
        pytest.skip("there is no C compiler, or no header files of Python")

    def spans_of(data: bytes) -> list[Span] | None:
        found = read(data)
        return None if found is None else [complete(span) for span in plain_spans(found)]

    return spans_of


def in_python(data: bytes) -> list[Span] | None:
    try:
        return [complete(span) for span in otlp_protobuf._read(data)]
    except TraceError:
        return None


@pytest.mark.parametrize("file", FIXTURES, ids=lambda file: file.stem)
def test_real_exports_are_read_alike(file: Path, decode: Read) -> None:
    data = file.read_bytes()
    found = decode(data)
    assert found == in_python(data)
    packed = otlp_native.protobuf_reader()(data)  # type: ignore[misc]
    ordinary = [type(span) is Packed for span in packed]  # only calls that no model answered are left to Python
    assert ordinary == [
        span.attributes.keys().isdisjoint(ASKED) or "llm.model_name" in span.attributes for span in packed
    ]


scalars = st.one_of(
    st.text(max_size=8), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.binary(max_size=6), st.none()
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
names = st.one_of(st.text(max_size=6), st.sampled_from([*FIELD_RULES, *KIND_OF]))
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
def requests(draw: Any) -> bytes:
    """Requests with every field, also with times, kinds, states and ids that are refused."""
    request = pb.ExportTraceServiceRequest()
    group = request.resource_spans.add(schema_url=draw(st.sampled_from(["", "https://a"])))
    put_pairs(group.resource.attributes, draw(attributes))
    part = group.scope_spans.add(schema_url=draw(st.sampled_from(["", "https://b"])))
    part.scope.name, part.scope.version = draw(st.text(max_size=4)), draw(st.text(max_size=2))
    part.scope.dropped_attributes_count = draw(st.sampled_from([0, 3]))
    put_pairs(part.scope.attributes, draw(attributes))
    for _ in range(draw(st.integers(0, 3))):
        span = part.spans.add(name=draw(st.text(max_size=5)), kind=draw(st.integers(0, 5)))
        span.trace_id = draw(st.binary(min_size=16, max_size=16) | st.binary(max_size=17))
        span.span_id = draw(st.binary(min_size=8, max_size=8))
        span.parent_span_id = draw(st.sampled_from([b"", bytes(8), b"12345678", b"123"]))
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
            span.links.add(trace_id=draw(st.binary(min_size=16, max_size=16)), span_id=b"abcdefgh",
                           trace_state=draw(st.sampled_from(["", "c=d"])))  # fmt: skip
    encoded: bytes = request.SerializeToString()
    return encoded


def written(spans: Any) -> str:
    """As text, because NaN equals nothing; keys sorted, because in a set of attributes their order says nothing."""
    return pformat([asdict(span) for span in spans])


@given(data=requests())
@QUIET
def test_random_requests_are_read_alike_or_left_to_python(data: bytes, decode: Any) -> None:
    found = decode(data)
    if found is not None:
        assert written(found) == written(in_python(data))


def test_damaged_requests_are_read_alike_or_left_to_python(decode: Any) -> None:
    rng, read = random.Random(5), 0
    originals = [file.read_bytes() for file in FIXTURES] + [write_protobuf(randoms(20))]
    for _ in range(3000):
        data = bytearray(rng.choice(originals)[: rng.choice([60, 400, 10**9])])
        for _ in range(rng.randrange(4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        found = decode(bytes(data[: rng.randrange(len(data) + 1)] if rng.random() < 0.3 else data))
        if found is not None:
            read += 1
            for span in found:
                assert len(span.trace_id) == 32
    for _ in range(300):  # few enough to ask Python as well
        data = bytearray(rng.choice(originals))
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        found = decode(bytes(data))
        assert found is None or written(found) == written(in_python(bytes(data)))
    assert read > 100  # it is no test of refusals alone


def test_deep_values_are_read_by_python(decode: Read) -> None:
    value: Any = 1
    for _ in range(43):
        value = [value]
    request = pb.ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    for attributes in ({"plain": 1}, {"deep": value}):
        span = spans.add(trace_id=b"1" * 16, span_id=b"2" * 8)
        put_pairs(span.attributes, attributes)
    found = otlp_native.protobuf_reader()(request.SerializeToString())  # type: ignore[misc]
    assert [type(span) for span in found] == [Packed, Span]
    assert found[1].attributes == {"deep": value}


def test_without_c_the_same_spans(monkeypatch: pytest.MonkeyPatch, decode: Read) -> None:
    data, text = FIXTURES[0].read_bytes(), FIXTURES[0].with_suffix(".json").read_bytes()
    quick, quick_json = read_protobuf(data), read_json(text)
    monkeypatch.setattr(otlp_protobuf, "protobuf_reader", lambda: None)
    monkeypatch.setattr(otlp_native, "json_reader", lambda: None)
    assert read_protobuf(data) == quick
    assert read_json(text) == quick_json
    assert {type(span) for span in [*quick, *quick_json]} == {Span}


def test_a_compiler_that_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.SWITCH, "0")
    assert function("otlp_rows.c", "from_json", 2) is None
    for reader in (otlp_native.protobuf_reader, otlp_native.json_reader, otlp_native.numberer):
        reader.cache_clear()
        assert reader() is None
        reader.cache_clear()


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
            for name, kind, found in draw(some_spans):
                number += 1
                span = part.spans.add(name=name, trace_id=b"t" * 16, span_id=b"%08d" % number)
                put_pairs(span.attributes, kind | found)
    return request


def stored(spans: list[Span]) -> list[Any]:
    """The columns that hold fields, and the sums by agent."""
    with Store.open(":memory:") as store:
        store.add(spans)
        columns = ", ".join((*rows.PLAIN, "attributes"))
        found = store._fetch(f"SELECT {columns} FROM spans ORDER BY span_id", [])
        return [*found, sorted((group.group, group.spans) for group in store.aggregate(["agent", "kind"]))]


@given(request=placements(), late=st.booleans())
@settings(QUIET, max_examples=50)
def test_sessions_and_agents_are_told_alike_by_all_readers(request: Any, late: bool, decode: Read) -> None:
    """Both formats, with and without C, whatever comes first in JSON; also the rows that are stored."""
    data = request.SerializeToString()
    document = json.loads(json.dumps(write_request(otlp_protobuf._read(data))))
    if late:
        for group in document["resourceSpans"]:
            group["scopeSpans"] = [dict(reversed(part.items())) for part in group["scopeSpans"]]
        document["resourceSpans"] = [dict(reversed(group.items())) for group in document["resourceSpans"]]
    wanted = in_python(data)
    assert wanted is not None
    text = json.dumps(document).encode()
    assert written(decode(data)) == written(wanted)
    by_id = {span.span_id: span for span in read_json(text)}
    assert written(by_id[span.span_id] for span in wanted) == written(wanted)
    assert written(read_request(document)) == written(read_json(text))
    kept = stored(wanted)
    assert stored(read_protobuf(data, whole=False)) == kept
    assert stored(read_json(text, whole=False)) == kept


# JSON

PLAIN_SPAN = {"traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "b7ad6b7169203331", "name": "chat"}
ODD_FIELDS: list[dict[str, Any]] = [
    {},
    {"kind": 3, "startTimeUnixNano": "12", "endTimeUnixNano": 15, "parentSpanId": "", "events": [], "links": []},
    {"kind": "SPAN_KIND_CLIENT", "startTimeUnixNano": None, "endTimeUnixNano": ""},
    {"startTimeUnixNano": str(2**63)},
    {"startTimeUnixNano": "9" * 19, "endTimeUnixNano": -1},
    {"startTimeUnixNano": "\u0661\u0662", "endTimeUnixNano": " 7 "},
    {"parentSpanId": "0" * 16},
    {"parentSpanId": "B7AD6B7169203331", "flags": 257, "traceState": "a=b"},
    {"parentSpanId": "b7ad"},
    {"traceId": "0" * 32},
    {"spanId": "b7ad6b716920333x"},
    {"spanId": 7},
    {"name": None},
    {"status": {"code": 2, "message": "no"}},
    {"status": {"code": 1, "message": "well"}},
    {"status": {"code": "STATUS_CODE_ERROR"}},
    {"status": {"code": 3}},
    {"status": {}},
    {"status": []},
    {"kind": -1},
    {"kind": 2**31},
    {"kind": True},
    {"attributes": [{"key": "a", "value": {}}, {"key": "b"}, {"key": "a", "value": {"stringValue": "x"}}]},
    {"attributes": [{"key": "i", "value": {"intValue": "-5"}}, {"key": "j", "value": {"intValue": 2**70}}]},
    {"attributes": [{"key": "d", "value": {"doubleValue": "NaN"}}, {"key": "e", "value": {"doubleValue": 1}}]},
    {"attributes": [{"key": "t", "value": {"boolValue": "true"}}, {"key": "n", "value": {"int_value": "4"}}]},
    {"attributes": [{"key": "l", "value": {"arrayValue": {"values": [{"intValue": "1"}, {"kvlistValue": {}}]}}}]},
    {"attributes": [{"key": "gen_ai.usage.input_tokens", "value": {"stringValue": "12"}},
                    {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}]},
    {"attributes": [{"key": "s", "value": {"stringValue": 5}}]},
    {"attributes": [{"key": 1, "value": {"stringValue": "x"}}]},
    {"attributes": [{"value": {"stringValue": "x"}}]},
    {"attributes": {"a": 1}},
    {"attributes": ["a"]},
    {"attributes": None},
    {"events": [{"name": "e", "timeUnixNano": "4"}], "links": [PLAIN_SPAN]},
]  # fmt: skip


def request_of(*spans: Any, scope: Any = None, **more: Any) -> dict[str, Any]:
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "s"}}]}
    part = {"scope": {"name": "n"} if scope is None else scope, "spans": list(spans)}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [part], **more}]}


def read_or_refusal(data: bytes) -> str:
    try:
        return written(read_json(data))
    except (TraceError, ValueError, AttributeError, TypeError) as error:
        return f"refused: {type(error).__name__}: {error}"


def same_without_c(data: bytes, monkeypatch: pytest.MonkeyPatch) -> str:
    quick = read_or_refusal(data)
    with monkeypatch.context() as without:
        without.setattr(otlp_native, "json_reader", lambda: None)
        assert read_or_refusal(data) == quick
    return quick


@pytest.mark.parametrize("fields", ODD_FIELDS, ids=lambda fields: ",".join(fields) or "none")
def test_json_spans_are_read_alike(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch, decode: Read) -> None:
    same_without_c(json.dumps(request_of(PLAIN_SPAN, {**PLAIN_SPAN, **fields})).encode(), monkeypatch)


@pytest.mark.parametrize("file", FIXTURES, ids=lambda file: file.stem)
def test_real_exports_in_json_are_read_alike(file: Path, monkeypatch: pytest.MonkeyPatch, decode_json: Read) -> None:
    data = file.with_suffix(".json").read_bytes()
    assert decode_json(data)
    same_without_c(data, monkeypatch)


TEXTS = [
    b'{"a":"\\u00e9\\n\\/\\"\\\\\\u0041"}', "é \U0001f600 \u2028".encode(), b"\\ud83d\\ude00", b"lone \\ud800",
    b"\\ud83dx",
    b"nul \\u0000", b"bad \\x", b"\xff", b"raw \x01", b"tab \t", b"\\u001f\\b\\f\\r", b"cut \\u12", b"",
]  # fmt: skip


@pytest.mark.parametrize("place", ["name", "value", "key", "model"])
@pytest.mark.parametrize("number", range(len(TEXTS)))
def test_texts_in_json_are_read_alike(number: int, place: str, monkeypatch: pytest.MonkeyPatch, decode: Read) -> None:
    pairs = {"name": ("k", "v"), "value": ("k", "@"), "key": ("@", "v"), "model": ("gen_ai.request.model", "@")}
    key, value = pairs[place]
    span = {**PLAIN_SPAN, "attributes": [{"key": key, "value": {"stringValue": value}}]}
    if place == "name":
        span["name"] = "@"
    data = json.dumps(request_of(PLAIN_SPAN, span)).encode().replace(b'"@"', b'"' + TEXTS[number] + b'"')
    same_without_c(data, monkeypatch)


@pytest.mark.parametrize(
    "number", ["1", "-0", "007", "1.", "-", "1e5", "1E+2", ".5", "1e", "0.1e-3", "9223372036854775808", "1e999", "NaN"]
)
@pytest.mark.parametrize("kind", ["intValue", "doubleValue", "boolValue"])
@pytest.mark.parametrize("marks", ["", '"'], ids=["bare", "quoted"])
def test_numbers_in_json_are_read_alike(
    number: str, kind: str, marks: str, monkeypatch: pytest.MonkeyPatch, decode: Read
) -> None:
    span = {**PLAIN_SPAN, "attributes": [{"key": "gen_ai.usage.cost", "value": {kind: "@"}}]}
    data = json.dumps(request_of(span)).replace('"@"', f"{marks}{number}{marks}").encode()
    same_without_c(data, monkeypatch)


def test_what_is_around_the_spans_is_read_alike(monkeypatch: pytest.MonkeyPatch, decode_json: Read) -> None:
    usual = request_of(PLAIN_SPAN, scope={"name": "n", "version": "1", "attributes": []}, schemaUrl="https://a")
    late = {"resourceSpans": [dict(reversed(group.items())) for group in usual["resourceSpans"]]}
    for document in (
        usual, late, {"resourceSpans": []}, {"resource_spans": []}, {**usual, "more": 1}, {"resourceSpans": None}, [],
        request_of(PLAIN_SPAN, colour="red"), request_of(PLAIN_SPAN, instrumentationLibrarySpans=[]),
        {"resourceSpans": [{"scope_spans": [{"spans": [PLAIN_SPAN]}]}]}, request_of(scope=[]), request_of(scope="x"),
        request_of(None), request_of("x"), request_of([]), request_of({}),
    ):  # fmt: skip
        same_without_c(json.dumps(document).encode(), monkeypatch)
        same_without_c(json.dumps(document, indent=1).encode(), monkeypatch)
    for document in (usual, late):
        [span] = decode_json(json.dumps(document).encode())
        assert span.scope["resourceSchemaUrl"] == "https://a"


def test_damaged_json_is_read_alike(monkeypatch: pytest.MonkeyPatch, decode_json: Read) -> None:
    rng, read = random.Random(7), 0
    original = json.dumps(request_of(*json.loads(FIXTURES[0].with_suffix(".json").read_text())
                          ["resourceSpans"][0]["scopeSpans"][0]["spans"][:2])).encode()  # fmt: skip
    for number in range(400):
        data = bytearray(original[: rng.randrange(len(original))] if number % 4 == 0 else original)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.choice(b'{}[]":,\\ 0a\x00\xff')
        read += not same_without_c(bytes(data), monkeypatch).startswith("refused")
    assert read > 20


# Packed spans


def test_a_packed_span_is_made_when_it_is_looked_at(decode: Read) -> None:
    data = FIXTURES[0].read_bytes()
    first, second, third, *_ = read_protobuf(data, whole=False)
    twin = read_protobuf(data)[0]
    assert isinstance(first, Packed)
    assert first.row is not None
    assert first.trace_id == twin.trace_id
    assert first.row is not None
    assert first == twin
    assert twin == first
    assert first != second
    assert first != "x"
    assert first.row is None
    assert first.plain() == twin
    second.name = "renamed"  # type: ignore[misc]
    assert second.row is None
    assert second.name == "renamed"
    assert second.trace_id == first.trace_id
    assert type(copy.copy(third)) is Span
    assert copy.deepcopy(third) == third
    with pytest.raises(AttributeError, match="colour"):
        third.colour  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match="colour"):
        first.colour  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(TypeError, match="unhashable"):
        hash(first)


@pytest.mark.parametrize("file", FIXTURES, ids=lambda file: file.stem)
def test_packed_spans_are_stored_as_ordinary_ones(file: Path, store: Store, decode: Read) -> None:
    """Also some that are not packed any more, and some that never were."""
    data = file.read_bytes()
    mixed = read_protobuf(data, whole=False)
    mixed[0].name = mixed[0].name
    mixed.insert(1, make(9999, 9999))
    assert store.add(mixed) == len(mixed)
    for trace in {span.trace_id for span in mixed}:
        wanted = sorted((span for span in read_protobuf(data) if span.trace_id == trace), key=lambda span: span.span_id)
        found = sorted(store.trace(trace), key=lambda span: span.span_id)
        assert found == (wanted or [make(9999, 9999)])
    assert store.add(read_protobuf(data, whole=False)) == 0


# Rows

ODD = [
    make(inputs={"text": 'quo"te \\ \n\t\r\b\f \x01 \u00e9\u2028 \U0001f600 \x7f'}, name="caf\u00e9"),
    make(inputs=[1.5, -0.0, 1e300, 1e-7, 12345678901234567890, 2**62, True, None, [], {}, ""]),
    make(outputs=math.nan, cost=math.inf, reward=-1e301),
    make(outputs={1: 2}, attributes={"a": (1, 2), "b": {3}}),
    make(inputs="lone \ud800", name="nul \0"),
    make(inputs={"q": 1}, attributes={"gen_ai.tool.call.arguments": '{"q":1}', "task": "t"}),
    make(outputs=[], attributes={"llm.output_messages.0.message.role": "user"}),
    make(attributes={"\u00e9": "\ud800"}, cost=3, reward=0.0, end_ns=None),
    make(end_ns=5, start_ns=9, links=[("a" * 32, "b" * 16)], otel_kind=0, provider="p", template="t\u00e9"),
    full(),
]


def expected(spans: list[Span], numbers: list[tuple[int, int | None]]) -> list[Any]:
    return [rows.to_row(span, grp, source) for span, (grp, source) in zip(spans, numbers, strict=True)]


@pytest.mark.parametrize("spans", [ODD, randoms(300)], ids=["odd", "random"])
def test_rows_are_those_of_python(spans: list[Span]) -> None:
    numbers: list[tuple[int, int | None]] = [(number, number or None) for number in range(len(spans))]
    assert repr(rows.to_rows(spans, numbers)) == repr(expected(spans, numbers))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4), max_leaves=10
)  # fmt: skip


@given(inputs=json_values, outputs=json_values, told=st.dictionaries(names, json_values, max_size=4))
@QUIET
def test_rows_of_random_values_are_those_of_python(inputs: Any, outputs: Any, told: dict[str, Any]) -> None:
    spans = [make(inputs=inputs, outputs=outputs, attributes=told), make(attributes=told)]
    assert rows.to_rows(spans, [(1, None), (2, 3)]) == expected(spans, [(1, None), (2, 3)])


def test_what_cannot_be_a_row_is_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = make()
    bad.start_ns = "soon"  # type: ignore[assignment]
    for maker in (rows._row_maker(), None):
        monkeypatch.setattr(rows, "_row_maker", lambda maker=maker: maker)
        with Store.open(":memory:") as store, pytest.raises(TraceError, match="cannot be stored"):
            store.add([make(1), bad])


def test_no_collection_leaves_the_collector_as_it_was() -> None:
    import gc

    with no_collection():
        assert not gc.isenabled()
        with no_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_conversions_that_fail_are_unknown() -> None:
    assert read_value(int, "many") is None
    assert read_value(int, "12") == 12
