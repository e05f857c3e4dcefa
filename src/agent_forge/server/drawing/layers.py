"""Where the nodes of an acyclic graph go: in layers, with few crossings, near what they are connected with.

The method of Sugiyama, Tagawa and Toda (1981) in four steps: each node one layer behind the last it waits for; a point
in every layer that an edge passes; sweeps that order each layer by the mean place of the neighbours (the order with
the fewest crossings is kept); and places as near to those of the neighbours as order and distance allow, which is an
isotonic regression.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

SWEEPS = 12
Edge = tuple[str, str]
Item = str | tuple[str, str, int]  # a node, or the point where an edge passes a layer


@dataclass(frozen=True)
class Layout:
    """`places` has (layer, place) of every node, `routes` the points of every edge, its ends included. Neighbours in a
    layer are at least 1 apart (a passing edge takes half of that); the first place is 0."""

    places: dict[str, tuple[int, float]]
    routes: dict[Edge, list[tuple[int, float]]]
    layers: int
    breadth: float  # the largest place


def layout(nodes: Sequence[str], edges: Iterable[Edge]) -> Layout:
    """Lays out a graph. Edges to or from unknown nodes are left out, and so are those that would close a circle.

    >>> found = layout(["a", "b", "c", "d"], [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")])
    >>> [found.places[name][0] for name in "abcd"], found.breadth
    ([0, 1, 1, 2], 1.0)
    """
    known = set(nodes)
    kept = [edge for edge in dict.fromkeys(edges) if edge[0] in known and edge[1] in known and edge[0] != edge[1]]
    layer, kept = _layers(nodes, kept)
    rows, links, paths = _with_points(nodes, kept, layer)
    rows = _ordered(rows, links)
    place = _placed(rows, links)
    first = min(place.values(), default=0.0)
    places = {name: (layer[name], place[name] - first) for name in nodes}
    routes = {edge: [(depth, place[item] - first) for depth, item in path] for edge, path in paths.items()}
    return Layout(places, routes, len(rows), max(place.values(), default=0.0) - first)


def _layers(nodes: Sequence[str], edges: Sequence[Edge]) -> tuple[dict[str, int], list[Edge]]:
    """The longest way from a beginning to each node; what lies on a circle begins at 0, its edges left out."""
    waiting = dict.fromkeys(nodes, 0)
    after: dict[str, list[str]] = {name: [] for name in nodes}
    for source, target in edges:
        waiting[target] += 1
        after[source].append(target)
    layer = dict.fromkeys(nodes, 0)
    ready = [name for name in nodes if not waiting[name]]
    done = set(ready)
    for name in ready:
        for target in after[name]:
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
    for depth, found in enumerate(links[:-1]):
        for one, others in found.items():
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
        found = crossings(rows, links)
        if found < fewest:
            best, fewest = [list(row) for row in rows], found
    return best


def _sort_by_mean(row: list[Item], beside: Sequence[Item], neighbours: Mapping[Item, Sequence[Item]]) -> None:
    at = {item: place for place, item in enumerate(beside)}
    now = {item: place for place, item in enumerate(row)}

    def mean(item: Item) -> float:
        found = neighbours.get(item)
        return sum(at[other] for other in found) / len(found) if found else float(now[item])

    row.sort(key=lambda item: (mean(item), now[item]))


def crossings(rows: Sequence[Sequence[Item]], links: Links) -> int:
    """How many pairs of edges cross.

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
            found = (back if forward else links)[depth]
            wanted = [_mean([place[other] for other in found.get(item, ())], place[item]) for item in rows[depth]]
            place.update(zip(rows[depth], _nearest(wanted, _gaps(rows[depth])), strict=True))
    return place


def _gaps(row: Sequence[Item]) -> list[float]:
    """The least distance of each item from the one before it."""
    widths = [1.0 if isinstance(item, str) else 0.5 for item in row]
    return [0.0, *((one + other) / 2 for one, other in pairwise(widths))] if row else []


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _nearest(wanted: Sequence[float], gaps: Sequence[float]) -> list[float]:
    """The places nearest to those wanted (least squares) that keep the order and the distances: neighbours that would
    come too close share one block at the mean of what they want (pool adjacent violators).

    >>> _nearest([5.0, 5.0, 9.0], [0.0, 1.0, 1.0])
    [4.5, 5.5, 9.0]
    """
    offsets: list[float] = []
    for gap in gaps:
        offsets.append((offsets[-1] if offsets else 0.0) + gap)
    blocks: list[tuple[float, int]] = []  # (sum, members)
    for want, offset in zip(wanted, offsets, strict=True):
        total, members = want - offset, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / members:
            before, size = blocks.pop()
            total, members = total + before, members + size
        blocks.append((total, members))
    means = [total / members for total, members in blocks for _ in range(members)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]
