"""A graph as SVG: boxes from left to right, the critical path drawn strongly; very many nodes become small squares."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from agent_forge.server.drawing.layers import Edge, Layout, layout
from agent_forge.server.drawing.wording import short

MOST = 2_000  # nodes: beyond it a picture tells nothing
LABELLED = 90  # up to so many nodes have room for words
MOST_EDGES = 4_000
# What each state looks like besides its colour, so that it can be told without it.
SIGNS = {
    "done": "✓", "completed": "✓", "skipped": "↷", "failed": "✗", "error": "✗", "timed_out": "⏱", "denied": "⊘",
    "cancelled": "⊘", "running": "●", "started": "●", "no gain": "=", "in_doubt": "?", "interrupted": "!",
    "paused": "‖", "ok": "✓",
}  # fmt: skip


@dataclass(frozen=True)
class Node:
    """A box. `state` gives its colour and sign, `progress` (0 to 1) a bar along its lower edge."""

    id: str
    label: str
    note: str = ""
    state: str = "waiting"
    href: str = ""
    critical: bool = False
    progress: float | None = None
    title: str = ""


@dataclass(frozen=True)
class Measure:
    """The size of boxes and of what is between them."""

    width: float
    height: float
    across: float  # from one layer to the next
    down: float  # from one place to the next


WORDS = Measure(172, 44, 226, 58)
SQUARES = Measure(12, 12, 34, 18)


def state_class(state: str) -> str:
    """The CSS class of a state.

    >>> state_class("no gain")
    'is-no-gain'
    """
    return "is-" + "".join(letter if letter.isalnum() else "-" for letter in state.lower())


def draw_graph(nodes: Sequence[Node], edges: Iterable[Edge], critical: Collection[Edge] = (), name: str = "") -> Markup:
    """The graph as one SVG element; the empty text where there are too many nodes for a picture."""
    if not nodes or len(nodes) > MOST:
        return Markup("")
    kept = list(dict.fromkeys(edges))
    found = layout([node.id for node in nodes], kept if len(kept) <= MOST_EDGES else [])
    measure = WORDS if len(nodes) <= LABELLED else SQUARES
    width = found.layers * measure.across - (measure.across - measure.width) + 8
    height = found.breadth * measure.down + measure.height + 8
    lines = [_edge(route, measure, edge in critical) for edge, route in found.routes.items()]
    boxes = [_box(node, found, measure) for node in nodes]
    return Markup(
        '<svg class="graph" role="group" aria-label="{0}" viewBox="0 0 {1:.0f} {2:.0f}" width="{1:.0f}"'
        ' height="{2:.0f}">{3}{4}</svg>'
    ).format(name or f"graph of {len(nodes)} nodes", width, height, Markup("").join(lines), Markup("").join(boxes))


def _edge(route: Sequence[tuple[int, float]], measure: Measure, critical: bool) -> Markup:
    points = [(layer * measure.across + 4, place * measure.down + measure.height / 2 + 4) for layer, place in route]
    path = [f"M{points[0][0] + measure.width:.1f} {points[0][1]:.1f}"]
    for (x, y), (to_x, to_y) in pairwise(points):
        start = x + measure.width
        middle = (start + to_x) / 2
        path.append(f"C{middle:.1f} {y:.1f} {middle:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}")
        path.append(f"H{to_x + measure.width:.1f}" if (to_x, to_y) != points[-1] else "")
    kind = "edge critical" if critical else "edge"
    return Markup('<path class="{}" d="{}"/>').format(kind, "".join(path))


def _box(node: Node, found: Layout, measure: Measure) -> Markup:
    layer, place = found.places[node.id]
    x, y = layer * measure.across + 4, place * measure.down + 4
    kind = f"node {state_class(node.state)}{' critical' if node.critical else ''}"
    title = node.title or f"{node.label} {node.note} ({node.state})"
    body = _words(node, measure) if measure is WORDS else Markup("")
    inner = Markup(
        '<g class="{}" transform="translate({:.1f} {:.1f})"><title>{}</title>'
        '<rect class="box" width="{:.0f}" height="{:.0f}" rx="{}"/>{}</g>'
    ).format(kind, x, y, title, measure.width, measure.height, 7 if measure is WORDS else 3, body)
    if not node.href:
        return inner
    return Markup('<a href="{}" data-panel data-node="{}" aria-label="{}">{}</a>').format(
        node.href, node.id, title, inner
    )


def _words(node: Node, measure: Measure) -> Markup:
    sign = Markup('<text class="sign" x="{}" y="18">{}</text>').format(measure.width - 18, SIGNS.get(node.state, "·"))
    label = Markup('<text class="label" x="12" y="18">{}</text>').format(short(node.label, 20))
    note = Markup('<text class="note" x="12" y="34">{}</text>').format(short(node.note, 27))
    parts = [
        Markup('<rect class="stripe" width="4" height="{:.0f}" rx="2"/>').format(measure.height),
        label,
        note,
        sign,
    ]
    if node.progress is not None:
        done = max(0.0, min(1.0, node.progress)) * measure.width
        parts.append(
            Markup('<rect class="progress" y="{:.0f}" width="{:.1f}" height="3" rx="1.5"/>').format(
                measure.height - 3, done
            )
        )
    return Markup("").join(parts)
