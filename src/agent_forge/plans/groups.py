"""Hierarchy turned into plain edges: which leaves a dependency between groups really means.

A group is done when its leaves are, so a dependency *on* a group waits for its last leaves (those nothing inside the
group waits for), and a dependency *of* a group holds back its first leaves (those that wait for nothing inside it).
Everything between follows from the edges inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class Groups:
    """The forest that `parent` makes of the tasks. Built from parents that are known to exist and to have no cycle."""

    def __init__(self, parents: Mapping[str, str | None]) -> None:
        self.parents = parents
        self.children: dict[str, list[str]] = {}
        for name, parent in parents.items():
            if parent is not None:
                self.children.setdefault(parent, []).append(name)
        self.depth = self._depths()

    def _depths(self) -> dict[str, int]:
        depth: dict[str, int] = {}
        waiting = [(name, 0) for name, parent in self.parents.items() if parent is None]
        while waiting:
            name, level = waiting.pop()
            depth[name] = level
            waiting.extend((child, level + 1) for child in self.children.get(name, ()))
        return depth

    def leaves(self, name: str) -> list[str]:
        """The leaves under a task in plan order of each group; a task without children is its own leaf."""
        leaves, waiting = [], [name]
        while waiting:
            each = waiting.pop()
            below = self.children.get(each)
            if below is None:
                leaves.append(each)
            else:
                waiting.extend(reversed(below))
        return leaves

    def related(self, one: str, other: str) -> bool:
        """Whether one of two tasks is a group around the other."""
        inner, outer = (one, other) if self.depth[one] > self.depth[other] else (other, one)
        for _ in range(self.depth[inner] - self.depth[outer]):
            inner = self.parents[inner] or ""
        return inner == outer

    def meeting_depth(self, one: str, other: str) -> int:
        """The depth of the innermost group that holds both, -1 when only the plan does."""
        depth, parents = self.depth, self.parents
        while one != other:
            if depth[one] >= depth[other]:
                up = parents[one]
                one = up if up is not None else ""
            else:
                up = parents[other]
                other = up if up is not None else ""
            if up is None:
                return -1
        return depth[one]


def leaf_edges(groups: Groups, stated: Mapping[str, Sequence[str]], most: int) -> dict[str, tuple[str, ...]] | None:
    """Edges between any tasks made into edges between leaves; None when they would be more than `most`.

    `last[x]` is the depth at which x stops being a last leaf: inside any group at that depth or above, something waits
    for x. `first` is the same for what x waits for. Both are inherited by everything under x.
    """
    last, first = _cut_depths(groups, stated)
    sinks: dict[str, list[str]] = {}
    sources: dict[str, list[str]] = {}
    count = 0
    for name, before in stated.items():
        sources[name] = _ends(groups, name, first)
        for other in before:
            if other not in sinks:
                sinks[other] = _ends(groups, other, last)
            count += len(sources[name]) * len(sinks[other])
    if count > most:
        return None
    edges: dict[str, dict[str, None]] = {name: {} for name in groups.parents if name not in groups.children}
    for name, before in stated.items():
        for other in before:
            for source in sources[name]:
                edges[source].update(dict.fromkeys(sinks[other]))
    return {name: tuple(before) for name, before in edges.items()}


def _ends(groups: Groups, name: str, cut: Mapping[str, int]) -> list[str]:
    depth = groups.depth[name]
    return [leaf for leaf in groups.leaves(name) if leaf == name or cut[leaf] < depth]


def _cut_depths(groups: Groups, stated: Mapping[str, Sequence[str]]) -> tuple[dict[str, int], dict[str, int]]:
    last = dict.fromkeys(groups.parents, -1)
    first = dict.fromkeys(groups.parents, -1)
    for name, before in stated.items():
        for other in before:
            depth = groups.meeting_depth(name, other)
            last[other] = max(last[other], depth)
            first[name] = max(first[name], depth)
    for name in sorted(groups.parents, key=groups.depth.__getitem__):
        parent = groups.parents[name]
        if parent is not None:
            last[name] = max(last[name], last[parent])
            first[name] = max(first[name], first[parent])
    return last, first
