"""A trajectory: the spans of one trace or one session, assembled with their structure and figures.

**Critical path.** The leaves of a trace (spans that contain nothing but their judgements) are its work. Leaf x must
come before leaf y if y, or a span that contains y, links to x or to a span that contains x; and so on through chains of
links. Siblings without links between their subtrees are ordered by the clock where they did not overlap (except the
tasks of one of our runs, which record every link: without links they are independent). The critical path is the longest
chain of this order, each leaf counting its duration: no amount of parallelism makes this work take less.

    >>> from agent_forge.traces.span import Span
    >>> def span(name, start, end, parent=None, links=()):
    ...     return Span(trace_id="1" * 32, span_id=name * 16, parent_id=parent, name=name, kind="tool", status="ok",
    ...                 start_ns=start * 10**9, end_ns=end * 10**9, links=[("1" * 32, link * 16) for link in links])
    >>> spans = [span("a", 0, 9), span("b", 0, 3, "a" * 16), span("c", 0, 5, "a" * 16), span("d", 5, 9, "a" * 16, "bc")]
    >>> path = assemble(spans).critical_path
    >>> [span_id[0] for span_id in path]
    ['c', 'd']
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any
from unicodedata import east_asian_width

from agent_forge.errors import TraceError
from agent_forge.terminal import printable
from agent_forge.traces.graph import GraphFault, SpanGraph
from agent_forge.traces.scores import scores, trace_reward

if TYPE_CHECKING:
    from agent_forge.traces.credit import Credits
    from agent_forge.traces.span import Span

_NS = 1e9
_NAMED = 6  # names at each end of a long critical path


@dataclass(frozen=True)
class Trajectory:
    """What happened in a trace or a session. Every figure derives from `spans`; None means not measured."""

    spans: tuple[Span, ...]
    graph: SpanGraph = field(repr=False, compare=False)

    @cached_property
    def total_s(self) -> float:
        """From the first start to the last end."""
        return (self.graph.last_ns - min(span.start_ns for span in self.spans)) / _NS

    @cached_property
    def _chain(self) -> tuple[list[str], int]:
        return self.graph.longest_chain()

    @property
    def critical_path(self) -> list[str]:
        """The ids of the leaves on the critical path, in order."""
        return self._chain[0]

    @property
    def critical_path_s(self) -> float:
        return self._chain[1] / _NS

    @cached_property
    def work_s(self) -> float:
        """The durations of all leaves together: the time they would take one after the other."""
        return sum(self.graph.duration_ns(leaf) for leaf in self.graph.leaves) / _NS

    @cached_property
    def idle_s(self) -> float:
        """Time in which no leaf was running: waiting, or work without a span of its own."""
        graph = self.graph
        busy = _union_ns([(graph.spans[leaf].start_ns, graph.end_ns(leaf)) for leaf in graph.leaves])
        return max(0.0, self.total_s - busy / _NS)

    @property
    def parallelism(self) -> float | None:
        """The average number of leaves running at once."""
        return self.work_s / self.total_s if self.total_s else None

    @property
    def parallelism_limit(self) -> float | None:
        """The best possible parallelism: work over critical path."""
        return self.work_s / self.critical_path_s if self.critical_path_s else None

    @property
    def roots(self) -> list[Span]:
        return [self.graph.spans[span_id] for span_id in self.graph.roots]

    @property
    def success(self) -> bool | None:
        """Whether every root ended well; None if none failed but not all recorded a status."""
        statuses = [span.status for span in self.roots if span.kind != "reward"]
        if "error" in statuses:
            return False
        return True if statuses and all(status == "ok" for status in statuses) else None

    @cached_property
    def reward(self) -> float | None:
        """The mean over the judges, otherwise what the program recorded (see `scores.trace_reward`); None if nothing
        was verified."""
        return trace_reward(self.spans)

    @property
    def tools(self) -> list[str]:
        """The names of the tools in the order of their calls: those of the tool spans, and those that an agent whose
        calls have no spans, such as a delegation, is said to have used."""
        names: list[str] = []
        for span in self.spans:
            listed = span.attributes.get("agent_forge.tools")
            if span.kind == "tool":
                names.append(str(span.attributes.get("gen_ai.tool.name") or span.name))
            elif isinstance(listed, list) and not self.graph.children.get(span.span_id):
                names += map(str, listed)
        return names

    @property
    def cost(self) -> float | None:
        cost: float | None = self._measured("cost")
        return cost

    @property
    def input_tokens(self) -> int | None:
        tokens: int | None = self._measured("input_tokens")
        return tokens

    @property
    def output_tokens(self) -> int | None:
        tokens: int | None = self._measured("output_tokens")
        return tokens

    @property
    def faults(self) -> list[GraphFault]:
        """What is wrong with the spans and was worked around."""
        _ = self._chain
        return self.graph.faults

    def _measured(self, name: str) -> Any:
        """The sum over the outermost spans that have the figure, which includes that of the spans they contain."""
        values, stack = [], list(self.graph.roots)
        while stack:
            span_id = stack.pop()
            value = getattr(self.graph.spans[span_id], name)
            if value is None:
                stack.extend(self.graph.children.get(span_id, ()))
            else:
                values.append(value)
        return sum(values) if values else None

    def credit(self, strategy: str = "shapley", outcome: float | None = None) -> Credits:
        """The outcome, by default the reward, shared out over the spans; see `agent_forge.traces.credit`. Empty if
        there is neither: a run that nobody checked has earned nothing."""
        from agent_forge.traces.credit import Credits, credit

        outcome = self.reward if outcome is None else outcome
        return Credits() if outcome is None else credit(self.graph, outcome, strategy)

    def to_json(self, strategy: str = "shapley", outcome: float | None = None) -> dict[str, Any]:
        """One JSON document with the figures, the spans in order, the critical path and the credit of each span."""
        shares = self.credit(strategy, outcome)
        origin = "given" if outcome is not None else "reward" if self.reward is not None else None
        return {
            "traces": sorted({span.trace_id for span in self.spans}),
            "session": next((span.session for span in self.spans if span.session), None),
            "spans": [self._row(span) for span in self.spans],
            "total_s": self.total_s,
            "work_s": self.work_s,
            "idle_s": self.idle_s,
            "critical_path": self.critical_path,
            "critical_path_s": self.critical_path_s,
            "parallelism": self.parallelism,
            "parallelism_limit": self.parallelism_limit,
            "success": self.success,
            "reward": self.reward,
            "cost": self.cost,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "tools": self.tools,
            "outcome": self.reward if outcome is None else outcome,
            "outcome_from": origin,
            "scores": [judgement.to_json() for judgement in scores(self.spans)],
            "credit": dict(shares),
            "credit_strategy": strategy,
            "credit_error_bound": shares.error_bound,
            "faults": [
                {"code": fault.code, "span_id": fault.span_id, "message": fault.message} for fault in self.faults
            ],
        }

    def _row(self, span: Span) -> dict[str, Any]:
        first = self.spans[0].start_ns
        return {
            "span_id": span.span_id,
            "parent_id": span.parent_id,
            "name": span.name,
            "kind": span.kind,
            "start_s": (span.start_ns - first) / _NS,
            "duration_s": None if span.end_ns is None else self.graph.duration_ns(span.span_id) / _NS,
            "status": span.status,
            "error": span.error,
            "agent": span.agent,
            "model": span.model,
            "reward": span.reward,
            "links": list(self.graph.sources[span.span_id]),
        }


def assemble(spans: Iterable[Span]) -> Trajectory:
    """The trajectory of the spans of a trace or a session. Raises TraceError without spans."""
    graph = SpanGraph(spans)
    if not graph.spans:
        raise TraceError("there are no spans to assemble", fix="`agent-forge traces ls` shows the traces")
    return Trajectory(tuple(graph.spans.values()), graph)


def waterfall(trajectory: Trajectory, width: int = 100, credit: Mapping[str, float] | None = None) -> str:
    """The trajectory as text: one line per span, with a bar on the time line; critical leaves are solid.

    ✗ marks a failed span, ~ one without an end; the last column is the credit, if passed.
    """
    labels = {span.span_id: _label(trajectory, span) for span in trajectory.spans}
    column = min(max(map(_cells, labels.values())), max(16, width // 2 - 4))
    bars = max(10, width - column - (22 if credit else 14))
    lines = []
    for span_id in _depth_first(trajectory.graph):
        label = _fitted(labels[span_id], column)
        share = f" {credit[span_id]:+.3f}" if credit and span_id in credit else ""
        seconds = trajectory.graph.duration_ns(span_id) / _NS
        lines.append(f"{label} {_bar(trajectory, span_id, bars)} {seconds:9.3f} s{share}")
    return "\n".join([*lines, "", _totals(trajectory)])


def _cells(text: str) -> int:
    """The width of a text on a terminal: East Asian letters and emoji take two cells."""
    return len(text) if text.isascii() else sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def _fitted(label: str, column: int) -> str:
    if _cells(label) > column:
        while _cells(label) > column - 1:
            label = label[:-1]
        label += "…"
    return label + " " * (column - _cells(label))


def _bar(trajectory: Trajectory, span_id: str, width: int) -> str:
    graph, span = trajectory.graph, trajectory.graph.spans[span_id]
    first = trajectory.spans[0].start_ns
    whole = max(1, graph.last_ns - first)
    begin = min(width - 1, (span.start_ns - first) * width // whole)
    length = max(1, min(width - begin, -(-graph.duration_ns(span_id) * width // whole)))
    mark = "█" if span_id in trajectory.critical_path else "░" if graph.parts(span_id) else "▒"
    sign = "✗" if span.status == "error" else "~" if span.end_ns is None else " "
    return f"{sign}{' ' * begin}{mark * length:<{width - begin}}"


def _label(trajectory: Trajectory, span: Span) -> str:
    depth = sum(1 for _ in trajectory.graph.ancestors(span.span_id))
    who = f" ({span.agent or span.model})" if span.agent or span.model else ""
    return printable(f"{'  ' * depth}{span.name}{who}")


def _totals(trajectory: Trajectory) -> str:
    names = [trajectory.graph.spans[span_id].name for span_id in trajectory.critical_path]
    if len(names) > 2 * _NAMED:
        names = [*names[:_NAMED], f"… {len(names) - 2 * _NAMED:,} more …", *names[-_NAMED:]]
    path = printable(" → ".join(names))
    ended = {True: "succeeded", False: "failed", None: "outcome not recorded"}[trajectory.success]
    measured = {
        "reward": None if trajectory.reward is None else f"{trajectory.reward:.3f}",
        "cost": None if trajectory.cost is None else f"{trajectory.cost:.6g}",
        "tokens in": trajectory.input_tokens,
        "tokens out": trajectory.output_tokens,
    }
    figures = "".join(f", {name} {value}" for name, value in measured.items() if value is not None)
    return (
        f"{len(trajectory.spans)} spans in {trajectory.total_s:.3f} s, {ended}{figures}\n"
        f"critical path {trajectory.critical_path_s:.3f} s: {path}"
    )


def _depth_first(graph: SpanGraph) -> list[str]:
    order, stack = [], list(reversed(graph.roots))
    while stack:
        span_id = stack.pop()
        order.append(span_id)
        stack.extend(reversed(graph.children.get(span_id, [])))
    return order


def _union_ns(intervals: list[tuple[int, int]]) -> int:
    """The length of the union of intervals."""
    total, reached = 0, None
    for start, end in sorted(intervals):
        if reached is None or start > reached:
            total, reached = total + end - start, end
        elif end > reached:
            total, reached = total + end - reached, end
    return total
