"""Readings of two arms with given counts, for tests of decisions."""

from __future__ import annotations

from typing import Any

from agent_forge.rollout import Moments, Readings, Rollout, StageReading

DAY_S = 86_400.0


class Arms:
    """The source of a step: each day adds units to the stage that the rollout is in, at fixed success rates."""

    def __init__(self, candidate: float = 0.9, baseline: float = 0.9, per_day: int = 2_000) -> None:
        self.rates = (candidate, baseline)
        self.per_day = per_day
        self.stages: dict[int, list[int]] = {}
        self.last_s: float | None = None
        self.more: dict[str, Any] = {}

    def serve(self, rollout: Rollout, now_s: float) -> None:
        units = self.stages.setdefault(rollout.stage, [0, 0])
        units[0] += round(self.per_day * rollout.share)
        units[1] += round(self.per_day * (1 - rollout.share))
        self.last_s = now_s

    def __call__(self, rollout: Rollout, now_s: float) -> Readings:
        stages = tuple(
            StageReading(
                stage,
                (units[0], units[1]),
                {"success": tuple(Moments.of_count(rate * n, n) for rate, n in zip(self.rates, units, strict=True))},  # type: ignore[dict-item]
            )
            for stage, units in sorted(self.stages.items())
        )
        return Readings(stages, self.last_s, **self.more)


def nothing(rollout: Rollout, now_s: float) -> Readings:
    """No data at all."""
    return Readings()
