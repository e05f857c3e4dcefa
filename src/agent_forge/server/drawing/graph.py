"""A graph as SVG: boxes from left to right, the critical path in bold; with very many nodes, small squares."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from agent_forge.server.drawing.layers import Edge, GraphLayout, layout
from agent_forge.server.drawing.wording import short

MOST = 2_000  # nodes; a larger picture would be unreadable
LABELLED = 90  # nodes up to which there is room for words
MOST_EDGES = 4_000
# The sign of each state, so that it can be told without its colour.
SIGNS = {
    "done": "✓", "completed": "✓", "skipped": "↷", "failed": "✗", "error": "✗", "timed_out": "⏱", "denied": "⊘",
    "cancelled": "⊘", "running": "●", "started": "●", "no gain": "=", "in_doubt": "?", "interrupted": "!",
    "paused": "‖", "ok": "✓", "promoted": "✓", "rolled_back": "↶", "damaged": "!",
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
    """The size of boxes and of the gaps between them."""

    width: float
    height: float
    layer: float  # from one layer to the next
    place: float  # from one place to the next
    letters: int  # of a label
    downwards: bool = False  # layers one below the other


WORDS = Measure(172, 44, 226, 58, 20)
TALL = Measure(132, 44, 76, 142, 15, downwards=True)
SQUARES = Measure(12, 12, 34, 18, 0)
ROOM = 570  # the width beside a timeline
WHOLE = 1_150  # the width of a page


def state_class(state: str) -> str:
    """The CSS class of a state.

    >>> state_class("no gain")
    'is-no-gain'
    """
    return "is-" + "".join(letter if letter.isalnum() else "-" for letter in state.lower())


def draw_graph(
    nodes: Sequence[Node],
    edges: Iterable[Edge],
    critical: Collection[Edge] = (),
    name: str = "",
    room: float = ROOM,
) -> Markup:
    """The graph as one SVG element; empty if there are too many nodes for a picture."""
    if not nodes or len(nodes) > MOST:
        return Markup("")
    unique = list(dict.fromkeys(edges))
    places = layout([node.id for node in nodes], unique if len(unique) <= MOST_EDGES else [])
    measure = _measure(places, len(nodes), room)
    width, height = (value + 4 for value in _corner(places.layers - 1, places.breadth, measure))
    width, height = width + measure.width, height + measure.height
    lines = [_edge(route, measure, edge in critical) for edge, route in places.routes.items()]
    boxes = [_box(node, places, measure) for node in nodes]
    return Markup(
        '<svg class="graph" role="group" aria-label="{0}" viewBox="0 0 {1:.0f} {2:.0f}" width="{1:.0f}"'
        ' height="{2:.0f}"{3}>{4}{5}</svg>'
    ).format(
        name or f"graph of {len(nodes)} nodes",
        width,
        height,
        Markup(' data-wide=""') if width > ROOM else "",
        Markup("").join(lines),
        Markup("").join(boxes),
    )


def _measure(places: GraphLayout, nodes: int, room: float) -> Measure:
    """From left to right, unless that is too wide and downwards is not."""
    if nodes > LABELLED:
        return SQUARES
    across = (places.layers - 1) * WORDS.layer + WORDS.width
    down = places.breadth * TALL.place + TALL.width
    return TALL if across > room >= down else WORDS


def _corner(layer: float, place: float, measure: Measure) -> tuple[float, float]:
    """The upper left corner of a box."""
    if measure.downwards:
        return place * measure.place + 4, layer * measure.layer + 4
    return layer * measure.layer + 4, place * measure.place + 4


def _edge(route: Sequence[tuple[int, float]], measure: Measure, critical: bool) -> Markup:
    """A curve from box to box, straight where it crosses a layer."""
    corners = [_corner(layer, place, measure) for layer, place in route]
    if measure.downwards:
        corners = [(y, x + measure.width / 2) for x, y in corners]  # drawn as if from left to right, then turned
    else:
        corners = [(x, y + measure.height / 2) for x, y in corners]
    deep = measure.height if measure.downwards else measure.width
    path = [("M", [(corners[0][0] + deep, corners[0][1])])]
    for (x, y), (to_x, to_y) in pairwise(corners):
        middle = (x + deep + to_x) / 2
        path.append(("C", [(middle, y), (middle, to_y), (to_x, to_y)]))
        if (to_x, to_y) != corners[-1]:
            path.append(("L", [(to_x + deep, to_y)]))
    turn = -1 if measure.downwards else 1
    words = [letter + " ".join("{:.1f} {:.1f}".format(*point[::turn]) for point in points) for letter, points in path]
    return Markup('<path class="{}" d="{}"/>').format("edge critical" if critical else "edge", "".join(words))


def _box(node: Node, places: GraphLayout, measure: Measure) -> Markup:
    layer, place = places.places[node.id]
    x, y = _corner(layer, place, measure)
    kind = f"node {state_class(node.state)}{' critical' if node.critical else ''}"
    title = node.title or f"{node.label} {node.note} ({node.state})"
    body = _words(node, measure) if measure.letters else Markup("")
    inner = Markup(
        '<g class="{}" transform="translate({:.1f} {:.1f})"><title>{}</title>'
        '<rect class="box" width="{:.0f}" height="{:.0f}" rx="{}"/>{}</g>'
    ).format(kind, x, y, title, measure.width, measure.height, 7 if measure.letters else 3, body)
    if not node.href:
        return inner
    return Markup('<a href="{}" data-panel="" data-node="{}" aria-label="{}">{}</a>').format(
        node.href, node.id, title, inner
    )


def _words(node: Node, measure: Measure) -> Markup:
    sign = Markup('<text class="sign" x="{}" y="18">{}</text>').format(measure.width - 18, SIGNS.get(node.state, "·"))
    label = Markup('<text class="label" x="12" y="18">{}</text>').format(short(node.label, measure.letters))
    note = Markup('<text class="note" x="12" y="34">{}</text>').format(short(node.note, measure.letters + 4))
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
