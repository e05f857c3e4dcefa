"""The verdict: has the champion beaten the best parent on data that selected neither?

The best parent is the best on the held-out data itself, which leans towards the parents. A champion passes if its
fitness is higher by more than a thousandth and two standard errors, paired item by item, and if no single task lost
more than a bound. Else the verdict is "no gain" and the best parent goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agent_forge.forge.evolution.fitness import Measured, Yardstick
from agent_forge.forge.gates import NO_GAIN, GateResult, judge

METRIC = "fitness on held-out data"
LEAST_GAIN = 0.001  # what the search takes for standing still; less may be rounding, which has small errors too


@dataclass(frozen=True)
class Verdict:
    """The gate, who was beaten or not, and where the champion lost most."""

    gate: GateResult
    best_parent: str
    worst_task: str
    worst_change: float  # of the champion's score on that task, as a share of the best parent's

    @property
    def passed(self) -> bool:
        return self.gate.passed

    def as_dict(self) -> dict[str, Any]:
        return {
            "champion": self.gate.after,
            "best_parent": self.gate.before,
            "stderr": self.gate.stderr,
            "best_parent_name": self.best_parent,
            "worst_task": {"name": self.worst_task, "change": self.worst_change},
        }


def reach_verdict(
    yardstick: Yardstick, champion: Measured, parents: Mapping[str, Measured], worst_loss: float, sigmas: float = 2.0
) -> Verdict:
    """Compares the champion with the best of the parents."""
    best = max(parents, key=lambda name: yardstick.fitness(parents[name]))
    parent = parents[best]
    _, error = yardstick.difference(champion, parent)
    before, after = yardstick.fitness(parent), yardstick.fitness(champion)
    gate = judge(METRIC, before, after, error, lower_is_better=False, sigmas=sigmas, least_gain=LEAST_GAIN)
    changes = {
        task: yardstick.task_score(task, champion) / max(1e-9, yardstick.task_score(task, parent)) - 1
        for task in yardstick.kinds
    }
    worst = min(changes, key=changes.__getitem__)
    if gate.passed and changes[worst] < -worst_loss:
        gate = replace(gate, verdict=NO_GAIN)
    return Verdict(gate, best, worst, changes[worst])
