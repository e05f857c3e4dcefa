"""The reward of a delegation: from verification, never from words.

Whatever an agent says about its own work ("Process crashed and was aborted", "all tests passed") gives no reward. A
reward comes from something that looked: a command's exit code, a test result, a schema check, a grader, a person.
What nobody looked at is None, and stays None.

    >>> reward_of([]) is None
    True
    >>> reward_of([share_passed(3, 1), exit_code(0)])
    0.875
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agent_forge.errors import UsageError

METHODS: dict[str, str] = {
    "exit_code": "a command was run; 0 is success",
    "tests": "tests were run; the share that passed",
    "schema": "the output was checked against a schema",
    "grader": "a program or a model that was given the task graded it",
    "person": "a person looked and gave a verdict",
}
VERDICTS: dict[str, float] = {"pass": 1.0, "partial": 0.5, "fail": 0.0}


@dataclass(frozen=True, slots=True)
class Verification:
    """One look at a result: how, what it is worth in [0, 1] (None: it could not tell), and what was seen."""

    method: str
    value: float | None
    evidence: str = ""
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UsageError(f"no verification method {self.method!r}", fix=f"choose one of {', '.join(METHODS)}")
        if self.value is not None and not 0 <= self.value <= 1:
            raise UsageError(f"a verification is worth between 0 and 1, not {self.value}")
        if not self.weight > 0 or math.isinf(self.weight):
            raise UsageError(f"a weight must be positive, not {self.weight}")

    def to_json(self) -> dict[str, Any]:
        known = {"method": self.method, "value": self.value, "evidence": self.evidence or None, "weight": self.weight}
        return {name: value for name, value in known.items() if value is not None}


def exit_code(code: int | None, evidence: str = "") -> Verification:
    """The exit code of a command that was run to check; None when it did not finish."""
    return Verification("exit_code", None if code is None else float(code == 0), evidence or f"exit code {code}")


def share_passed(passed: int, failed: int, evidence: str = "") -> Verification:
    """A test run: the share that passed. No tests at all tell nothing."""
    if passed < 0 or failed < 0:
        raise UsageError("there is no negative number of tests")
    total = passed + failed
    return Verification("tests", passed / total if total else None, evidence or f"{passed} of {total} passed")


def schema(output: Any, document: Mapping[str, Any]) -> Verification:
    """Checks an output against a JSON Schema, formats included."""
    from agent_forge.traces.validate import schema_faults

    faults = [fault for fault, _ in schema_faults(output, document)]
    return Verification("schema", float(not faults), "; ".join(faults[:3]) or "follows the schema")


def grader(score: float | None, evidence: str = "") -> Verification:
    """A grade in [0, 1]; None when the grader could not tell."""
    return Verification("grader", score, evidence)


def person(verdict: str, evidence: str = "") -> Verification:
    """A person's verdict: pass, partial or fail."""
    if verdict not in VERDICTS:
        raise UsageError(f"no verdict {verdict!r}", fix=f"choose one of {', '.join(VERDICTS)}")
    return Verification("person", VERDICTS[verdict], evidence)


def reward_of(verifications: Iterable[Verification]) -> float | None:
    """The weighted mean of what could tell; None when nothing could.

    A person overrules: where one gave a verdict, only the verdicts of people count.
    """
    parts = components(verifications)
    return sum(part["weight"] * part["value"] for part in parts) if parts else None


def components(verifications: Iterable[Verification]) -> list[dict[str, Any]]:
    """What the reward is made of, as the span attribute `agent_forge.reward.components`: weights add up to 1."""
    counted = _counted(verifications)
    total = sum(look.weight for look, _ in counted)
    return [{"name": look.method, "value": value, "weight": look.weight / total} for look, value in counted]


def _counted(verifications: Iterable[Verification]) -> list[tuple[Verification, float]]:
    known = [(look, look.value) for look in verifications if look.value is not None]
    return [(look, value) for look, value in known if look.method == "person"] or known
