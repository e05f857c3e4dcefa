"""Which leaf of a trace used which leaf's result: from the links, and from texts that reappear."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_forge.traces.graph import SpanGraph

RECOGNISABLE = 12  # least characters of a result whose reappearance means anything ("ok" is everywhere)
QUOTABLE = 40  # least characters of a single line of a longer result
TEXT_LIMIT = 300  # most leaves for which inputs are searched for earlier results: every pair is compared


def workers(graph: SpanGraph) -> list[str]:
    """The leaves that can get credit, in the order in which they ended."""
    leaves = [leaf for leaf in graph.leaves if graph.spans[leaf].kind != "reward"]
    return sorted(leaves, key=lambda leaf: (graph.end_ns(leaf), graph.spans[leaf].start_ns, leaf))


def dependencies(graph: SpanGraph) -> dict[str, list[str]]:
    """For each leaf, the leaves whose results it used.

    A link is carried down to the leaves: everything inside the linking span used what the linked span ended with (its
    leaves that no other part of it used). Results whose text reappears in a later leaf's input are added.
    """
    finals = _finals(graph)
    sources: dict[str, list[str]] = {}
    for leaf in graph.leaves:
        if graph.spans[leaf].kind == "reward":  # judging a result is not using it
            sources[leaf] = []
            continue
        linked = (source for span_id in (leaf, *graph.ancestors(leaf)) for source in graph.sources[span_id])
        sources[leaf] = list(dict.fromkeys(final for source in linked for final in finals(source)))
    if len(graph.leaves) <= TEXT_LIMIT:
        rank = {leaf: place for place, leaf in enumerate(in_order(graph, sources))}
        for source, leaf in _reappearances(graph):
            if rank[source] < rank[leaf] and source not in sources[leaf]:  # forward only, so it closes no circle
                sources[leaf].append(source)
    return sources


def _finals(graph: SpanGraph) -> Callable[[str], list[str]]:
    """A function from a span to the leaves that its result came from."""
    used: set[str] = set()  # spans that a sibling, or something inside one, used: not what their parent ends with
    for span_id, sources in graph.sources.items():
        if graph.spans[span_id].kind == "reward":
            continue
        around = {span_id, *graph.ancestors(span_id)}
        for source in sources:
            line = [source, *graph.ancestors(source)]
            outers = [*line[1:], None]
            used.add(next(x for x, outer in zip(line, outers, strict=True) if outer is None or outer in around))
    cache: dict[str, list[str]] = {}

    def finals(span_id: str) -> list[str]:
        if span_id not in cache:
            inside = graph.parts(span_id)
            last = graph.results.get(span_id) or [child for child in inside if child not in used] or inside
            cache[span_id] = [leaf for child in last for leaf in finals(child)] if inside else [span_id]
        return cache[span_id]

    return finals


def in_order(graph: SpanGraph, sources: dict[str, list[str]]) -> list[str]:
    """The leaves, each after what it used, and otherwise in the order in which they started."""
    users: dict[str, list[str]] = {leaf: [] for leaf in sources}
    waiting = {leaf: len(before) for leaf, before in sources.items()}
    for leaf, before in sources.items():
        for source in before:
            users[source].append(leaf)
    ready = [(graph.spans[leaf].start_ns, leaf) for leaf, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        leaf = heapq.heappop(ready)[1]
        order.append(leaf)
        for user in users[leaf]:
            waiting[user] -= 1
            if waiting[user] == 0:
                heapq.heappush(ready, (graph.spans[user].start_ns, user))
    return order


def _reappearances(graph: SpanGraph) -> Iterator[tuple[str, str]]:
    """Pairs (a, b): a text that a put out is part of the input of b, which started after a had ended."""
    texts = {leaf: set(_quotable(graph.spans[leaf].outputs)) for leaf in graph.leaves}
    users = [leaf for leaf in graph.leaves if graph.spans[leaf].kind != "reward"]
    inputs = {leaf: "\0".join(recognisable_texts(graph.spans[leaf].inputs)) for leaf in users}
    for a in filter(texts.get, graph.leaves):
        for b in filter(inputs.get, users):
            later = a != b and graph.end_ns(a) <= graph.spans[b].start_ns
            if later and any(text in inputs[b] for text in texts[a]):
                yield a, b


def _quotable(outputs: Any) -> Iterator[str]:
    """The texts of an output, and the lines of longer ones: an answer is quoted in parts."""
    for text in recognisable_texts(outputs):
        yield text
        yield from (line.strip() for line in text.splitlines() if len(line.strip()) >= QUOTABLE)


def recognisable_texts(value: Any) -> Iterator[str]:
    """The recognisable strings in a JSON value."""
    stack = [value]
    while stack:
        top = stack.pop()
        if isinstance(top, str):
            if len(top.strip()) >= RECOGNISABLE:
                yield top.strip()
        elif isinstance(top, dict):
            stack.extend(top.values())
        elif isinstance(top, (list, tuple)):
            stack.extend(top)


def targets(graph: SpanGraph, sources: dict[str, list[str]], outcome: float) -> list[str]:
    """The leaves that the outcome depends on.

    For a failure (a negative outcome), the leaves that failed, if any. Otherwise those that the roots link to as their
    results (`results`); without such links, the leaves that did not fail and whose result no other leaf used.
    """
    used = {source for before in sources.values() for source in before}
    leaves = workers(graph)
    failed = [leaf for leaf in leaves if graph.spans[leaf].status == "error"]
    if outcome < 0 and failed:
        return failed
    finals = _finals(graph)
    stated = {leaf for root in graph.roots for inner in graph.results.get(root, ()) for leaf in finals(inner)}
    ends = [leaf for leaf in leaves if leaf in stated] or [leaf for leaf in leaves if leaf not in used]
    return [leaf for leaf in ends if leaf not in failed] or ends
