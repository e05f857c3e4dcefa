"""OTLP: real exports of three instrumented programs, and the shapes that other writers give it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_spans import full, make, randoms

from agent_forge.errors import DataError, TraceError
from agent_forge.traces import Span, Store, import_file, read_file, read_request, write_request
from agent_forge.traces.otlp import read_json_rows
from agent_forge.traces.otlp_protobuf import read_protobuf, write_protobuf

FIXTURES = Path(__file__).parent / "fixtures" / "otlp"
PROGRAMS = ("openinference-openai", "openllmetry-openai", "openinference-langchain")


def canonical(request: dict[str, Any]) -> list[str]:
    """A request as a sorted list of its spans, each with its resource and scope: what grouping and order cannot change.

    Numbers and enumerations are brought to one form, and what is empty or zero is left out, as protobuf leaves it out.
    """
    found = []
    for group in request["resourceSpans"]:
        for part in group["scopeSpans"]:
            for span in part["spans"]:
                place = [group.get("resource"), group.get("schemaUrl"), part.get("scope"), part.get("schemaUrl")]
                found.append(json.dumps(_clean([place, span]), sort_keys=True))
    return sorted(found)


def _clean(value: Any, name: str = "") -> Any:
    if isinstance(value, list):
        items = [_clean(item) for item in value]
        return sorted(items, key=json.dumps) if name == "attributes" else items
    if isinstance(value, dict):
        found = {key: _clean(item, key) for key, item in value.items()}
        value_key = len(found) == 1 and next(iter(found)).endswith("Value")
        return found if value_key else {key: item for key, item in found.items() if item not in (None, "", 0, [], {})}
    if name in ("startTimeUnixNano", "endTimeUnixNano", "timeUnixNano", "intValue"):
        return int(value)
    if name == "kind" and isinstance(value, str):
        return ["UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"].index(value[10:])
    if name == "code" and isinstance(value, str):
        return ["UNSET", "OK", "ERROR"].index(value[12:])
    return value


@pytest.mark.parametrize("program", PROGRAMS)
def test_in_and_out_of_the_store_a_real_export_says_the_same(program: str, place: str) -> None:
    original = json.loads((FIXTURES / f"{program}.json").read_text())
    with Store.open(place) as store:
        found, added = import_file(store, FIXTURES / f"{program}.json")
        assert found == added > 0
        assert import_file(store, FIXTURES / f"{program}.json") == (found, 0)
        back = write_request(span for trace in store.each_trace() for span in trace)
    assert canonical(back) == canonical(original)


@pytest.mark.parametrize("program", PROGRAMS)
def test_protobuf_and_json_are_the_same_spans(program: str) -> None:
    from_json = read_request(json.loads((FIXTURES / f"{program}.json").read_text()))
    from_protobuf = read_protobuf((FIXTURES / f"{program}.pb").read_bytes())
    assert from_protobuf == from_json
    assert read_protobuf(write_protobuf(from_json)) == from_json


def by_name(program: str) -> dict[str, list[Span]]:
    found: dict[str, list[Span]] = {}
    for span in read_file(FIXTURES / f"{program}.json"):
        found.setdefault(span.name, []).append(span)
    return found


def test_openinference_openai() -> None:
    tool, plain, failed = sorted(by_name("openinference-openai")["ChatCompletion"], key=lambda span: span.start_ns)
    assert (tool.kind, tool.model, tool.provider, tool.input_tokens, tool.output_tokens) == (
        "model",
        "tiny-1-2026",
        "openai",
        21,
        7,
    )
    assert tool.sampling == {"temperature": 0.2, "max_tokens": 50}
    assert tool.inputs == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather in Paris?"}]
    [call] = tool.outputs[0]["tool_calls"]
    assert (call["id"], call["function"]["name"]) == ("call_1", "weather")
    assert plain.outputs == [{"role": "assistant", "content": "It is sunny in Paris."}]
    assert failed.status == "error"
    assert "APIConnectionError" in str(failed.error)
    assert (failed.input_tokens, failed.outputs) == (None, None)
    assert failed.model == "tiny-1"  # the one that was asked; none answered
    assert {span.session for span in (tool, plain, failed)} == {"s-1"}  # the resource tells it


def test_openllmetry_openai() -> None:
    spans = sorted(read_file(FIXTURES / "openllmetry-openai.json"), key=lambda span: span.start_ns)
    tool, plain, failed = spans
    assert (tool.kind, tool.model, tool.provider, tool.input_tokens, tool.output_tokens) == (
        "model",
        "tiny-1",
        "openai",
        21,
        7,
    )
    assert tool.sampling == {"temperature": 0.2, "max_tokens": 50}
    assert [message["role"] for message in tool.inputs] == ["system", "user"]
    assert plain.sampling == {"top_p": 0.9}
    assert "sunny" in json.dumps(plain.outputs)
    assert failed.status == "error"
    assert tool.resource is not None
    assert tool.resource["service.name"] == "fixture-openllmetry-openai"


def test_openinference_langchain() -> None:
    names = by_name("openinference-langchain")
    [agent], [tool], models = names["weather_agent"], names["weather"], names["ChatOpenAI"]
    assert (agent.kind, agent.parent_id, agent.inputs) == ("agent", None, "Weather in Paris?")
    assert agent.agent == "weather_agent"  # no attribute names it
    assert (tool.kind, tool.parent_id) == ("tool", agent.span_id)
    assert tool.outputs == "sunny in Paris"
    assert [model.kind for model in models] == ["model", "model"]
    assert {model.parent_id for model in models} == {agent.span_id}
    assert sum(model.input_tokens or 0 for model in models) == 42


def test_our_spans_out_and_in_again() -> None:
    spans = [full(), *randoms(50)]
    back = read_request(json.loads(json.dumps(write_request(spans))))
    fields = ("trace_id", "span_id", "parent_id", "name", "kind", "start_ns", "end_ns", "status", "error", "inputs",
              "outputs", "links", "events", "agent", "model", "provider", "session", "category", "input_tokens",
              "output_tokens", "cost", "reward", "policy", "template", "sampling", "assessment", "prompt_ids",
              "output_ids", "logprobs")  # fmt: skip
    for ours, theirs in zip(spans, back, strict=True):
        for field in fields:
            assert getattr(theirs, field) == getattr(ours, field), field
    assert write_request(back) == write_request(read_request(write_request(back)))


MINIMAL = {"traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "b7ad6b7169203331", "name": "x"}


def wrapped(**fields: Any) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": [{**MINIMAL, **fields}]}]}]}


def read_one(**fields: Any) -> Span:
    [span] = read_request(wrapped(**fields))
    return span


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": 3, "startTimeUnixNano": "5", "endTimeUnixNano": "9", "status": {"code": 2, "message": "no"}},
        {"kind": "SPAN_KIND_CLIENT", "startTimeUnixNano": 5, "endTimeUnixNano": 9,
         "status": {"code": "STATUS_CODE_ERROR", "message": "no"}},
    ],
)  # fmt: skip
def test_numbers_as_text_and_enumerations_by_name(fields: dict[str, Any]) -> None:
    span = read_one(**fields)
    assert (span.otel_kind, span.start_ns, span.end_ns, span.status, span.error) == (3, 5, 9, "error", "no")


def test_ids_in_base64_as_protobuf_prints_them() -> None:
    ids = {key: base64.b64encode(bytes.fromhex(MINIMAL[key])).decode() for key in ("traceId", "spanId")}
    span = read_one(**ids, parentSpanId=ids["spanId"])
    assert (span.trace_id, span.span_id, span.parent_id) == (MINIMAL["traceId"], MINIMAL["spanId"], MINIMAL["spanId"])


def test_snake_case_as_some_writers_have_it() -> None:
    span = {"trace_id": MINIMAL["traceId"], "span_id": MINIMAL["spanId"], "name": "x", "start_time_unix_nano": 7,
            "attributes": [{"key": "k", "value": {"int_value": "3"}}],
            "links": [{"trace_id": MINIMAL["traceId"], "span_id": MINIMAL["spanId"]}]}  # fmt: skip
    [found] = read_request({"resource_spans": [{"scope_spans": [{"spans": [span]}]}]})
    assert (found.start_ns, found.attributes, len(found.links)) == (7, {"k": 3}, 1)


def test_every_kind_of_value() -> None:
    values: dict[str, tuple[dict[str, Any], Any]] = {
        "text": ({"stringValue": "a"}, "a"),
        "empty": ({"stringValue": ""}, ""),
        "yes": ({"boolValue": True}, True),
        "int": ({"intValue": "-5"}, -5),
        "float": ({"doubleValue": 1}, 1.0),
        "inf": ({"doubleValue": "-Infinity"}, float("-inf")),
        "list": (
            {"arrayValue": {"values": [{"intValue": "1"}, {"stringValue": "b"}, {"arrayValue": {}}]}},
            [1, "b", []],
        ),
        "map": ({"kvlistValue": {"values": [{"key": "k", "value": {"boolValue": False}}]}}, {"k": False}),
        "bytes": ({"bytesValue": "AP8="}, b"\x00\xff"),
        "none": ({}, None),
    }
    span = read_one(attributes=[{"key": key, "value": value} for key, (value, _) in values.items()])
    assert span.attributes == {key: value for key, (_, value) in values.items()}
    with Store.open(":memory:") as store:
        store.add([span])
        assert store.trace(span.trace_id)[0].attributes == span.attributes
    again = read_request(write_request([span]))[0]
    assert again.attributes == span.attributes
    assert read_protobuf(write_protobuf([span]))[0].attributes == span.attributes


def test_what_has_no_field_of_its_own_is_kept() -> None:
    link = {
        "traceId": "1" * 32,
        "spanId": "2" * 16,
        "traceState": "a=b",
        "attributes": [{"key": "why", "value": {"stringValue": "retry"}}],
    }
    fields = {"traceState": "x=y", "flags": 257, "droppedAttributesCount": 2, "links": [link],
              "events": [{"timeUnixNano": "3", "name": "e", "droppedAttributesCount": 1}],
              "status": {"code": 1, "message": "fine"}}  # fmt: skip
    request = wrapped(**fields)
    request["resourceSpans"][0] |= {
        "schemaUrl": "https://r",
        "resource": {"attributes": [{"key": "a", "value": {"intValue": "1"}}]},
    }
    request["resourceSpans"][0]["scopeSpans"][0] |= {
        "schemaUrl": "https://s",
        "scope": {"name": "lib", "version": "2", "attributes": [{"key": "b", "value": {"boolValue": True}}]},
    }
    with Store.open(":memory:") as store:
        store.add(read_request(request))
        assert canonical(write_request(store.trace(MINIMAL["traceId"]))) == canonical(request)
    assert read_protobuf(write_protobuf(read_request(request))) == read_request(request)


def test_an_agent_without_a_name_and_a_session_of_the_process_come_out_as_they_went_in() -> None:
    kind = {"key": "openinference.span.kind", "value": {"stringValue": "AGENT"}}
    request = wrapped(attributes=[kind])
    session = {"key": "session.id", "value": {"stringValue": "s-1"}}
    request["resourceSpans"][0]["resource"] = {"attributes": [session]}
    request["resourceSpans"][0]["scopeSpans"][0]["scope"] = {"name": "lib"}
    with Store.open(":memory:") as store:
        store.add_rows(read_json_rows(json.dumps(request).encode()))
        [span] = store.search(session="s-1", agent="x")
        assert canonical(write_request([span])) == canonical(request)
    assert read_protobuf(write_protobuf([span])) == read_request(request)


@pytest.mark.parametrize(
    "request_",
    [
        [], 7, None, {}, {"resourceSpans": 3}, {"resourceSpans": [{"scopeSpans": "x"}]},
        wrapped(traceId="xyz"), wrapped(traceId="0" * 32), wrapped(spanId="b7ad6b71692033zz"), wrapped(spanId=5),
        wrapped(startTimeUnixNano="soon"), wrapped(endTimeUnixNano=2**64), wrapped(startTimeUnixNano=-1),
        wrapped(kind="SPAN_KIND_DANCE"), wrapped(status={"code": 9}), wrapped(attributes=[{"value": {}}]),
        wrapped(attributes=[7]), wrapped(links=[{}]), wrapped(attributes=[{"key": "b", "value": {"bytesValue": "*"}}]),
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused(request_: Any) -> None:
    with pytest.raises(TraceError):
        read_request(request_)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = ["traceId", "spanId", "parentSpanId", "name", "kind", "startTimeUnixNano", "endTimeUnixNano", "attributes",
         "status", "events", "links", "flags", "traceState"]  # fmt: skip


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(NAMES), anything, max_size=4))
def test_no_request_makes_it_stumble(stored: Store, fields: dict[str, Any]) -> None:
    try:
        spans = read_request(wrapped(**fields))
    except TraceError:
        return
    stored.add(spans)


@pytest.fixture(scope="module")
def stored() -> Iterator[Store]:
    with Store.open(":memory:") as store:
        yield store


def test_not_protobuf() -> None:
    with pytest.raises(TraceError, match="protobuf"):
        read_protobuf(b"\xff\xff\xff")


def test_protobuf_with_a_fault() -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    faults = [
        {"trace_id": b"short"}, {"trace_id": bytes(16)}, {"span_id": b""}, {"start_time_unix_nano": 2**64 - 1},
        {"status": {"code": 7}}, {"links": [{"trace_id": b"x", "span_id": b"y"}]},
    ]  # fmt: skip
    for fault in faults:
        request = ExportTraceServiceRequest()
        fields = {"trace_id": b"1" * 16, "span_id": b"2" * 8, "name": "x", **fault}
        request.resource_spans.add().scope_spans.add().spans.add(**fields)
        with pytest.raises(TraceError):
            read_protobuf(request.SerializeToString())


def test_files_of_one_request_of_many_and_of_ours(tmp_path: Path) -> None:
    spans = randoms(12)
    requests = [write_request(spans[:6]), write_request(spans[6:])]
    (tmp_path / "one.json").write_text(json.dumps(write_request(spans), indent=2))
    (tmp_path / "many.jsonl").write_text("\n".join(json.dumps(request) for request in requests) + "\n\n")
    (tmp_path / "ours.jsonl").write_text("\n" + "\n".join(json.dumps(span.to_dict()) for span in spans))
    ids = [span.span_id for span in spans]
    for name in ("one.json", "many.jsonl", "ours.jsonl"):
        assert [span.span_id for span in read_file(tmp_path / name)] == ids
    assert list(read_file(tmp_path / "ours.jsonl")) == spans


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"), ("{", "not JSON"), ("hello\n", "not JSON"), ('{"a": 1}', "resourceSpans"),
        ('{"trace_id": "1", "span_id": "2"}', "no 'name'"),
        ('{"trace_id": "1", "span_id": "2", "name": "n", "colour": 3}', "colour"),
        (json.dumps(write_request([make()])) + "\n{broken\n", r":2: is not JSON"),
        (json.dumps(write_request([make()])) + "\n" + json.dumps(wrapped(traceId="x")), r":2: resource.*spans\[0\]"),
    ],
)  # fmt: skip
def test_a_file_with_a_fault_is_refused_whole(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "file.jsonl"
    path.write_text(text)
    with Store.open(tmp_path) as store:
        with pytest.raises(DataError, match=words) as refused:
            import_file(store, path)
        assert str(path) in str(refused.value)
        assert store.count() == 0


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        list(read_file(tmp_path / "nothing.json"))
