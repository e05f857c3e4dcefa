"""Scores of what was done: the result of a run, a stored trace, or a trajectory record of the original.

The record is `{"agent", "turns": [{"observation", "action", "tool_output", "reward"}], "final_result", "correct",
"done"}`; `traces export --format turns` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agent_forge.errors import UsageError
from agent_forge.rewards.profiles import RewardProfile, reward_profile
from agent_forge.rewards.reward import Reward, _family, judged, score
from agent_forge.tasks import Exercise, Verdict, family
from agent_forge.traces.scores import roots
from agent_forge.traces.span import Span
from agent_forge.traces.turns import EXERCISE, final_answer

Expected = Mapping[str, Any] | Exercise | None


def score_result(profile: str | RewardProfile, result: Any, expected: Mapping[str, Any] | Exercise) -> Reward:
    """The reward of what `run` or `Agent.run` returned."""
    usage = result.usage
    counts = [count for count in (usage.input_tokens, usage.output_tokens) if count is not None]
    messages = getattr(result, "messages", ())
    output = result.answer
    if output is None and messages and messages[-1]["role"] == "assistant":
        output = messages[-1].get("content")  # what was written, although it had not the form asked for
    states = [call["state"] if isinstance(call, Mapping) else call.state for call in result.calls]
    facts = {
        "prompt": getattr(result, "request", None),
        "observations": [m["content"] for m in messages if m["role"] == "tool"] or getattr(result, "observation", None),
        "latency_s": getattr(result, "wall_s", None),
        "tokens": sum(counts) if counts else None,
        "calls": usage.tool_calls,
        "turns": usage.model_calls,
        "tool_errors": sum(state == "failed" for state in states),
    }
    return score(profile, output or "", expected, {k: v for k, v in facts.items() if v is not None})


def score_trace(spans: Sequence[Span], profile: str | RewardProfile | None = None, expected: Expected = None) -> Reward:
    """The reward of a stored trace; by default with the profile of its agent and the exercise that it names.

    Raises UsageError for a trace that names no exercise, if nothing is `expected`.
    """
    root = roots(spans)[0]
    exercise = expected if expected is not None else exercise_of(spans)
    if exercise is None:
        raise UsageError("the trace does not say what was expected", where=root.trace_id, fix="Pass `expected`")
    models = [span for span in spans if span.kind == "model"]
    tools = [span for span in spans if span.kind == "tool"]
    counts = [c for span in models for c in (span.input_tokens, span.output_tokens) if c is not None]
    request = next((s.inputs["request"] for s in spans if isinstance(s.inputs, dict) and "request" in s.inputs), None)
    facts: dict[str, Any] = {
        "prompt": request,
        "observations": [span.outputs for span in spans if span.kind in ("observation", "tool")],
        "latency_s": root.duration_s,
        "tokens": sum(counts) if counts else None,
        "calls": len(tools),
        "turns": len(models),
        "tool_errors": sum(span.status == "error" for span in tools),
    }
    facts = {name: value for name, value in facts.items() if value is not None}
    return score(profile or str(root.agent), final_answer(spans) or "", exercise, facts)


def exercise_of(spans: Sequence[Span]) -> Exercise | None:
    """The exercise that a trace was about, drawn again from its seed; None if it names none."""
    found = next((span.attributes[EXERCISE] for span in spans if EXERCISE in span.attributes), None)
    return None if found is None else exercise_from(found)


def exercise_from(document: Mapping[str, Any]) -> Exercise:
    """The exercise of a document with all of its fields, or with family, seed, level and held_out alone."""
    if "expected" in document:
        return Exercise(**document)
    return family(document["family"]).make(document["seed"], document["level"], held_out=document["held_out"])


def score_record(
    record: Mapping[str, Any], profile: str | RewardProfile | None = None, expected: Expected = None
) -> Reward:
    """The reward of a trajectory record. Where neither it nor the caller says what was expected, its own `correct` is
    believed. Raises UsageError for a record without the fields of one."""
    missing = [name for name in ("agent", "turns", "final_result") if name not in record]
    if missing:
        raise UsageError(f"the trajectory record has no {', '.join(missing)}")
    turns = record["turns"]
    observed = [turn.get("tool_output") for turn in turns if turn.get("tool_output") is not None]
    facts: dict[str, Any] = {
        "prompt": next((turn["observation"] for turn in turns if turn.get("observation")), None),
        "observations": observed,
        "calls": len(observed),
        "turns": len(turns),
        "tool_errors": sum(isinstance(o, Mapping) and bool(o.get("error")) for o in observed),
    }
    name = profile or str(record["agent"])
    if expected is None and EXERCISE in record:
        expected = exercise_from(record[EXERCISE])
    output = record["final_result"]
    output = "" if output is None else output if isinstance(output, str) else json.dumps(output)
    if expected is not None:
        return score(name, output, expected, facts)
    if not isinstance(record.get("correct"), bool):
        raise UsageError("the record does not say whether it is correct", fix="Pass `expected`")
    rules = name if isinstance(name, RewardProfile) else reward_profile(name)
    verdict = Verdict.of(record["correct"], "the record says that it is wrong")
    return judged(rules, _family(rules, None), verdict, output, None, facts)
