"""The Shapley value: exact for small games, sampled with an error bound for others; and the game on a trace."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from itertools import accumulate, pairwise
from operator import or_
from typing import TYPE_CHECKING

from agent_forge.traces.dependencies import dependencies, in_order, recognisable_texts, targets

if TYPE_CHECKING:
    from agent_forge.traces.graph import SpanGraph


class DependencyGame:
    """The game whose Shapley value is the credit. Its players are the leaves that the outcome depends on.

    A leaf *stands* in a coalition if it belongs to it and, of each result that it used, at least one source stands; two
    sources with the same recognisable output are interchangeable, so either will do. The value of a coalition is the
    share of the targets (`dependencies.targets`) that stand: what would be left of the outcome if nothing outside the
    coalition had happened. For a success, failed leaves are not in the game: what used them did without.
    """

    def __init__(self, graph: SpanGraph, outcome: float) -> None:
        sources = dependencies(graph)
        dead = {leaf for leaf in sources if outcome >= 0 and graph.spans[leaf].status == "error"}
        ordered = in_order(graph, sources)
        goals = targets(graph, sources, outcome)
        needed = _upstream(goals, sources, dead if not set(goals) <= dead else set())
        self.players = [leaf for leaf in ordered if leaf in needed]
        number = {leaf: place for place, leaf in enumerate(self.players)}
        self.needs = [_alternatives(graph, [x for x in sources[leaf] if x in number], number) for leaf in self.players]
        self.targets = [number[leaf] for leaf in goals]
        self._goal = set(self.targets)

    @property
    def decomposes(self) -> bool:
        """Whether every needed result has one source only. Then the game is a sum of unanimity games."""
        return all(len(group) == 1 for groups in self.needs for group in groups)

    def value(self, coalition: int) -> float:
        """The value of a coalition, a bit mask over `players`."""
        standing = 0
        for place in range(len(self.needs)):
            if coalition >> place & 1 and self._stands(place, standing):
                standing |= 1 << place
        return sum(standing >> target & 1 for target in self.targets) / len(self.targets)

    def walk(self, order: list[int]) -> list[float]:
        """The 1 + len(order) values as the players join one after the other."""
        users: list[list[int]] = [[] for _ in self.players]
        for place, groups in enumerate(self.needs):
            for group in groups:
                for source in group:
                    users[source].append(place)
        joined, standing, reached, values = 0, 0, 0, [0.0]
        for player in order:
            joined |= 1 << player
            stack = [player]
            while stack:
                place = stack.pop()
                if joined >> place & 1 and not standing >> place & 1 and self._stands(place, standing):
                    standing |= 1 << place
                    reached += place in self._goal
                    stack.extend(users[place])
            values.append(reached / len(self.targets))
        return values

    def _stands(self, place: int, standing: int) -> bool:
        return all(any(standing >> source & 1 for source in group) for group in self.needs[place])

    def closed_form(self) -> list[float]:
        """A unanimity game divides its worth equally among its carrier (Shapley 1953); there is one game per target."""
        shares = [0.0] * len(self.players)
        for target in self.targets:
            carrier, stack = {target}, [target]
            while stack:
                for group in self.needs[stack.pop()]:
                    if group[0] not in carrier:
                        carrier.add(group[0])
                        stack.append(group[0])
            for place in carrier:
                shares[place] += 1 / len(carrier) / len(self.targets)
        return shares


def _upstream(targets: list[str], sources: dict[str, list[str]], dead: set[str]) -> set[str]:
    upstream, stack = set(targets), list(targets)
    while stack:
        for source in sources[stack.pop()]:
            if source not in upstream and source not in dead:
                upstream.add(source)
                stack.append(source)
    return upstream


def _alternatives(graph: SpanGraph, sources: list[str], number: dict[str, int]) -> list[list[int]]:
    groups: dict[str, list[int]] = {}
    for source in sources:
        outputs = graph.spans[source].outputs
        same = json.dumps(outputs, sort_keys=True, default=str) if any(recognisable_texts(outputs)) else source
        groups.setdefault(same, []).append(number[source])
    return list(groups.values())


def shapley_values(
    players: int,
    value: Callable[[int], float],
    *,
    walk: Callable[[list[int]], list[float]] | None = None,
    samples: int | None = None,
    seed: int = 0,
    exact_to: int = 10,
    confidence: float = 0.95,
) -> tuple[list[float], float, int]:
    """The Shapley value of any game, as (values, error bound, samples drawn).

    `value` takes a coalition as a bit mask and must be monotone. Up to `exact_to` players all 2ⁿ coalitions are
    evaluated and the bound is 0. Beyond that, or with `samples`, orders of the players are drawn at random; the
    marginals of each sum to value(all) - value(none) exactly. The bound is Hoeffding's with a union bound over the
    players: marginals lie in [0, r], r = value(all) - value(none), so with m samples no player's error exceeds
    r·√(ln(2n/(1-c)) / 2m), with probability c. `walk` is an optional faster way to the values along one order.

    >>> shapley_values(3, lambda s: float(s & 0b011 == 0b011))  # players 0 and 1 are needed, 2 is not
    ([0.5, 0.5, 0.0], 0.0, 0)
    """
    if players <= exact_to and samples is None:
        return _exact(players, value), 0.0, 0
    rng = random.Random(seed)
    drawn = samples or max(200, min(2000, 200_000 // players))
    values_along = walk or (
        lambda order: [value(coalition) for coalition in accumulate((1 << player for player in order), or_, initial=0)]
    )
    totals, order = [0.0] * players, list(range(players))
    for _ in range(drawn):
        rng.shuffle(order)
        values = values_along(order)
        for player, (before, after) in zip(order, pairwise(values), strict=True):
            totals[player] += after - before
    spread = value((1 << players) - 1) - value(0)
    bound = spread * math.sqrt(math.log(2 * players / (1 - confidence)) / (2 * drawn))
    return [total / drawn for total in totals], bound, drawn


def _exact(players: int, value: Callable[[int], float]) -> list[float]:
    worth = [value(coalition) for coalition in range(1 << players)]
    weight = [
        math.factorial(size) * math.factorial(players - size - 1) / math.factorial(players) for size in range(players)
    ]
    values = [0.0] * players
    for coalition in range(1 << players):
        size = coalition.bit_count()
        for player in range(players):
            if not coalition >> player & 1:
                values[player] += weight[size] * (worth[coalition | 1 << player] - worth[coalition])
    return values
