"""The layout of an acyclic graph: in layers, with few crossings, connected nodes near each other.

The method of Sugiyama, Tagawa and Toda (1981) in four steps: each node one layer after its last predecessor; a point in
every layer that an edge crosses; sweeps that order each layer by the mean place of the neighbours (the order with the
fewest crossings wins); and places as near to those of the neighbours as order and distance allow, which is an isotonic
regression.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

SWEEPS = 12
Edge = tuple[str, str]
Item = str | tuple[str, str, int]  # a node, or the point where an edge crosses a layer


@dataclass(frozen=True)
class GraphLayout:
    """`places` has (layer, place) of every node, `routes` the points of every edge with its ends. Neighbours in a layer
    are at least 1 apart (a crossing edge takes half of that); the first place is 0."""

    places: dict[str, tuple[int, float]]
    routes: dict[Edge, list[tuple[int, float]]]
    layers: int
    breadth: float  # the largest place


def layout(nodes: Sequence[str], edges: Iterable[Edge]) -> GraphLayout:
    """Lays out a graph. Edges to or from unknown nodes are left out, and so are those of a cycle.

    >>> diamond = layout(["a", "b", "c", "d"], [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")])
    >>> [diamond.places[name][0] for name in "abcd"], diamond.breadth
    ([0, 1, 1, 2], 1.0)
    """
    names = set(nodes)
    valid = [edge for edge in dict.fromkeys(edges) if edge[0] in names and edge[1] in names and edge[0] != edge[1]]
    layer, acyclic = _layers(nodes, valid)
    rows, links, paths = _with_points(nodes, acyclic, layer)
    rows = _ordered(rows, links)
    place = _placed(rows, links)
    first = min(place.values(), default=0.0)
    places = {name: (layer[name], place[name] - first) for name in nodes}
    routes = {edge: [(depth, place[item] - first) for depth, item in path] for edge, path in paths.items()}
    return GraphLayout(places, routes, len(rows), max(place.values(), default=0.0) - first)


def _layers(nodes: Sequence[str], edges: Sequence[Edge]) -> tuple[dict[str, int], list[Edge]]:
    """The longest path from a root to each node; nodes of a cycle start at 0, without its edges."""
    waiting = dict.fromkeys(nodes, 0)
    successors: dict[str, list[str]] = {name: [] for name in nodes}
    for source, target in edges:
        waiting[target] += 1
        successors[source].append(target)
    layer = dict.fromkeys(nodes, 0)
    ready = [name for name in nodes if not waiting[name]]
    done = set(ready)
    for name in ready:
        for target in successors[name]:
            layer[target] = max(layer[target], layer[name] + 1)
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
                done.add(target)
    return layer, [(a, b) for a, b in edges if a in done and b in done]


Links = list[dict[Item, list[Item]]]  # for every layer: the neighbours of its items in the next layer


def _with_points(
    nodes: Sequence[str], edges: Sequence[Edge], layer: Mapping[str, int]
) -> tuple[list[list[Item]], Links, dict[Edge, list[tuple[int, Item]]]]:
    rows: list[list[Item]] = [[] for _ in range(max(layer.values(), default=-1) + 1)]
    for name in nodes:
        rows[layer[name]].append(name)
    links: Links = [{} for _ in rows]
    paths: dict[Edge, list[tuple[int, Item]]] = {}
    for source, target in edges:
        path: list[tuple[int, Item]] = [(layer[source], source)]
        for depth in range(layer[source] + 1, layer[target]):
            point = (source, target, depth)
            rows[depth].append(point)
            path.append((depth, point))
        path.append((layer[target], target))
        for (depth, one), (_, other) in pairwise(path):
            links[depth].setdefault(one, []).append(other)
        paths[source, target] = path
    return rows, links, paths


def _reversed(links: Links) -> Links:
    """For every layer: the neighbours of its items in the layer before."""
    back: Links = [{} for _ in links]
    for depth, following in enumerate(links[:-1]):
        for one, others in following.items():
            for other in others:
                back[depth + 1].setdefault(other, []).append(one)
    return back


def _ordered(rows: list[list[Item]], links: Links) -> list[list[Item]]:
    back = _reversed(links)
    best, fewest = [list(row) for row in rows], crossings(rows, links)
    for sweep in range(SWEEPS):
        if not fewest:
            break
        forward = sweep % 2 == 0
        depths = range(1, len(rows)) if forward else range(len(rows) - 2, -1, -1)
        for depth in depths:
            beside = rows[depth - 1 if forward else depth + 1]
            _sort_by_mean(rows[depth], beside, (back if forward else links)[depth])
        count = crossings(rows, links)
        if count < fewest:
            best, fewest = [list(row) for row in rows], count
    return best


def _sort_by_mean(row: list[Item], beside: Sequence[Item], neighbours: Mapping[Item, Sequence[Item]]) -> None:
    at = {item: place for place, item in enumerate(beside)}
    now = {item: place for place, item in enumerate(row)}

    def mean(item: Item) -> float:
        others = neighbours.get(item)
        return sum(at[other] for other in others) / len(others) if others else float(now[item])

    row.sort(key=lambda item: (mean(item), now[item]))


def crossings(rows: Sequence[Sequence[Item]], links: Links) -> int:
    """The number of pairs of edges that cross.

    >>> crossings([["a", "b"], ["c", "d"]], [{"a": ["d"], "b": ["c"]}, {}])
    1
    """
    total = 0
    for depth in range(len(rows) - 1):
        at = {item: place for place, item in enumerate(rows[depth + 1])}
        ends = [place for item in rows[depth] for place in sorted(at[other] for other in links[depth].get(item, ()))]
        seen: list[int] = []
        for place in ends:
            total += len(seen) - bisect_right(seen, place)
            insort(seen, place)
    return total


def _placed(rows: Sequence[Sequence[Item]], links: Links) -> dict[Item, float]:
    back = _reversed(links)
    place: dict[Item, float] = {}
    for row in rows:
        at = 0.0
        for item, gap in zip(row, _gaps(row), strict=True):
            at += gap
            place[item] = at
    for sweep in range(8):
        forward = sweep % 2 == 0
        for depth in range(len(rows)) if forward else range(len(rows) - 1, -1, -1):
            neighbours = (back if forward else links)[depth]
            ideal = []
            for item in rows[depth]:
                others = [place[other] for other in neighbours.get(item, ())]
                ideal.append(sum(others) / len(others) if others else place[item])
            place.update(zip(rows[depth], _nearest(ideal, _gaps(rows[depth])), strict=True))
    return place


def _gaps(row: Sequence[Item]) -> list[float]:
    """The minimum distance of each item from the one before it."""
    widths = [1.0 if isinstance(item, str) else 0.5 for item in row]
    return [0.0, *((one + other) / 2 for one, other in pairwise(widths))] if row else []


def _nearest(ideal: Sequence[float], gaps: Sequence[float]) -> list[float]:
    """The places nearest to the ideal ones (least squares) that keep order and distances: neighbours that would come
    too close form one block at the mean of their ideal places (pool adjacent violators).

    >>> _nearest([5.0, 5.0, 9.0], [0.0, 1.0, 1.0])
    [4.5, 5.5, 9.0]
    """
    offsets: list[float] = []
    for gap in gaps:
        offsets.append((offsets[-1] if offsets else 0.0) + gap)
    blocks: list[tuple[float, int]] = []  # (sum, members)
    for place, offset in zip(ideal, offsets, strict=True):
        total, members = place - offset, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / members:
            before, size = blocks.pop()
            total, members = total + before, members + size
        blocks.append((total, members))
    means = [total / members for total, members in blocks for _ in range(members)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]
