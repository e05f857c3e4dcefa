"""Traces as the `agentlightning` 0.3 package models them: its spans, with rollout, attempt and sequence ids.

A trace becomes one attempt of one rollout. What the package's code requires, established by running it (and tested):

* Its triplet adapter takes calls from spans named `openai.chat.completion`, the conversation from `gen_ai.prompt.N.*`
  and `gen_ai.completion.N.*`, tokens from `prompt_token_ids` and `response_token_ids`.
* A span with a reward attribute is a *reward span*, and calls inside a reward span are ignored. So rewards are written
  on annotations that follow the judged run or call, never on it; matching is by time.
* It compares end times, so unfinished spans end with their trace.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from agent_forge.traces.chat import Message, conversation
from agent_forge.traces.conventions import REWARD_VALUE, to_attributes
from agent_forge.traces.span import Span, rollout_of
from agent_forge.traces.trajectory import Trajectory, assemble

CALL = "openai.chat.completion"
ANNOTATION = "agentlightning.annotation"
# Attributes that the package reads in another sense, or refuses on their own.
_ELSEWHERE = ("agentlightning.reward", "gen_ai.prompt", "gen_ai.completion", "prompt_token_ids", "response_token_ids")


def agent_lightning(traces: Iterable[Sequence[Span]], *, credit: str | None = None) -> Iterator[dict[str, Any]]:
    """The spans of traces as lines for `agentlightning.Span(**line)`, in the order of sequence ids.

    The reward of the trace follows its end, that of a single call follows the call. With `credit`, the name of a
    strategy, every call is followed by its share of the trace's outcome: a reward for each step.
    """
    for trace in traces:
        trajectory = assemble(trace)
        lines = [_line(trajectory, span) for span in trajectory.spans]
        lines += _rewards(trajectory, credit)
        lines.sort(key=lambda line: line["start_time"])
        for number, line in enumerate(lines, 1):
            yield {**line, "sequence_id": number}


def step_rewards(spans: Sequence[Span]) -> dict[str, float]:
    """The reward of each model call that has one, by span id.

    A call's own reward counts, then that of a reward span inside it or linked to it. Any other reward goes to the
    latest call that had ended before it and has none yet: Agent Lightning's rule, for rewards emitted as they occur.
    """
    calls = {span.span_id: span for span in sorted(spans, key=lambda span: span.start_ns) if span.kind == "model"}
    rewards = {span_id: span.reward for span_id, span in calls.items() if span.reward is not None}
    given = sorted((span for span in spans if span.kind == "reward"), key=lambda span: span.start_ns)
    loose: list[Span] = []
    for span in given:
        judged = next((name for name in (*(other for _, other in span.links), span.parent_id) if name in calls), None)
        if judged is None:
            loose.append(span)
        elif span.reward is not None:
            rewards.setdefault(judged, span.reward)
    for span in loose:
        before = [call for call in calls.values() if call.end_ns is not None and call.end_ns <= span.start_ns]
        open_calls = [call.span_id for call in before if call.span_id not in rewards]
        if open_calls and span.reward is not None:
            rewards[open_calls[-1]] = span.reward
    return rewards


def _is_annotation(span: Span) -> bool:
    """Whether another program recorded a reward in Agent Lightning's own manner: it stays as it is."""
    return span.kind == "reward" and span.otel_kind is not None and REWARD_VALUE in span.attributes


def _line(trajectory: Trajectory, span: Span) -> dict[str, Any]:
    attributes = _attributes(span)
    if span.kind == "model":
        attributes |= _call_attributes(span)
    line = _bare(span, span.span_id, trajectory.graph.parent[span.span_id])
    line["name"] = CALL if span.kind == "model" else span.name
    line["status"] = {"status_code": span.status.upper(), "description": span.error}
    line["attributes"] = attributes
    line["events"] = [
        {"name": event["name"], "attributes": _flat(event.get("attributes") or {}), "timestamp": event["time_ns"] / 1e9}
        for event in span.events
    ]
    line["links"] = [{"context": _context(*link), "attributes": None} for link in span.links]
    line["start_time"] = span.start_ns / 1e9
    line["end_time"] = trajectory.graph.end_ns(span.span_id) / 1e9
    return line


def _bare(span: Span, span_id: str, parent_id: str | None) -> dict[str, Any]:
    trace_id, (rollout, attempt) = span.trace_id, rollout_of(span)
    return {
        "rollout_id": rollout,
        "attempt_id": attempt,
        "sequence_id": 0,
        "trace_id": trace_id,
        "span_id": span_id,
        "parent_id": parent_id,
        "context": _context(trace_id, span_id),
        "parent": _context(trace_id, parent_id) if parent_id else None,
        "resource": {"attributes": {"service.name": "agent_forge"}, "schema_url": ""},
    }


def _context(trace_id: str, span_id: str) -> dict[str, Any]:
    return {"trace_id": trace_id, "span_id": span_id, "is_remote": False, "trace_state": {}}


def _attributes(span: Span) -> dict[str, Any]:
    attributes = {
        name: value
        for name, value in to_attributes(span, alone=True).items()
        if (not name.startswith(_ELSEWHERE) and not name.startswith("agent_forge.reward"))
        or (name.startswith(_ELSEWHERE[0]) and _is_annotation(span))
    }
    if span.agent and span.kind == "agent":
        attributes["agent.name"] = span.agent
    if span.kind == "model":
        attributes["agent_forge.name"] = span.name
    return _flat(attributes)


def _flat(attributes: dict[str, Any]) -> dict[str, Any]:
    """OpenTelemetry has strings, numbers, booleans and lists of one of them; anything else travels as JSON."""
    return {name: value if _is_plain(value) else json.dumps(value, default=str) for name, value in attributes.items()}


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return len({type(item) for item in value}) <= 1 and all(
            _is_plain(item) and not isinstance(item, (list, tuple)) for item in value
        )
    return isinstance(value, (str, bool, int)) or (isinstance(value, float) and math.isfinite(value))


def _call_attributes(span: Span) -> dict[str, Any]:
    prompt, answer = conversation(span)
    attributes: dict[str, Any] = {"gen_ai.response.id": str(span.attributes.get("gen_ai.response.id") or span.span_id)}
    for prefix, messages in (("gen_ai.prompt", prompt), ("gen_ai.completion", answer)):
        for place, message in enumerate(messages):
            attributes |= _message(f"{prefix}.{place}", message)
    if span.prompt_ids is not None:
        attributes["prompt_token_ids"] = list(span.prompt_ids)
    if span.output_ids is not None:
        attributes["response_token_ids"] = list(span.output_ids)
        if span.logprobs is not None:
            pairs = zip(span.output_ids, span.logprobs, strict=True)
            # as vLLM writes tokens with `return_tokens_as_token_ids`
            attributes["logprobs.content"] = json.dumps([{"token": f"token_id:{t}", "logprob": p} for t, p in pairs])
    return attributes


def _message(prefix: str, message: Message) -> dict[str, Any]:
    attributes = {f"{prefix}.role": message["role"], f"{prefix}.content": message["content"]}
    if message.get("tool_call_id"):
        attributes[f"{prefix}.tool_call_id"] = str(message["tool_call_id"])
    for place, call in enumerate(message.get("tool_calls", ())):
        attributes[f"{prefix}.tool_calls.{place}.id"] = str(call["id"])
        attributes[f"{prefix}.tool_calls.{place}.name"] = call["name"]
        attributes[f"{prefix}.tool_calls.{place}.arguments"] = json.dumps(call["arguments"])
    return attributes


# -- rewards -----------------------------------------------------------------------------------------------------------


def _rewards(trajectory: Trajectory, credit: str | None) -> Iterator[dict[str, Any]]:
    graph = trajectory.graph
    shares = trajectory.credit(credit) if credit else {}
    if credit is None and any(map(_is_annotation, trajectory.spans)):
        return
    for span in trajectory.spans:
        if span.kind != "model":
            continue
        value = shares.get(span.span_id) if credit else span.reward
        if value is not None:
            name = f"credit.{credit}" if credit else "reward"
            yield _annotation(span, graph.parent[span.span_id], graph.end_ns(span.span_id), [(name, value)])
    if trajectory.reward is not None:
        judged = next((span for span in trajectory.roots if span.reward is not None), trajectory.roots[0])
        values = [("reward", trajectory.reward), *_components(judged)]
        parent = judged.span_id if judged.kind != "model" else graph.parent[judged.span_id]
        yield _annotation(judged, parent, graph.last_ns, values)


def _components(span: Span) -> Iterator[tuple[str, float]]:
    parts = span.attributes.get("agent_forge.reward.components")
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict) and isinstance(value := part.get("value"), (int, float)) and math.isfinite(value):
            yield str(part.get("name", "")), float(value)


def _annotation(span: Span, parent: str | None, at_ns: int, values: Sequence[tuple[str, float]]) -> dict[str, Any]:
    from hashlib import sha256

    digest = sha256(f"{span.trace_id}{span.span_id}{values[0][0]}".encode()).hexdigest()
    line = _bare(span, digest[:16], parent)
    line |= {"name": ANNOTATION, "status": {"status_code": "OK", "description": None}, "events": [], "links": []}
    line["attributes"] = {
        f"agentlightning.reward.{place}.{field}": content
        for place, (name, value) in enumerate(values)
        for field, content in (("name", name), ("value", float(value)))
    }
    line["start_time"] = line["end_time"] = at_ns / 1e9
    return line
