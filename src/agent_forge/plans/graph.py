"""Graph algorithms on `{id: ids it waits for}`: linear, and without recursion, so a chain of 100,000 tasks is fine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

Edges = Mapping[str, Sequence[str]]


def invert(dependencies: Edges) -> dict[str, list[str]]:
    """Who waits for each node, in the order of the nodes.

    >>> invert({"a": (), "b": ("a",)})
    {'a': ['b'], 'b': []}
    """
    dependents: dict[str, list[str]] = {node: [] for node in dependencies}
    for node, before in dependencies.items():
        for other in before:
            dependents[other].append(node)
    return dependents


def topological(dependencies: Edges, dependents: Edges) -> list[str]:
    """An order in which each node follows what it waits for (Kahn); nodes on or behind a cycle are left out."""
    missing = {node: len(before) for node, before in dependencies.items() if before}
    order = [node for node in dependencies if node not in missing]
    for node in order:  # grows while it is walked
        for other in dependents[node]:
            left = missing[other] - 1
            missing[other] = left
            if not left:
                order.append(other)
    return order


def cycles(dependencies: Edges, order: Iterable[str], most: int = 20) -> list[list[str]]:
    """Some cycles among the nodes that `topological` left out, each as [a, b, ..., a] with a waiting for b.

    Every node that is left waits for another that is left, so a walk along the dependencies must close. Walks that run
    into an earlier one stop there: one cycle is shown for each knot, not every cycle in it.
    """
    placed = set(order)
    left = {node: before for node, before in dependencies.items() if node not in placed}
    paths: list[list[str]] = []
    seen: set[str] = set()
    for start in left:
        path: dict[str, None] = {}
        node = start
        while node not in seen:
            seen.add(node)
            path[node] = None
            node = next(other for other in left[node] if other in left)
        if node in path:
            steps = list(path)
            paths.append([*steps[steps.index(node) :], node])
            if len(paths) == most:
                break
    return paths


def level_of(dependencies: Edges, order: Iterable[str]) -> dict[str, int]:
    """The level of each node: 0 with nothing to wait for, else one more than the highest it waits for."""
    level: dict[str, int] = {}
    for node in order:
        before = dependencies[node]
        level[node] = 1 + max([level[other] for other in before]) if before else 0
    return level


def ranks(dependents: Edges, order: Sequence[str], durations: Mapping[str, float] | None) -> dict[str, float]:
    """The longest time from the start of each node to the end of everything behind it (its upward rank)."""
    rank: dict[str, float] = {}
    for node in reversed(order):
        after = dependents[node]
        own = 1.0 if durations is None else durations[node]
        rank[node] = own + max([rank[other] for other in after]) if after else own
    return rank


def needless(dependencies: Edges, level: Mapping[str, int], rank: Mapping[str, float]) -> set[tuple[str, str]]:
    """Edges (before, after) that a longer path makes needless: what transitive reduction removes.

    For each node the ancestors of its dependencies are walked. A dependency can only be met below a node of higher
    level and lower rank than its own, so the walk stays between the two; memory is linear.
    """
    removable: set[tuple[str, str]] = set()
    for node, before in dependencies.items():
        if len(before) < 2:
            continue
        candidates = set(before)
        lowest = min([level[other] for other in before])
        highest = max([rank[other] for other in before])
        waiting = [other for other in before if level[other] > lowest and rank[other] < highest]
        seen = set(waiting)
        while waiting:
            for other in dependencies[waiting.pop()]:
                if other in candidates:
                    removable.add((other, node))
                if other not in seen and level[other] > lowest and rank[other] < highest:
                    seen.add(other)
                    waiting.append(other)
    return removable
