"""Traces out to files: JSON lines, OTLP, Parquet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trace_spans import full, make, randoms

from agent_forge.errors import UsageError
from agent_forge.traces import FORMATS, Store, export_traces, import_file, read_file


@pytest.fixture
def filled() -> Store:
    store = Store.open(":memory:")
    store.add([full(9000), *randoms(60)])
    return store


def test_our_lines_give_the_same_spans(filled: Store, tmp_path: Path) -> None:
    out = tmp_path / "spans.jsonl"
    assert export_traces(filled.each_trace(), "jsonl", out) == 61
    with Store.open(tmp_path) as other:
        assert import_file(other, out) == (61, 61)
        assert list(other.each_trace()) == list(filled.each_trace())


@pytest.mark.parametrize("name", ["one.json", "many.jsonl"])
def test_otlp_gives_the_same_traces(filled: Store, tmp_path: Path, name: str) -> None:
    assert export_traces(filled.each_trace(), "otlp", tmp_path / name) == 61
    text = (tmp_path / name).read_text()
    if name == "one.json":
        assert len(json.loads(text)["resourceSpans"]) == 10
    else:
        assert all("resourceSpans" in json.loads(line) for line in text.splitlines())
    with Store.open(tmp_path) as other:
        import_file(other, tmp_path / name)
        assert other.aggregate(["agent", "kind", "status"]) == filled.aggregate(["agent", "kind", "status"])
        again = tmp_path / f"again-{name}"
        export_traces(other.each_trace(), "otlp", again)
        assert again.read_text() == text or sorted(again.read_text()) == sorted(text)


def test_parquet_can_be_queried(filled: Store, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    assert export_traces(filled.each_trace(), "parquet", tmp_path / "spans.parquet") == 61
    table = parquet.read_table(tmp_path / "spans.parquet").to_pylist()
    spans = {span.span_id: span for trace in filled.each_trace() for span in trace}
    assert len(table) == len(spans) == 61
    for row in table:
        span = spans[row["span_id"]]
        assert (row["agent"], row["reward"], row["duration_ns"]) == (span.agent, span.reward, span.duration_ns)
        assert (json.loads(row["inputs"]), row["links"] is None) == (span.inputs, not span.links)


def test_nothing_is_written_where_something_fails(filled: Store, tmp_path: Path) -> None:
    def broken():  # type: ignore[no-untyped-def]
        yield from filled.each_trace()
        raise RuntimeError("halfway")

    out = tmp_path / "out.json"
    out.write_text("old")
    for name in ("jsonl", "otlp", "parquet"):
        with pytest.raises(RuntimeError):
            export_traces(broken(), name, out)
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


def test_an_empty_export_is_whole(tmp_path: Path) -> None:
    for name in ("jsonl", "otlp", "parquet"):
        assert export_traces([], name, tmp_path / name) == 0
    assert json.loads((tmp_path / "otlp").read_text()) == {"resourceSpans": []}
    with pytest.raises(Exception, match="is empty"):
        list(read_file(tmp_path / "jsonl"))


def test_formats_are_a_registry(filled: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"jsonl", "otlp", "parquet"} <= set(FORMATS)
    monkeypatch.setitem(FORMATS, "count", lambda traces, out: sum(len(trace) for trace in traces))
    assert export_traces(filled.each_trace(), "count", tmp_path / "x") == 61
    with pytest.raises(UsageError, match="Formats are"):
        export_traces([], "papyrus", tmp_path / "x")
    with pytest.raises(UsageError, match="folder"):
        export_traces([], "jsonl", tmp_path / "no" / "x")


def test_values_that_nest_deeper_than_protobuf_goes_are_sent_as_text() -> None:
    pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    from agent_forge.traces.otlp_protobuf import read_protobuf, write_protobuf

    deep: object = "bottom"
    for level in range(60):
        deep = [deep] if level % 2 else {"in": deep}
    flat = {"list": [1, "a", {"k": [2.5]}], "empty": []}
    [span] = read_protobuf(write_protobuf([make(attributes={"deep": deep, **flat})]))
    assert {name: span.attributes[name] for name in flat} == flat
    value, levels = span.attributes["deep"], 0
    while not isinstance(value, str):
        value, levels = (value[0] if isinstance(value, list) else value["in"]), levels + 1
    for _ in range(levels):
        deep = deep[0] if isinstance(deep, list) else deep["in"]  # type: ignore[index]
    assert (levels, json.loads(value)) == (24, deep)


@pytest.mark.parametrize("name", ["messages", "sharegpt", "agent-lightning", "jsonl", "otlp", "parquet"])
def test_numbers_that_json_has_not_do_not_stop_an_export(tmp_path: Path, name: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": float("inf")}}}
    span = make(
        kind="model", model="m", inputs=[{"role": "user", "content": "hi"}], attributes={"loss": float("nan")},
        outputs=[{"role": "assistant", "content": "ho", "tool_calls": [call]}],
    )  # fmt: skip
    assert export_traces([[span]], name, tmp_path / "out") == 1
    if name in ("messages", "sharegpt", "agent-lightning"):

        def refuse(constant: str) -> None:
            raise AssertionError(constant)

        json.loads((tmp_path / "out").read_text(), parse_constant=refuse)


@pytest.mark.parametrize("parts", [5, "x", [5], [{"name": "tests"}], [{"value": "good", "weight": 1}]], ids=str)
def test_reward_components_of_another_shape_stop_no_export(tmp_path: Path, parts: object) -> None:
    span = make(reward=1.0, attributes={"agent_forge.reward.components": parts})
    assert export_traces([[span]], "agent-lightning", tmp_path / "out") == 2
