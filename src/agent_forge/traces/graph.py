"""The structure of a trace: which span contains which, which used whose result, what had to wait for what.

A span contains its children (`parent_id`); a link says that a span used the result of another. Both imply an order: if
U links to V, all work inside U comes after all work inside V. Real traces are untidy, so nothing here refuses them:
what does not fit (a missing parent, a clock that ran backwards, a cycle of links) is left out of the order and listed
in `faults`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from agent_forge.traces.span import Span


@dataclass(frozen=True, slots=True)
class GraphFault:
    """Something wrong with the spans that was worked around.

    Codes: duplicate_span, missing_parent, parent_cycle, unfinished, negative_duration, outside_parent, dangling_link,
    containment_link, link_cycle, overlapping_link, contradicting_clock.
    """

    code: str
    span_id: str
    message: str


class SpanGraph:
    """The spans of a trace or a session with their structure resolved.

    `spans` is in order of start; `parent`, `children`, `roots` and `leaves` (spans without parts) use span ids;
    `sources[b]` are the spans in this graph whose results b used; `results[p]` are the spans inside p that p itself
    links to: what its own result came from.
    """

    def __init__(self, spans: Iterable[Span]) -> None:
        self.faults: list[GraphFault] = []
        self.spans: dict[str, Span] = self._unique(spans)
        self.last_ns = max((span.end_ns or span.start_ns for span in self.spans.values()), default=0)
        self.parent = self._parents()
        self.children: dict[str | None, list[str]] = defaultdict(list)
        for span_id in self.spans:
            self.children[self.parent[span_id]].append(span_id)
        self.roots = self.children[None]
        self.leaves = [span_id for span_id in self.spans if not self.parts(span_id) and not self._judges_leaf(span_id)]
        self._check_times()
        self.results: dict[str, list[str]] = defaultdict(list)
        self.sources = self._links()
        self._drop_cycles()

    # -- reading the spans ---------------------------------------------------------------------------------------

    def _fault(self, code: str, span_id: str, message: str) -> None:
        self.faults.append(GraphFault(code, span_id, message))

    def _unique(self, spans: Iterable[Span]) -> dict[str, Span]:
        unique: dict[str, Span] = {}
        for span in sorted(spans, key=lambda span: (span.start_ns, span.span_id)):
            if span.span_id in unique:
                self._fault("duplicate_span", span.span_id, "was recorded twice; the later record is used")
            unique[span.span_id] = span
        return unique

    def _parents(self) -> dict[str, str | None]:
        parent: dict[str, str | None] = {}
        for span_id, span in self.spans.items():
            parent[span_id] = span.parent_id if span.parent_id in self.spans else None
            if span.parent_id and parent[span_id] is None:
                self._fault(
                    "missing_parent", span_id, f"its parent {span.parent_id} is missing; it is treated as a root"
                )
        for span_id in _on_parent_cycles(parent):
            self._fault("parent_cycle", span_id, "is its own ancestor; it is treated as a root")
            parent[span_id] = None
        return parent

    def _check_times(self) -> None:
        for span_id, span in self.spans.items():
            if span.end_ns is None:
                self._fault("unfinished", span_id, "has no end; it is counted up to the end of the trace")
            elif span.end_ns < span.start_ns:
                self._fault("negative_duration", span_id, "ends before it starts; it counts as 0 s")
            parent = self.parent[span_id]
            outer = span if parent is None else self.spans[parent]
            late = span.end_ns is not None and outer.end_ns is not None and span.end_ns > outer.end_ns
            if span.start_ns < outer.start_ns or late:
                self._fault(
                    "outside_parent", span_id, "is not inside its parent: clocks differ, or it outlived its parent"
                )

    def _links(self) -> dict[str, tuple[str, ...]]:
        sources: dict[str, tuple[str, ...]] = {}
        for span_id, span in self.spans.items():
            linked = (source for link in span.links if (source := self._link(span, link)) is not None)
            sources[span_id] = tuple(dict.fromkeys(linked))
        return sources

    def _link(self, span: Span, link: Sequence[str]) -> str | None:
        trace_id, source = link[0], link[1]
        if source not in self.spans or self.spans[source].trace_id != trace_id:
            if trace_id == span.trace_id:
                self._fault("dangling_link", span.span_id, f"links to {source}, which is not among the spans")
            return None
        if span.span_id in self.ancestors(source):
            self.results[span.span_id].append(source)
            return None
        if source == span.span_id or source in self.ancestors(span.span_id):
            self._fault("containment_link", span.span_id, f"links to {source}, which contains it")
            return None
        if self.end_ns(source) > span.start_ns:
            self._fault("overlapping_link", span.span_id, f"started before the end of {source}, whose result it used")
        return source

    def _drop_cycles(self) -> None:
        cycle = components(*self._event_edges(observed=False))
        for span_id, sources in self.sources.items():
            acyclic = tuple(source for source in sources if cycle[_end(source)] != cycle[_start(span_id)])
            for source in sources:
                if source not in acyclic:
                    self._fault("link_cycle", span_id, f"its link to {source} closes a cycle; the link is left out")
            self.sources[span_id] = acyclic

    # -- questions -----------------------------------------------------------------------------------------------

    def ancestors(self, span_id: str) -> Iterator[str]:
        """The spans that contain `span_id`, innermost first."""
        parent = self.parent[span_id]
        while parent is not None:
            yield parent
            parent = self.parent[parent]

    def parts(self, span_id: str) -> list[str]:
        """The spans that a span consists of: its children, unless they only judge it."""
        children = self.children.get(span_id, [])
        return children if any(self.spans[child].kind != "reward" for child in children) else []

    def _judges_leaf(self, span_id: str) -> bool:
        parent = self.parent[span_id]
        return self.spans[span_id].kind == "reward" and parent is not None and not self.parts(parent)

    def end_ns(self, span_id: str) -> int:
        """When a span ended; for one without an end, the end of the trace."""
        span = self.spans[span_id]
        return max(span.start_ns, self.last_ns if span.end_ns is None else span.end_ns)

    def duration_ns(self, span_id: str) -> int:
        """From start to `end_ns`, so never None and never negative."""
        return self.end_ns(span_id) - self.spans[span_id].start_ns

    def longest_chain(self) -> tuple[list[str], int]:
        """The critical path: the leaves of the longest chain of work that had to happen in order, and its length in ns.

        Linear in spans and links: each span is an edge from its start to its end, as long as its duration if it is a
        leaf and 0 if it only contains others; starts wait for the parent's start and the ends of what is linked, ends
        for the ends of the children. The chain is the longest path through these events.
        """
        nodes, edges = self._event_edges(observed=True)
        order = _topological(nodes, edges)
        if order is None:
            self._fault("contradicting_clock", self.roots[0], "the clock contradicts the links; the links are used")
            nodes, edges = self._event_edges(observed=False)
            order = _topological(nodes, edges) or []
        return self._heaviest(order, edges)

    def _heaviest(self, order: list[Event], edges: dict[Event, list[Event]]) -> tuple[list[str], int]:
        leaves = set(self.leaves)
        best: dict[Event, tuple[int, int]] = {}
        came_from: dict[Event, Event] = {}
        for event in order:
            here = best.setdefault(event, (0, 0))
            side, span_id = event
            for after in edges[event]:
                own = side == "start" and after == _end(span_id) and span_id in leaves
                reached = (here[0] + self.duration_ns(span_id), here[1] + 1) if own else here
                if after not in best or reached > best[after]:
                    best[after], came_from[after] = reached, event
        if not best:
            return [], 0
        last = max(best, key=lambda event: best[event])
        path, event = [], last
        while event in came_from:
            before = came_from[event]
            if before[0] == "start" and event == _end(before[1]) and before[1] in leaves:
                path.append(before[1])
            event = before
        return path[::-1], best[last][0]

    # -- events and their order ----------------------------------------------------------------------------------

    def _event_edges(self, *, observed: bool) -> tuple[list[Event], dict[Event, list[Event]]]:
        nodes: list[Event] = []
        edges: dict[Event, list[Event]] = defaultdict(list)
        for span_id in self.spans:
            nodes += [_start(span_id), _end(span_id)]
            edges[_start(span_id)].append(_end(span_id))
            parent = self.parent[span_id]
            if parent is not None:
                edges[_start(parent)].append(_start(span_id))
                edges[_end(span_id)].append(_end(parent))
            for source in self.sources[span_id]:
                edges[_end(source)].append(_start(span_id))
        if observed:
            for group in self.observed_groups():
                nodes += self._clock_edges(group, edges)
        return nodes, edges

    def observed_groups(self) -> list[list[str]]:
        """Groups of siblings without links between them, whose order only the clock shows."""
        linked: set[str | None] = set()  # spans between whose children there are links
        for span_id, sources in self.sources.items():
            above = set(self.ancestors(span_id))
            for source in sources:
                linked.add(next((ancestor for ancestor in self.ancestors(source) if ancestor in above), None))
        return [
            group
            for parent, group in self.children.items()
            if len(group) > 1 and parent not in linked and not self._records_links(parent)
        ]

    def _records_links(self, parent: str | None) -> bool:
        """Our executor links every task to what it used: its tasks without links are independent, not sequential."""
        if parent is None or self.spans[parent].kind != "run":
            return False
        ours = (self.spans[parent].scope or {}).get("name", "agent_forge") == "agent_forge"
        return ours and {self.spans[child].kind for child in self.children[parent]} == {"task"}

    def _clock_edges(self, group: list[str], edges: dict[Event, list[Event]]) -> list[Event]:
        """Orders siblings that did not overlap through a chain of clock events: linear, where pairs would be n²."""
        moments = sorted(
            {self.spans[span_id].start_ns for span_id in group} | {self.end_ns(span_id) for span_id in group}
        )
        clock = {moment: ("clock", f"{group[0]}@{moment}") for moment in moments}
        for earlier, later in pairwise(moments):
            edges[clock[earlier]].append(clock[later])
        for span_id in group:
            if self.duration_ns(span_id) == 0:
                continue  # its start and its end would be the same clock event
            edges[_end(span_id)].append(clock[self.end_ns(span_id)])
            edges[clock[self.spans[span_id].start_ns]].append(_start(span_id))
        return list(clock.values())


Event = tuple[str, str]
Node = TypeVar("Node", bound=Hashable)


def _start(span_id: str) -> Event:
    return ("start", span_id)


def _end(span_id: str) -> Event:
    return ("end", span_id)


def _topological(nodes: list[Event], edges: dict[Event, list[Event]]) -> list[Event] | None:
    """The nodes with every edge pointing forward (Kahn), or None when there is a cycle."""
    waiting = dict.fromkeys(nodes, 0)
    for node in nodes:
        for after in edges.get(node, ()):
            waiting[after] += 1
    ready = deque(node for node in nodes if waiting[node] == 0)
    order = []
    while ready:
        node = ready.popleft()
        order.append(node)
        for after in edges.get(node, ()):
            waiting[after] -= 1
            if waiting[after] == 0:
                ready.append(after)
    return order if len(order) == len(nodes) else None


def components(nodes: Sequence[Node], edges: Mapping[Node, Sequence[Node]]) -> dict[Node, int]:
    """The strongly connected component of each node (Kosaraju): two nodes share one when each leads to the other."""
    backward: dict[Node, list[Node]] = defaultdict(list)
    for node in nodes:
        for after in edges.get(node, ()):
            backward[after].append(node)
    component: dict[Node, int] = {}
    for number, first in enumerate(reversed(_by_finish(nodes, edges))):
        stack = [first]
        while stack:
            node = stack.pop()
            if node not in component:
                component[node] = number
                stack.extend(before for before in backward[node] if before not in component)
    return component


def _by_finish(nodes: Sequence[Node], edges: Mapping[Node, Sequence[Node]]) -> list[Node]:
    """The nodes in the order in which a depth-first search leaves them."""
    seen: set[Node] = set()
    left: list[Node] = []
    for first in nodes:
        stack = [] if first in seen else [(first, iter(edges.get(first, ())))]
        seen.add(first)
        while stack:
            node, rest = stack[-1]
            after = next((after for after in rest if after not in seen), None)
            if after is None:
                left.append(node)
                stack.pop()
            else:
                seen.add(after)
                stack.append((after, iter(edges.get(after, ()))))
    return left


def _on_parent_cycles(parent: dict[str, str | None]) -> list[str]:
    """One span of each cycle of parents, at which to cut it."""
    settled: set[str] = set()
    cuts = []
    for span_id in parent:
        walk: list[str] = []
        on_walk: set[str] = set()
        at: str | None = span_id
        while at is not None and at not in settled and at not in on_walk:
            walk.append(at)
            on_walk.add(at)
            at = parent[at]
        if at is not None and at in on_walk:
            cuts.append(at)
        settled.update(walk)
    return cuts
