"""The trajectory record of the original: one JSON object per trace, one entry per turn of the agent.

{"agent", "turns": [{"observation", "action", "tool_output", "reward"}], "final_result", "correct", "done"}

A turn is a call of the model and the tool calls that it led to, or a tool call that no model asked for. The reward of
the trace is that of its last turn; a model call with a reward of its own keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent_forge.traces.chat import conversation
from agent_forge.traces.records import ORIGINAL
from agent_forge.traces.trajectory import assemble

if TYPE_CHECKING:
    from agent_forge.traces.span import Span

EXERCISE = "agent_forge.exercise"  # on the root: what was to be done, so that it can be judged again
CORRECT = "agent_forge.correct"  # on the root: whether a checker found nothing wrong


def turns(traces: Iterable[Sequence[Span]]) -> Iterator[dict[str, Any]]:
    """The records of traces."""
    return map(to_trajectory, traces)


def to_trajectory(trace: Sequence[Span]) -> dict[str, Any]:
    """A trace as a record: `correct` and rewards are null where nothing was judged. That of an exercise also names the
    exercise; one that was imported comes back as it was."""
    trajectory = assemble(trace)
    root = trajectory.roots[0]
    original = root.attributes.get(ORIGINAL)
    if isinstance(original, Mapping) and "agent" in original:
        tools = sorted((span for span in trace if span.kind == "tool"), key=lambda span: span.start_ns)
        return {"turns": [_imported(span) for span in tools], "final_result": root.outputs, **original}
    steps = _steps(trajectory.spans)
    if steps and steps[-1]["reward"] is None:
        steps[-1]["reward"] = trajectory.reward
    correct = next((span.attributes[CORRECT] for span in trace if CORRECT in span.attributes), None)
    if correct is None and trajectory.reward is not None:
        correct = trajectory.reward >= 0.5
    answer = final_answer(trace)
    record = {
        "agent": root.agent or next((span.agent for span in trace if span.agent), root.name),
        "turns": steps,
        "final_result": root.outputs if answer is None else answer,
        "correct": correct,
        "done": all(span.end_ns is not None for span in trajectory.roots),
        "reward": trajectory.reward,
        "trace_id": root.trace_id,
    }
    exercise = next((span.attributes[EXERCISE] for span in trace if EXERCISE in span.attributes), None)
    return record if exercise is None else {**record, EXERCISE: exercise}


def _imported(span: Span) -> dict[str, Any]:
    own = span.attributes.get(ORIGINAL)
    turn = {"observation": span.inputs, "action": span.name, "tool_output": span.outputs, "reward": span.reward}
    return turn | dict(own if isinstance(own, Mapping) else {})


def final_answer(trace: Sequence[Span]) -> Any:
    """What was answered in the end: the answer that a run or an agent recorded, else the last text of a model."""
    ordered = sorted(trace, key=lambda span: span.start_ns)
    for span in ordered:
        if isinstance(span.outputs, dict) and span.outputs.get("answer") is not None:
            return span.outputs["answer"]
    texts = [s.outputs.get("text") for s in ordered if s.kind == "model" and isinstance(s.outputs, dict)]
    return texts[-1] if texts else None


def _steps(spans: Iterable[Span]) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    in_turn = False  # whether a model call is waiting for the results of its tools
    for span in sorted(spans, key=lambda span: (span.start_ns, span.end_ns or 0)):
        if span.kind == "model":
            prompt, answer = conversation(span)
            calls = [call["name"] for message in answer for call in message.get("tool_calls", ())]
            seen = prompt[-1]["content"] if prompt else None
            action = ", ".join(calls) or "answer"
            steps.append({"observation": seen, "action": action, "tool_output": None, "reward": span.reward})
            in_turn = bool(calls)
        elif span.kind == "tool":
            result = {"error": span.error} if span.status == "error" else span.outputs
            if not in_turn:
                about = {"observation": span.inputs, "action": span.attributes.get("gen_ai.tool.name") or span.name}
                steps.append({**about, "tool_output": result, "reward": span.reward})
                continue
            before = steps[-1]["tool_output"]
            steps[-1]["tool_output"] = result if before is None else [*_listed(before), result]
    return steps


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
