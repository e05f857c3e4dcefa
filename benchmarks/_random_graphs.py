"""Random graphs of tasks for the executor's benchmarks, as plain data that any engine can read."""

from __future__ import annotations

import random
from dataclasses import dataclass

SPREADS = {
    "uniform": lambda rng, low_s, high_s: rng.uniform(low_s, high_s),
    # One tool in ten is 5 to 10 times slower than the fastest, the others near it.
    "tail": lambda rng, low_s, high_s: low_s * (rng.uniform(5, 10) if rng.random() < 0.1 else rng.uniform(1, 1.5)),
}


@dataclass(frozen=True)
class Graph:
    """`needs` maps tasks, in an order that respects it, to what they wait for."""

    needs: dict[str, list[str]]
    durations: dict[str, float]

    @property
    def critical_path_s(self) -> float:
        return max(self.ends().values())

    @property
    def work_s(self) -> float:
        return sum(self.durations.values())

    def ends(self) -> dict[str, float]:
        ends: dict[str, float] = {}
        for name, before in self.needs.items():
            ends[name] = max((ends[other] for other in before), default=0.0) + self.durations[name]
        return ends

    def levels(self) -> list[list[str]]:
        level: dict[str, int] = {}
        for name, before in self.needs.items():
            level[name] = 1 + max((level[other] for other in before), default=-1)
        levels: list[list[str]] = [[] for _ in range(max(level.values()) + 1)]
        for name, depth in level.items():
            levels[depth].append(name)
        return levels

    def critical_chain(self) -> list[str]:
        ends = self.ends()
        chain = [max(ends, key=ends.__getitem__)]
        while self.needs[chain[-1]]:
            chain.append(max(self.needs[chain[-1]], key=ends.__getitem__))
        return chain[::-1]


def random_graph(seed: int, count: int, low_s: float, high_s: float, spread: str = "uniform") -> Graph:
    """`count` tasks, each with 0 to 3 parents among the 30 before it."""
    rng = random.Random(seed)
    needs = {
        f"t{n}": [f"t{m}" for m in rng.sample(range(max(0, n - 30), n), min(n, rng.randint(0, 3)))]
        for n in range(count)
    }
    return Graph(needs, {name: SPREADS[spread](rng, low_s, high_s) for name in needs})
