"""How close is a planned graph to a gold one: node F1, edge F1, exact match and parallelism regret.

Nodes are matched one to one. If the gold names tools, a planned node matches a gold node of the same tool, in order.
If the gold is free text, pairs are taken greedily by the F1 of their content words (stems, without references such as
`#1` and `{s1}`), best first, down to `THRESHOLD`. An edge is right if its ends are matched to the ends of a gold edge.
Regret is the planned critical path over the gold one: 1.0 is as parallel as gold, more is slower.

>>> gold = Graph(("when was A born", "when was B born", "which is first of #1, #2"), frozenset({(0, 2), (1, 2)}))
>>> plan = Graph(("date A was born", "date B was born", "which is first of {s1}, {s2}"), frozenset({(0, 1), (1, 2)}))
>>> score(plan, gold).node_f1, score(plan, gold).edge_f1, score(plan, gold).regret
(1.0, 0.5, 1.5)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from agent_forge.tasks.words import content_words

THRESHOLD = 0.3
_REFERENCE = re.compile(r"#\d+|\{[\w.\[\]]+\}")


@dataclass(frozen=True, slots=True)
class Graph:
    """The texts (or tool names) of the steps, and edges (before, after)."""

    nodes: tuple[str, ...]
    edges: frozenset[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class PlanScore:
    node_f1: float
    edge_f1: float
    exact: float
    regret: float


def score(planned: Graph, gold: Graph, *, by_tool: bool = False, durations: Sequence[float] | None = None) -> PlanScore:
    """The scores of a planned graph. `durations` are those of the gold nodes; unmatched nodes take their mean."""
    match = match_tools(planned.nodes, gold.nodes) if by_tool else match_texts(planned.nodes, gold.nodes)
    right = sum((match.get(a), match.get(b)) in gold.edges for a, b in planned.edges)
    node = f1(len(match), len(planned.nodes), len(gold.nodes))
    edge = f1(right, len(planned.edges), len(gold.edges))
    times = list(durations or [1.0] * len(gold.nodes))
    mean = sum(times) / len(times)
    mine = [times[match[i]] if i in match else mean for i in range(len(planned.nodes))]
    regret = longest_path(planned.edges, mine) / longest_path(gold.edges, times)
    return PlanScore(node, edge, float(node == edge == 1.0), regret)


def f1(right: int, planned: int, gold: int) -> float:
    """Two empty sets agree: 1.0."""
    return 2 * right / (planned + gold) if planned + gold else 1.0


def match_tools(planned: Sequence[str], gold: Sequence[str]) -> dict[int, int]:
    free: dict[str, list[int]] = {}
    for index, name in enumerate(gold):
        free.setdefault(name, []).append(index)
    return {i: free[name].pop(0) for i, name in enumerate(planned) if free.get(name)}


def match_texts(planned: Sequence[str], gold: Sequence[str], threshold: float = THRESHOLD) -> dict[int, int]:
    left, right = ([Counter(content_words(_REFERENCE.sub(" ", text))) for text in texts] for texts in (planned, gold))
    pairs = [(similarity(a, b), -i, -j) for i, a in enumerate(left) for j, b in enumerate(right)]
    match: dict[int, int] = {}
    for value, i, j in sorted(pairs, reverse=True):
        if value >= threshold and -i not in match and -j not in match.values():
            match[-i] = -j
    return match


def similarity(a: Counter[str], b: Counter[str]) -> float:
    """Token F1; 1.0 for two texts that consist of references only."""
    return f1(sum((a & b).values()), sum(a.values()), sum(b.values()))


def longest_path(edges: frozenset[tuple[int, int]], durations: Sequence[float]) -> float:
    """The length of the critical path; the edges must be acyclic."""
    before: dict[int, list[int]] = {}
    for a, b in edges:
        before.setdefault(b, []).append(a)
    ends: dict[int, float] = {}

    def end(node: int) -> float:
        if node not in ends:
            ends[node] = durations[node] + max(map(end, before.get(node, ())), default=0.0)
        return ends[node]

    return max(map(end, range(len(durations))))
