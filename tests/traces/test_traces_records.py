"""Trajectory records and trace logs: the seeds' own payloads, there and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent_forge.errors import DataError
from agent_forge.traces import Recorder, Store, export_traces, import_file
from agent_forge.traces.records import read_record, to_trace_log
from agent_forge.traces.turns import to_trajectory

# As seed 001 shows it.
TRAJECTORY: dict[str, Any] = {
    "agent": "qa_agent",
    "turns": [
        {"observation": "User asked: How to fix import error?", "action": "search_docs", "tool_output": {"hits": 3},
         "reward": 0.1},
        {"observation": {"hits": 3}, "action": {"name": "answer", "args": [1]}, "tool_output": None, "reward": None,
         "seconds": 2},
    ],
    "final_result": "pip install it",
    "correct": True,
    "done": True,
    "latency_ms": 1234,
}  # fmt: skip
# As `log_llm_call` of seed 000 appends it, in a trace of the schema that goes with it.
TRACE_LOG: dict[str, Any] = {
    "trace_id": "5b3c1c1e-0d4f-4a52-9d1c-2b8c3f8f1a00",
    "agent_name": "QAAgent",
    "task_type": "rag",
    "created_at": "2025-10-01T12:00:00",
    "final_reward": 0.75,
    "spans": [
        {
            "span_id": "0b1f8b52-91f6-4a0e-8c55-0c8f2c6f6d11",
            "span_type": "llm_call",
            "start_time": "2025-10-01T12:00:00.000001",
            "end_time": "2025-10-01T12:00:02.500000",
            "input": {"prompt": "Hello"},
            "output": {"response": "Hi"},
            "metadata": {"model": "llama-3.2-3b-instruct", "tokens_used": 12},
        },
        {
            "span_id": "span-002",
            "parent_span_id": "0b1f8b52-91f6-4a0e-8c55-0c8f2c6f6d11",
            "span_type": "tool_call",
            "start_time": "2025-10-01T12:00:03Z",
            "end_time": "2025-10-01T12:00:04Z",
            "input": {"tool_name": "search", "parameters": {"q": "x"}},
            "output": {"result": None, "error": "no route"},
            "metadata": {},
        },
    ],
}


@pytest.mark.parametrize(
    ("record", "format"), [(TRAJECTORY, "trajectory"), (TRAJECTORY, "turns"), (TRACE_LOG, "trace-log")]
)
def test_a_record_goes_through_the_store_and_comes_back(record: dict[str, Any], format: str, tmp_path: Path) -> None:
    file, out = tmp_path / "in.json", tmp_path / "out.jsonl"
    other = {**record, "agent": "b", "agent_name": "b", "trace_id": "not a uuid"}
    file.write_text(json.dumps([record, other]))
    with Store.open(tmp_path) as store:
        assert import_file(store, file) == (6, 6)
        assert import_file(store, file) == (6, 0)  # again adds nothing
        assert export_traces(store.each_trace(), format, out) == 2
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(lines, key=str) == sorted([record, other], key=str)


def test_what_the_spans_say() -> None:
    root, first, second = read_record(TRAJECTORY)
    assert (root.agent, root.kind, root.status, root.reward, root.outputs) == (
        "qa_agent",
        "agent",
        "ok",
        1.0,
        "pip install it",
    )
    assert (first.name, first.kind, first.reward, first.parent_id) == ("search_docs", "tool", 0.1, root.span_id)
    assert second.outputs is None
    whole, call, tool = read_record(TRACE_LOG)
    assert (whole.trace_id, whole.category, whole.reward) == ("5b3c1c1e0d4f4a529d1c2b8c3f8f1a00", "rag", 0.75)
    assert (call.kind, call.model, call.duration_ns) == ("model", "llama-3.2-3b-instruct", 2_499_999_000)
    assert (tool.name, tool.parent_id, tool.status, tool.error) == ("search", call.span_id, "error", "no route")


def test_our_own_traces_can_be_written_in_both_forms(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    with recorder.span("work", "agent", agent="ada") as work:
        with recorder.span("search", "tool", inputs={"q": 1}) as span:
            span.outputs = 7
        work.outputs = "done"
    recorder.close()
    with Store.open(tmp_path) as store:
        [trace] = store.each_trace()
    record = to_trajectory(trace)
    turn = {"observation": {"q": 1}, "action": "search", "tool_output": 7, "reward": None}
    told = {"agent": "ada", "turns": [turn], "final_result": "done", "correct": None, "done": True}
    assert record == {**told, "reward": None, "trace_id": trace[0].trace_id}
    log = to_trace_log(trace)
    assert (log["agent_name"], [entry["span_type"] for entry in log["spans"]]) == ("ada", ["tool_call"])
    again = read_record(log)
    assert again[1].start_ns == pytest.approx(trace[1].start_ns, abs=1000)
    assert to_trace_log(again) == log


@pytest.mark.parametrize(
    "change",
    [
        {"agent": None},
        {"correct": "yes"},
        {"turns": [1]},
        {"turns": [{}]},
        {"turns": [{"action": "a", "reward": "much"}]},
    ],
)
def test_a_record_that_is_wrong_is_refused_whole(change: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(f"{json.dumps(TRAJECTORY)}\n{json.dumps({**TRAJECTORY, **change})}\n")
    with Store.open(tmp_path) as store:
        with pytest.raises(DataError, match=":2"):
            import_file(store, file)
        assert list(store.each_trace()) == []


@pytest.mark.parametrize(
    "change",
    [{"spans": []}, {"spans": [7]}, {"created_at": "soon"}, {"final_reward": "high"}, {"spans": [{"span_type": "x"}]}],
)
def test_a_trace_log_that_is_wrong_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "in.json"
    log = {**TRACE_LOG, **change}
    if change == {"spans": []}:
        del log["created_at"]
    file.write_text(json.dumps(log))
    with Store.open(tmp_path) as store, pytest.raises(DataError):
        import_file(store, file)
