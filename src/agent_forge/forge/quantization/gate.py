"""The gate of quantisation: not better than before, but small enough and hardly worse, on held-out data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from agent_forge.config import option
from agent_forge.forge.gates import NO_GAIN, NOT_MEASURED, PASSED, GateResult


@dataclass(frozen=True)
class Demands:
    """What a quantised model must keep. 0 demands nothing."""

    perplexity: float = option(
        1.3, help="Highest perplexity, as a multiple of the original's", at_least=0, flag="--max-ppl", hidden=True
    )
    accuracy: float = option(
        0.85,
        help="Smallest share of the accuracy above chance to keep (0: any)",
        at_least=0,
        at_most=1,
        flag="--min-accuracy",
    )
    ratio: float = option(
        8.0,
        help="Smallest ratio of the size in float32 to the size, all files counted (0: any)",
        at_least=0,
        flag="--min-ratio",
    )


@dataclass(frozen=True)
class DemandCheck:
    """One demand, the measured value, and whether it is met. A value that was not measured does not meet it."""

    name: str
    limit: str
    value: float | None
    met: bool

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "wanted": self.limit, "found": self.value, "met": self.met}


def check(
    demands: Demands, perplexity: float | None, accuracy: float | None, ratio: float | None
) -> tuple[DemandCheck, ...]:
    """Every demand with its measured value: the ratio of perplexities, the share of accuracy kept,
    the ratio of sizes.

    >>> [check.met for check in check(Demands(), 1.1, None, 12.0)]
    [True, False, True]
    """
    rows = (
        ("perplexity, times the original's", "<=", demands.perplexity, perplexity),
        ("accuracy above chance, share kept", ">=", demands.accuracy, accuracy),
        ("times smaller than float32", ">=", demands.ratio, ratio),
    )
    checks = []
    for name, sign, bound, measured in rows:
        if bound > 0:
            value = measured if measured is not None and math.isfinite(measured) else None
            met = value is not None and (value <= bound if sign == "<=" else value >= bound)
            checks.append(DemandCheck(name, f"{sign} {bound:g}", value, met))
    return tuple(checks)


def as_gate(
    checks: tuple[DemandCheck, ...], before: float | None, after: float | None, stderr: float | None
) -> GateResult:
    """The verdict in the form of every phase: bits per byte before and after, and whether all
    demands are met."""
    missing = any(check.value is None for check in checks)
    verdict = PASSED if all(check.met for check in checks) else NOT_MEASURED if missing else NO_GAIN
    return GateResult("bits per byte (kept within the demands)", before, after, stderr, verdict)
