"""The trajectory record of the original: one JSON object per trace, one entry per turn of the agent.

{"agent", "turns": [{"observation", "action", "tool_output", "reward"}], "final_result", "correct", "done"}

A turn is a call of the model and the tool calls that it led to, or a tool call that no model asked for. The reward of
the trace is that of its last turn; a model call with a reward of its own keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from agent_forge.traces.chat import conversation
from agent_forge.traces.trajectory import assemble

if TYPE_CHECKING:
    from agent_forge.traces.span import Span

EXERCISE = "agent_forge.exercise"  # on the root: what was to be done, so that it can be judged again
CORRECT = "agent_forge.correct"  # on the root: whether a checker found nothing wrong


def turns(traces: Iterable[Sequence[Span]]) -> Iterator[dict[str, Any]]:
    """The records of traces; those of exercises also name the exercise."""
    for trace in traces:
        trajectory = assemble(trace)
        root = trajectory.roots[0]
        steps = _steps(trajectory.spans)
        if steps and steps[-1]["reward"] is None:
            steps[-1]["reward"] = trajectory.reward
        correct = next((span.attributes[CORRECT] for span in trace if CORRECT in span.attributes), None)
        if correct is None:
            correct = trajectory.reward >= 0.5 if trajectory.reward is not None else trajectory.success
        record = {
            "agent": root.agent,
            "turns": [{**step, "reward": step["reward"] or 0.0} for step in steps],
            "final_result": final_answer(trace),
            "correct": correct,
            "done": all(span.end_ns is not None for span in trajectory.roots),
            "reward": trajectory.reward,
            "trace_id": root.trace_id,
        }
        exercise = next((span.attributes[EXERCISE] for span in trace if EXERCISE in span.attributes), None)
        yield record if exercise is None else {**record, EXERCISE: exercise}


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
                steps.append({"observation": None, "action": span.name, "tool_output": result, "reward": span.reward})
                continue
            before = steps[-1]["tool_output"]
            steps[-1]["tool_output"] = result if before is None else [*_listed(before), result]
    return steps


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
