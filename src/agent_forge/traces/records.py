"""Two older forms of a trace: the trajectory record, which `turns` writes, and the trace logger's JSON.

    trajectory  {"agent", "turns": [{"observation", "action", "tool_output", "reward"}],
                 "final_result", "correct", "done"}
    trace-log   {"trace_id", "agent_name", "task_type", "created_at", "final_reward", "spans": [{"span_id", "span_type",
                 "start_time", "end_time", "input", "output", "metadata", "parent_span_id"}]}

A record becomes an agent span with a span for each turn or step inside it. Ids follow from the content, so importing a
file again adds nothing. What a span has no field for stays in the attribute `ORIGINAL`, and comes back when the trace
is written in that form again. A trajectory record has no times: its spans are as old as their import.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from agent_forge.errors import TraceError
from agent_forge.files import atomic_write
from agent_forge.traces.span import Span

ORIGINAL = "agent_forge.record"
_KINDS = {"llm_call": "model", "tool_call": "tool", "observation": "observation"}
_TYPES = {kind: name for name, kind in _KINDS.items()}
_TURN = ("observation", "action", "tool_output", "reward")


def is_record(document: Any) -> bool:
    """Whether a JSON document is in one of the two forms."""
    return isinstance(document, dict) and any(isinstance(document.get(name), list) for name in ("turns", "spans"))


def read_record(document: Mapping[str, Any]) -> list[Span]:
    """The spans of a record. Raises TraceError for one that is not in its form."""
    return _from_trajectory(document) if isinstance(document.get("turns"), list) else _from_trace_log(document)


# -- trajectory records ------------------------------------------------------------------------------------------------


def _from_trajectory(record: Mapping[str, Any]) -> list[Span]:
    agent = record.get("agent")
    if not isinstance(agent, str) or not agent:
        raise TraceError("a trajectory record has no `agent`")
    correct = record.get("correct")
    if correct is not None and not isinstance(correct, bool):
        raise TraceError(f"`correct` is {correct!r:.40}, not true or false")
    trace_id, now = _digest(record, 32), time.time_ns()
    root = Span(
        trace_id,
        _digest([trace_id, "root"], 16),
        agent,
        kind="agent",
        start_ns=now,
        end_ns=now + len(record["turns"]),
        status="unset" if correct is None else "ok" if correct else "error",
        outputs=record.get("final_result"),
        agent=agent,
        reward=None if correct is None else float(correct),
        attributes={ORIGINAL: {key: value for key, value in record.items() if key not in ("turns", "final_result")}},
    )
    spans = [root]
    for number, turn in enumerate(record["turns"]):
        if not isinstance(turn, Mapping) or "action" not in turn:
            raise TraceError(f"turn {number + 1} is not an object with an `action`")
        action = turn["action"]
        own = {
            key: value
            for key, value in turn.items()
            if key not in _TURN or (key == "action" and type(value) is not str)
        }
        spans.append(
            Span(
                trace_id,
                _digest([trace_id, number], 16),
                action if isinstance(action, str) else json.dumps(action, ensure_ascii=False)[:100],
                kind="tool",
                parent_id=root.span_id,
                start_ns=now + number,
                end_ns=now + number + 1,
                inputs=turn.get("observation"),
                outputs=turn.get("tool_output"),
                agent=agent,
                reward=_number(turn.get("reward"), f"the reward of turn {number + 1}"),
                attributes={ORIGINAL: own} if own else {},
            )
        )
    return spans


# -- the trace logger's JSON -------------------------------------------------------------------------------------------


def _from_trace_log(record: Mapping[str, Any]) -> list[Span]:
    name = record.get("trace_id")
    plain = str(name).replace("-", "").lower()
    trace_id = plain if re.fullmatch(r"[0-9a-f]{32}", plain) else _digest(dict(record), 32)
    entries = record["spans"]
    spans = [_step(entry, number, trace_id) for number, entry in enumerate(entries, 1)]
    created = _time_ns(record.get("created_at"), "created_at") if record.get("created_at") is not None else None
    starts = [span.start_ns for span in spans] + ([created] if created is not None else [])
    if not starts:
        raise TraceError("a trace log has neither spans nor `created_at`")
    agent = record.get("agent_name")
    root = Span(
        trace_id,
        _digest([trace_id, "root"], 16),
        str(agent or "trace"),
        kind="agent",
        start_ns=min(starts),
        end_ns=max([span.end_ns or span.start_ns for span in spans] + starts),
        agent=None if agent is None else str(agent),
        category=record.get("task_type"),
        reward=_number(record.get("final_reward"), "final_reward"),
        attributes={ORIGINAL: {key: value for key, value in record.items() if key != "spans"}},
    )
    ids = {str(entry.get("span_id")): span.span_id for entry, span in zip(entries, spans, strict=True)}
    for entry, span in zip(entries, spans, strict=True):
        span.parent_id = ids.get(str(entry.get("parent_span_id")), root.span_id)
        span.agent = root.agent
    return [root, *spans]


def _step(entry: Any, number: int, trace_id: str) -> Span:
    if not isinstance(entry, Mapping) or "span_type" not in entry:
        raise TraceError(f"span {number} is not an object with a `span_type`")
    metadata = entry.get("metadata") if isinstance(entry.get("metadata"), Mapping) else {}
    given, result = entry.get("input"), entry.get("output")
    kind = _KINDS.get(str(entry["span_type"]), "other")
    tool = given.get("tool_name") if isinstance(given, Mapping) else None
    error = result.get("error") if isinstance(result, Mapping) else None
    start_ns = _time_ns(entry.get("start_time"), f"the start_time of span {number}")
    return Span(
        trace_id,
        _digest([trace_id, entry.get("span_id") or number], 16),
        str(tool or entry["span_type"]),
        kind=kind,
        start_ns=start_ns,
        end_ns=max(start_ns, _time_ns(entry.get("end_time"), f"the end_time of span {number}")),
        status="error" if error else "ok",
        error=None if not error else str(error),
        inputs=given,
        outputs=result,
        model=(metadata or {}).get("model"),
        attributes={ORIGINAL: {key: value for key, value in entry.items() if key not in ("input", "output")}},
    )


def to_trace_log(trace: Sequence[Span]) -> dict[str, Any]:
    """A trace as the trace logger writes it. Spans of a kind that it does not have are left out."""
    root = _root(trace)
    original = root.attributes.get(ORIGINAL)
    record: dict[str, Any] = {"trace_id": root.trace_id, "agent_name": root.agent, "task_type": root.category}
    record |= {"created_at": _iso(root.start_ns), "final_reward": root.reward}
    record = {key: value for key, value in record.items() if value is not None}
    if isinstance(original, Mapping):
        record = dict(original)
    steps = [span for span in trace if span is not root and (span.kind in _TYPES or ORIGINAL in span.attributes)]
    names = {span.span_id: span for span in steps}
    return {**record, "spans": [_entry(span, names) for span in sorted(steps, key=lambda span: span.start_ns)]}


def _entry(span: Span, names: Mapping[str, Span]) -> dict[str, Any]:
    original = span.attributes.get(ORIGINAL)
    if isinstance(original, Mapping) and "span_type" in original:
        return {**original, "input": span.inputs, "output": span.outputs}
    tokens = [count for count in (span.input_tokens, span.output_tokens) if count is not None]
    metadata = {
        "model": span.model,
        "tokens_used": sum(tokens) if tokens else None,
        "latency_ms": None if span.duration_s is None else round(span.duration_s * 1000),
        "agent_id": span.agent,
    }
    tool = span.kind == "tool"
    return {
        "span_id": span.span_id,
        "parent_span_id": span.parent_id if span.parent_id in names else None,
        "span_type": _TYPES[span.kind],
        "start_time": _iso(span.start_ns),
        "end_time": _iso(span.end_ns or span.start_ns),
        "input": {"tool_name": span.name, "parameters": span.inputs} if tool else {"prompt": span.inputs},
        "output": {"result" if tool else "response": span.outputs, "error": span.error},
        "metadata": {key: value for key, value in metadata.items() if value is not None},
    }


def write_records(
    to_record: Callable[[Sequence[Span]], dict[str, Any]], traces: Iterable[list[Span]], out: Path
) -> int:
    """Writes traces as JSON lines in one of the forms; returns their number."""
    count = 0
    with atomic_write(out) as file:
        for trace in traces:
            file.write(json.dumps(to_record(trace), ensure_ascii=False) + "\n")
            count += 1
    return count


def _root(trace: Sequence[Span]) -> Span:
    return next((span for span in trace if span.parent_id is None), trace[0])


def _digest(value: Any, digits: int) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:digits]


def _number(value: Any, what: str) -> float | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise TraceError(f"{what} is {value!r:.40}, not a number")
    return None if value is None else float(value)


def _time_ns(text: Any, what: str) -> int:
    """Nanoseconds since the epoch; a time without a zone is in UTC, as the trace logger writes it."""
    try:
        moment = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        raise TraceError(f"{what} is {text!r:.40}, not a time") from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
    since = moment - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1000


def _iso(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
