"""The gate of quantisation: not better than before, but small enough and hardly worse, on held-out data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from agent_forge.config import option
from agent_forge.forge.gates import NO_GAIN, NOT_MEASURED, PASSED, GateResult


@dataclass(frozen=True)
class Demands:
    """What a quantised model must keep. 0 asks for nothing."""

    perplexity: float = option(1.3, help="at most so many times that of the original", at_least=0)
    accuracy: float = option(0.85, help="at least this share of the accuracy above chance", at_least=0, at_most=1)
    ratio: float = option(8.0, help="at least so many times smaller than in float32, all files counted", at_least=0)


@dataclass(frozen=True)
class Clause:
    """One demand, what was measured, and whether it is met. What was not measured is not met."""

    name: str
    wanted: str
    found: float | None
    met: bool

    def as_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __str__(self) -> str:
        found = "not measured" if self.found is None else f"{self.found:.3g}"
        return f"{self.name} {found}, wanted {self.wanted}"


def check(
    demands: Demands, perplexity: float | None, accuracy: float | None, ratio: float | None
) -> tuple[Clause, ...]:
    """Every demand with what was found: the ratio of perplexities, the share of accuracy kept, the ratio of sizes.

    >>> [clause.met for clause in check(Demands(), 1.1, None, 12.0)]
    [True, False, True]
    """
    rows = (
        ("perplexity, times the original's", "<=", demands.perplexity, perplexity),
        ("accuracy above chance, share kept", ">=", demands.accuracy, accuracy),
        ("times smaller than float32", ">=", demands.ratio, ratio),
    )
    return tuple(_clause(*row) for row in rows if row[2] > 0)


def _clause(name: str, sign: str, bound: float, found: float | None) -> Clause:
    measured = found is not None and math.isfinite(found)
    met = measured and found is not None and (found <= bound if sign == "<=" else found >= bound)
    return Clause(name, f"{sign} {bound:g}", found if measured else None, met)


def as_gate(clauses: tuple[Clause, ...], before: float | None, after: float | None, stderr: float | None) -> GateResult:
    """The verdict in the form that every phase has: bits per byte before and after, and whether all demands are met."""
    missing = any(clause.found is None for clause in clauses)
    verdict = PASSED if all(clause.met for clause in clauses) else NOT_MEASURED if missing else NO_GAIN
    return GateResult("bits per byte (kept within the demands)", before, after, stderr, verdict)
