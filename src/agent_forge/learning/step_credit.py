"""Rewards of single steps as advantages of single model calls, along the dependency graph of a trace.

A run is a graph, not a line: a call is judged by its own reward and by the rewards of what used its result, directly or
through others. What ran beside it, or before it, says nothing about it. (Where a run has only one reward, at its end,
`traces.credit` shares that out instead.)

    advantages = call_advantages(traces, groups)      # for each trace: {span id of a model call: advantage}
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from agent_forge.errors import UsageError
from agent_forge.traces.dependencies import dependencies, targets
from agent_forge.traces.graph import SpanGraph
from agent_forge.traces.scores import judged_rewards, trace_reward

if TYPE_CHECKING:
    from agent_forge.traces.span import Span


def call_returns(spans: Iterable[Span], *, discount: float = 1.0) -> dict[str, float]:
    """What each model call of a run led to, by span id, in order of start: the sum of all rewards that depend on it,
    each times `discount` for every step in between.

    The reward of a whole run depends on the leaves that the run ends with (`traces.dependencies.targets`), that of a
    span with parts on all of them. A reward that a judge gave counts instead of what the program recorded itself.
    """
    graph = SpanGraph(spans)
    sources, judged = dependencies(graph), judged_rewards(graph.spans.values())
    inside = {span_id: _leaves(graph, span_id) for span_id, span in graph.spans.items() if span.kind != "reward"}
    earned: list[tuple[float, list[str]]] = []  # rewards, and the leaves that each depends on
    outcome = trace_reward(list(graph.spans.values()))
    if outcome is not None:
        earned.append((outcome, targets(graph, sources, outcome)))
    for span_id, leaves in inside.items():
        reward = judged.get(span_id, graph.spans[span_id].reward)
        if reward is not None and span_id not in graph.roots:  # those of the roots are the outcome
            earned.append((reward, leaves))
    returns = {span_id: 0.0 for span_id in inside if graph.spans[span_id].kind == "model"}
    for reward, leaves in earned:
        steps = _steps_before(leaves, sources)
        for call in returns:
            distances = [steps[leaf] for leaf in inside[call] if leaf in steps]
            if distances:
                returns[call] += reward * discount ** min(distances)
    return returns


def call_advantages(
    runs: Sequence[Iterable[Span]], groups: Sequence[int], *, discount: float = 1.0, scale: bool = True
) -> list[dict[str, float]]:
    """For each run, the advantage of each of its model calls: its return compared with that of the call of the same
    number in the other runs of its group (runs of one task). Raises UsageError if a run has no group."""
    if len(runs) != len(groups):
        raise UsageError(f"there are {len(runs)} runs and {len(groups)} groups: every run needs one")
    import torch

    from agent_forge.forge.training.policy import step_advantages

    returns = [call_returns(spans, discount=discount) for spans in runs]
    rows = [torch.tensor(list(each.values()), dtype=torch.double) for each in returns]
    if not any(map(len, rows)):
        return [{} for _ in runs]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)  # [N, K]
    mask = torch.arange(padded.shape[1]) < torch.tensor([[len(row)] for row in rows])
    # returns hold what came later already: nothing more is added up
    advantages = step_advantages(padded, mask, torch.tensor(groups), discount=0.0, scale=scale)
    return [dict(zip(each, row.tolist(), strict=False)) for each, row in zip(returns, advantages, strict=True)]


def _leaves(graph: SpanGraph, span_id: str) -> list[str]:
    return [leaf for leaf in graph.leaves if leaf == span_id or span_id in graph.ancestors(leaf)]


def _steps_before(leaves: Iterable[str], sources: dict[str, list[str]]) -> dict[str, int]:
    """How many steps each leaf that these depend on lies before them, breadth first; themselves 0."""
    steps = dict.fromkeys(leaves, 0)
    queue = list(steps)
    for leaf in queue:  # it grows while it is read
        for source in sources[leaf]:
            if source not in steps:
                steps[source] = steps[leaf] + 1
                queue.append(source)
    return steps
