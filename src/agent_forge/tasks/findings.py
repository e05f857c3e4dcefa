"""Faults that were reported against faults that were planted: all of them, and nothing else."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from agent_forge.tasks.family import Verdict

Planted = tuple[Collection[Any], str]  # the places that are accepted for it, and its kind


def judge_findings(reported: Sequence[tuple[Any, str]], planted: Sequence[Planted]) -> Verdict:
    """The F1 of the faults. The same fault reported twice counts once.

    >>> judge_findings([(4, "eval"), (5, "eval"), (9, "sql")], [((4, 5), "eval")])
    Verdict(score=0.6666666666666666, why='there is no sql at 9', readable=True)
    """
    hits = {
        place
        for place, (places, kind) in enumerate(planted)
        for where, what in reported
        if what == kind and where in places
    }
    wrong = [(where, what) for where, what in reported if not any(what == kind and where in at for at, kind in planted)]
    missed = [fault for place, fault in enumerate(planted) if place not in hits]
    count = 2 * len(hits) + len(wrong) + len(missed)
    reasons = [f"there is no {what} at {where}" for where, what in wrong]
    reasons += [f"{kind} at {next(iter(places))} was not found" for places, kind in missed]
    return Verdict(2 * len(hits) / count if count else 1.0, "; ".join(reasons))
