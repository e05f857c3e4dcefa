"""Gates: is a phase's output better than its input, on data that neither was trained on?

No gain, no change: unless the difference is clearly an improvement, the input is passed on. What was not measured
never passes.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

PASSED, NO_GAIN, NOT_MEASURED = "passed", "no gain", "not measured"


@dataclass(frozen=True)
class GateResult:
    """A held-out metric before and after a phase, the standard error of the difference, and the verdict."""

    metric: str
    before: float | None
    after: float | None
    stderr: float | None
    verdict: str

    @property
    def passed(self) -> bool:
        return self.verdict == PASSED

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def judge(
    metric: str,
    before: float | None,
    after: float | None,
    stderr: float | None,
    *,
    lower_is_better: bool = True,
    sigmas: float = 2.0,
    least_gain: float = 0.0,
) -> GateResult:
    """Passes if the improvement exceeds `least_gain` by more than `sigmas` standard errors.

    >>> judge("bits per byte", 2.0, 1.5, 0.1).verdict
    'passed'
    >>> judge("accuracy", 0.50, 0.52, 0.02, lower_is_better=False).verdict
    'no gain'
    >>> judge("accuracy", 0.50, None, 0.02, lower_is_better=False).verdict
    'not measured'
    """
    figures = (before, after, stderr)
    before, after, stderr = (None if x is None or not math.isfinite(x) else x for x in figures)
    if before is None or after is None or stderr is None or stderr < 0:
        return GateResult(metric, before, after, stderr, NOT_MEASURED)
    gain = before - after if lower_is_better else after - before
    return GateResult(metric, before, after, stderr, PASSED if gain > least_gain + sigmas * stderr else NO_GAIN)
