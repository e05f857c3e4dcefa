"""Training data from traces: supervised conversations, preference pairs, and what Agent Lightning reads.

| format | one line is | for |
|---|---|---|
| messages | {"messages": [...]}: OpenAI's chat format | supervised fine-tuning (TRL, Axolotl, OpenAI) |
| sharegpt | {"conversations": [{"from", "value"}]} | supervised fine-tuning (LLaMA-Factory, Axolotl) |
| dpo | {"prompt", "chosen", "rejected"}: TRL's conversational preference format | DPO and its kin |
| agent-lightning | one span as `agentlightning` 0.3 models it | its store and its triplet adapter |
| turns | {"agent", "turns", "final_result", "correct", "done"} | the trajectory record of the original |

The store holds traces at the rate at which things happened. Balancing is done here, when sampling for training, and
reports what it did (`balanced`).
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_forge.errors import UsageError
from agent_forge.traces.chat import Message, conversation, tools_offered
from agent_forge.traces.graph import SpanGraph
from agent_forge.traces.lightning import agent_lightning
from agent_forge.traces.trajectory import Trajectory, assemble
from agent_forge.traces.turns import turns

if TYPE_CHECKING:
    from agent_forge.traces.span import Span

Trace = Sequence["Span"]


def messages(traces: Iterable[Trace], *, min_reward: float | None = None) -> Iterator[dict[str, Any]]:
    """The conversations of the traces, each once: a call that a later call continues is part of that one.

    Failed calls are left out; with `min_reward`, so are those with a smaller reward or none.
    """
    for trace in traces:
        for span, prompt, answer in _conversations(trace):
            reward = _reward(trace, span)
            if min_reward is not None and (reward is None or reward < min_reward):
                continue
            line: dict[str, Any] = {"messages": [_openai(message) for message in [*prompt, *answer]]}
            extra = {
                "tools": tools_offered(span, trace),
                "reward": reward,
                "trace_id": span.trace_id,
                "span_id": span.span_id,
            }
            yield line | {name: value for name, value in extra.items() if value is not None}


def sharegpt(traces: Iterable[Trace], *, min_reward: float | None = None) -> Iterator[dict[str, Any]]:
    """Conversations in the ShareGPT shape, with tool calls and their results as LLaMA-Factory names them."""
    for line in messages(traces, min_reward=min_reward):
        turns = [turn for message in line.pop("messages") for turn in _sharegpt(message)]
        yield {"conversations": turns, **line}


def dpo(traces: Iterable[Trace], *, margin: float = 0.1) -> Iterator[dict[str, Any]]:
    """Preference pairs: the best and the worst answer to the same conversation, at least `margin` apart in reward.

    Answers to one conversation come from different traces or calls. Answers without a reward are left out.
    """
    answers: dict[str, list[tuple[float, Span, list[Message], list[Message]]]] = {}
    for trace in traces:
        for span, prompt, answer in _calls(trace):
            reward = _reward(trace, span)
            if reward is not None and span.status != "error":
                key = json.dumps([prompt, tools_offered(span, trace)], sort_keys=True, default=str)
                answers.setdefault(key, []).append((reward, span, prompt, answer))
    for group in answers.values():
        best, worst = max(group, key=lambda entry: entry[0]), min(group, key=lambda entry: entry[0])
        if best[0] - worst[0] >= margin and best[3] != worst[3]:
            yield {
                "prompt": [_openai(message) for message in best[2]],
                "chosen": [_openai(message) for message in best[3]],
                "rejected": [_openai(message) for message in worst[3]],
                "chosen_reward": best[0],
                "rejected_reward": worst[0],
                "chosen_span": best[1].span_id,
                "rejected_span": worst[1].span_id,
            }


# format → function from traces to the lines of a file, which `agent_forge.traces.export` writes
DATASETS: dict[str, Callable[..., Iterator[dict[str, Any]]]] = {
    "messages": messages,
    "sharegpt": sharegpt,
    "dpo": dpo,
    "agent-lightning": agent_lightning,
    "turns": turns,
}


def write_dataset(traces: Iterable[Trace], format: str, path: str, **options: Any) -> int:
    """Writes a data set as JSON lines, completely or not at all, and returns their number.

    Raises UsageError for an unknown format.
    """
    from agent_forge.files import atomic_write

    if format not in DATASETS:
        raise UsageError(f"there is no data set format {format!r}", fix=f"Choose one of {', '.join(DATASETS)}")
    count = 0
    with atomic_write(path) as file:
        for line in DATASETS[format](traces, **options):
            file.write(_json(line) + "\n")
            count += 1
    return count


def _json(line: Any) -> str:
    try:
        return json.dumps(line, ensure_ascii=False, allow_nan=False)
    except ValueError:  # JSON has no NaN: such a number was not measured
        return json.dumps(_finite(line), ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# -- sampling ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """Traces drawn for training, and counts of what was drawn from; `natural_rate` is the share of successes there."""

    traces: list[Trace]
    successes: int
    failures: int
    unknown: int
    natural_rate: float | None


def balanced(traces: Iterable[Trace], size: int | None = None, *, threshold: float = 0.5, seed: int = 0) -> Sample:
    """Draws as many successes as failures, at random and without repeats; at most `size` together.

    A success has a reward of at least `threshold` or, where nothing was verified, a root that ended well. Traces with
    neither are left out. The larger class is cut down to the smaller one.
    """
    classes: dict[bool | None, list[Trace]] = {True: [], False: [], None: []}
    for trace in traces:
        classes[succeeded(assemble(trace), threshold)].append(trace)
    good, bad = classes[True], classes[False]
    each = min(len(good), len(bad), *([] if size is None else [size // 2]))
    rng = random.Random(seed)
    chosen = rng.sample(good, each) + rng.sample(bad, each)
    rng.shuffle(chosen)
    rated = len(good) + len(bad)
    return Sample(chosen, each, each, len(classes[None]), len(good) / rated if rated else None)


def succeeded(trajectory: Trajectory, threshold: float = 0.5) -> bool | None:
    """Whether a trajectory counts as a success: by its reward, else by its status, else None."""
    if trajectory.reward is not None:
        return trajectory.reward >= threshold
    return trajectory.success


# -- conversations -----------------------------------------------------------------------------------------------------

Call = tuple["Span", list[Message], list[Message]]


def _calls(trace: Trace) -> list[Call]:
    calls = []
    for span in SpanGraph(trace).spans.values():
        if span.kind == "model":
            prompt, answer = conversation(span)
            if prompt and answer:
                calls.append((span, prompt, answer))
    return calls


def _conversations(trace: Trace) -> list[Call]:
    """The calls that no later call continues, which would repeat their messages in its prompt."""
    calls = [call for call in _calls(trace) if call[0].status != "error"]
    last = []
    for place, (span, prompt, answer) in enumerate(calls):
        messages, later = prompt + answer, (prompt for _, prompt, _ in calls[place + 1 :])
        if not any(len(messages) < len(other) and other[: len(messages)] == messages for other in later):
            last.append((span, prompt, answer))
    return last


def _reward(trace: Trace, span: Span) -> float | None:
    return span.reward if span.reward is not None else assemble(trace).reward


def _openai(message: Message) -> dict[str, Any]:
    """A message as OpenAI's API takes it, with the arguments of calls as JSON text."""
    out = {name: message[name] for name in ("role", "content", "tool_call_id") if message.get(name) is not None}
    if message.get("tool_calls"):
        out["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": json.dumps(call["arguments"], ensure_ascii=False)},
            }
            for call in message["tool_calls"]
        ]
    return out


_FROM = {"system": "system", "user": "human", "assistant": "gpt", "tool": "observation"}


def _sharegpt(message: dict[str, Any]) -> Iterator[dict[str, str]]:
    if message["content"] or not message.get("tool_calls"):
        yield {"from": _FROM.get(message["role"], message["role"]), "value": message["content"]}
    for call in message.get("tool_calls", ()):
        function = call["function"]
        value = {"name": function["name"], "arguments": json.loads(function["arguments"])}
        yield {"from": "function_call", "value": json.dumps(value, ensure_ascii=False)}
