"""Validation: each rule has a fixture that breaks just that rule."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_forge.errors import UsageError
from agent_forge.traces import validate
from agent_forge.traces.span import FIELDS, KINDS
from agent_forge.traces.validate import Fault, is_date_time, schema_faults, validate_file, validate_spans

FIXTURES = Path(__file__).parent / "fixtures"
INVALID = sorted((FIXTURES / "invalid").glob("*.jsonl"))
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def spans():
    return [json.loads(line) for line in (FIXTURES / "valid_trace.jsonl").read_text().splitlines()]


def faults_of(*objects):
    return validate_spans(enumerate(objects, 1))


def codes(*objects):
    return [fault.code for fault in faults_of(*objects)]


def test_a_sound_file_has_no_faults():
    assert validate_file(FIXTURES / "valid_trace.jsonl") == []


def test_the_schema_knows_every_field_of_a_span_and_no_other():
    assert sorted(validate.span_schema()["properties"]) == sorted(FIELDS)
    assert validate.span_schema()["properties"]["kind"]["enum"] == list(KINDS)


def test_every_documented_rule_has_a_fixture():
    documented = [line.split("|")[1].strip() for line in validate.__doc__.splitlines() if line.startswith("| ")][1:]
    assert sorted(path.stem for path in INVALID) == sorted(documented)


@pytest.mark.parametrize("path", INVALID, ids=lambda path: path.stem)
def test_each_fixture_breaks_just_its_rule(path):
    faults = validate_file(path)
    assert {fault.code for fault in faults} == {path.stem}
    assert all(str(fault).startswith(f"{fault.line}: {path.stem}: ") for fault in faults)


def test_parents_in_a_circle():
    a, b, c, d = spans()
    a["parent_id"] = b["span_id"]
    assert {(fault.code, fault.line) for fault in faults_of(a, b, c, d)} == {("cycle", 1), ("cycle", 2)}
    b["parent_id"] = b["span_id"]
    del a["parent_id"]
    assert codes(a, b, c, d) == ["cycle"]


def test_a_long_chain_of_parents_is_no_circle():
    chain = [
        {"trace_id": TRACE, "span_id": f"{i + 1:016x}", "name": "t", "kind": "task", "start_ns": 0, "end_ns": 1,
         **({"parent_id": f"{i:016x}"} if i else {})}
        for i in range(3000)
    ]  # fmt: skip
    assert faults_of(*chain[::-1]) == []


@pytest.mark.parametrize(
    ("place", "field", "value", "code"),
    [
        (0, "trace_id", TRACE.upper(), "format"),
        (0, "trace_id", "0" * 32, "format"),
        (0, "span_id", "short", "format"),
        (2, "links", [[TRACE, "nope"]], "format"),
        (2, "links", [[TRACE]], "schema"),
        (0, "kind", "daydream", "schema"),
        (0, "colour", "red", "schema"),
        (0, "start_ns", 1.5, "schema"),
        (0, "status", "fine", "schema"),
        (0, "agent", None, "kind_fields"),
        (1, "output_ids", [5], "kind_fields"),
        (1, "output_ids", None, "kind_fields"),
        (3, "reward", None, "kind_fields"),
        (0, "assessment", {"complexity": "huge"}, "schema"),
    ],
)
def test_more_ways_to_be_wrong(place, field, value, code):
    objects = spans()
    objects[place][field] = value
    assert code in codes(*objects)


def test_a_span_that_starts_before_its_root_and_one_that_is_unfinished():
    objects = spans()
    objects[1]["start_ns"] = 500
    assert codes(*objects) == ["outside_root"]
    objects = spans()
    objects[1]["end_ns"] = None
    assert codes(*objects) == []


def test_traces_do_not_mix():
    other = [{**span, "trace_id": "a" * 32, "links": []} for span in spans()]
    assert codes(*spans(), *other) == []
    assert validate_spans([(1, {**spans()[2], "links": []})])[0].code == "missing_parent"


def test_arrays_documents_and_empty_files(tmp_path):
    path = tmp_path / "spans.json"
    path.write_text(json.dumps([*spans(), 7]))
    assert validate_file(path) == [Fault("json", 5, "is not a JSON object")]
    path.write_text("")
    assert validate_file(path) == [Fault("json", 1, "there are no spans")]
    path.write_text('{"trace_id": NaN}\n7\n\n')
    assert [str(fault) for fault in validate_file(path)] == ["1: json: is not JSON", "2: json: is not a JSON object"]
    with pytest.raises(UsageError, match="cannot be read"):
        validate_file(tmp_path / "none.jsonl")


def otlp(*objects):
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(objects)}]}]}


def otlp_span(span_id="b7ad6b7169203331", **fields):
    return {
        "traceId": TRACE,
        "spanId": span_id,
        "name": "chat",
        "startTimeUnixNano": "10",
        "endTimeUnixNano": "30",
        **fields,
    }


@pytest.mark.parametrize(
    ("groups", "scopes"),
    [
        ("resourceSpans", "scopeSpans"),
        ("resource_spans", "scope_spans"),
        ("resourceSpans", "instrumentationLibrarySpans"),
    ],
)
def test_otlp_is_checked_under_every_name_that_import_reads(tmp_path, groups, scopes):
    path = tmp_path / "trace.json"
    backwards = {"traceId": TRACE, "spanId": "b" * 16, "name": "x", "startTimeUnixNano": "5", "endTimeUnixNano": "3"}
    for text in (json.dumps({groups: [{scopes: [{"spans": [backwards]}]}]}, indent=indent) for indent in (None, 1)):
        path.write_text(text)
        assert [fault.code for fault in validate_file(path)] == ["end_before_start"]
    for empty in ([], [{scopes: []}], [{scopes: [{"spans": []}]}], None):
        path.write_text(json.dumps({groups: empty}))
        assert validate_file(path) == [Fault("json", 1, "there are no spans")]


def test_otlp_documents_and_lines(tmp_path):
    path = tmp_path / "otlp.json"
    path.write_text(json.dumps(otlp(otlp_span()), indent=1))
    assert validate_file(path) == []
    lost = otlp_span("c7ad6b7169203331", parentSpanId="d7ad6b7169203331")
    path.write_text(json.dumps(otlp(otlp_span(), lost, {"traceId": "x"}, otlp_span(startTimeUnixNano="99"))))
    found = validate_file(path)
    assert [(fault.line, fault.code) for fault in found] == [
        (2, "missing_parent"), (3, "schema"), (4, "duplicate_id"), (4, "end_before_start"),
    ]  # fmt: skip
    path.write_text(json.dumps(otlp(otlp_span())) + "\n" + json.dumps(otlp({"spanId": "x"})) + "\n")
    assert [(fault.line, fault.code) for fault in validate_file(path)] == [(2, "schema")]
    path.write_text(json.dumps({"resourceSpans": [7]}))
    assert [fault.code for fault in validate_file(path)] == ["schema"]


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("2026-02-02T21:55:30Z", True),
        ("2026-02-02t21:55:30.123456789z", True),
        ("2026-02-02T21:55:30+05:30", True),
        ("2016-12-31T23:59:60Z", True),  # a leap second
        ("2026-02-02T21:55:30", False),  # no zone: what utcnow().isoformat() writes
        ("2026-02-02 21:55:30Z", False),
        ("2026-02-30T21:55:30Z", False),
        ("2026-02-02T24:00:00Z", False),
        ("2026-02-02T21:60:00Z", False),
        ("2026-02-02T21:55:61Z", False),
        ("2026-02-02T21:55:30+25:00", False),
        ("yesterday", False),
    ],
)
def test_date_times_are_rfc_3339(text, valid):
    assert is_date_time(text) is valid
    assert (list(schema_faults(text, {"format": "date-time"})) == []) is valid


def test_the_formats_that_jsonschema_knows_are_still_enforced():
    assert [code for _, code in schema_faults("nope", {"format": "uuid"})] == ["format"]
    assert list(schema_faults(7, {"format": "date-time"})) == []
