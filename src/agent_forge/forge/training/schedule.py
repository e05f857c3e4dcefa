"""Learning-rate schedules: a factor between 0 and 1 per step."""

from __future__ import annotations

import math

from agent_forge.errors import UsageError


def schedule_factor(step: int, steps: int, kind: str = "wsd", warmup: int = 0, decay: float = 0.5, floor: float = 0.05):
    """The factor at `step` of `steps`.

    "wsd" (warm-up, stable, decay) falls linearly to `floor` over the last `decay` of the run; its stable part does not
    depend on how long the run will be. "cosine" warms up, then follows half a cosine down to `floor`.

    >>> [round(schedule_factor(step, 100, warmup=10), 2) for step in (0, 9, 30, 75, 100)]
    [0.1, 1.0, 1.0, 0.53, 0.05]
    """
    if step < warmup:
        return (step + 1) / warmup
    if kind == "cosine":
        done = (step - warmup) / max(1, steps - warmup)
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    if kind == "wsd":
        left = (steps - step) / max(1.0, decay * steps)
        return floor + (1 - floor) * min(1.0, max(0.0, left))
    raise UsageError(f"there is no schedule {kind!r}", fix="Use 'wsd' or 'cosine'")
