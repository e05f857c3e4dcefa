"""Gates: is a phase's output better than its input, on data that neither was trained on?

No gain, no change: unless the difference is clearly an improvement, the input is passed on. What was not measured
never passes.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from agent_forge.config import nearest, option
from agent_forge.errors import ConfigError

PASSED, NO_GAIN, NOT_MEASURED = "passed", "no gain", "not measured"
SEEDS = 3  # what a gain of a phase that repeats its training has to stand on


@dataclass(frozen=True)
class GateResult:
    """A held-out metric before and after a phase, the standard error of the difference, and the verdict."""

    metric: str
    before: float | None
    after: float | None
    stderr: float | None
    verdict: str
    control: float | None = None  # the same metric of a control with the same compute, which had to be beaten too
    least_gain: float = 0.0  # what the improvement had to exceed, beside the standard errors
    note: str = ""  # what else to know about the result, in words

    @property
    def passed(self) -> bool:
        return self.verdict == PASSED

    def as_dict(self) -> dict[str, Any]:
        """Without control, least gain and note where there were none."""
        unset = {"control": None, "least_gain": 0.0, "note": ""}
        return {name: value for name, value in asdict(self).items() if unset.get(name, self) != value}

    def noting(self, text: str) -> GateResult:
        """The same result with a further note."""
        return replace(self, note="; ".join(filter(None, (self.note, text))))

    def of_seeds(self, seeds: int) -> GateResult:
        """The same result, unless it stands on too few seeds: however large the difference, that shows no gain.

        >>> judge("accuracy", 0.1, 0.9, 0.01, lower_is_better=False).of_seeds(2).note
        'no gain shown: 2 of 3 seeds'
        """
        if seeds >= SEEDS:
            return self
        return replace(self, verdict=NO_GAIN).noting(f"no gain shown: {seeds} of {SEEDS} seeds")


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
    verdict = PASSED if gain > least_gain + sigmas * stderr else NO_GAIN
    return GateResult(metric, before, after, stderr, verdict, least_gain=least_gain)


@dataclass(frozen=True)
class TrainingGate:
    """What training must reach beside a clear improvement, so that a step or two do not count as a phase."""

    least_gain: float = option(
        0.005, help="Least improvement, as a share of the bits per byte before", at_least=0, at_most=1
    )
    control: dict[str, Any] = option(
        {},
        help="Changes of `sources`, `model`, `training` or `stages` for a control, trained with the same compute from "
        "the same start, which has to be beaten clearly (default: no control)",
    )

    def __post_init__(self) -> None:
        for name in self.control.keys() - CONTROLLED:
            near = nearest(name, CONTROLLED)
            fix = f"Did you mean {near!r}?" if near else f"A control may change {', '.join(sorted(CONTROLLED))}"
            raise ConfigError(f"a control cannot change {name!r}", where="gate.control", fix=fix)


CONTROLLED = {"sources", "model", "training", "stages"}
