"""The reward of a delegation: from verification, never from words.

What an agent says about its own work ("Process crashed and was aborted", "all tests passed") earns no reward. A reward
comes from a check: a command's exit code, a test result, a schema, a grader, a person. Without a check it is None.

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
    "grader": "a program or model with the task graded the output",
    "person": "a person gave a verdict",
}
VERDICTS: dict[str, float] = {"pass": 1.0, "partial": 0.5, "fail": 0.0}


@dataclass(frozen=True, slots=True)
class Verification:
    """One check of a result: the method, its value in [0, 1] (None: undecided), and the evidence."""

    method: str
    value: float | None
    evidence: str = ""
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UsageError(
                f"there is no verification method {self.method!r}", fix=f"Choose one of {', '.join(METHODS)}"
            )
        if self.value is not None and not 0 <= self.value <= 1:
            raise UsageError(f"the value of a verification must lie in [0, 1], not {self.value}")
        if not self.weight > 0 or math.isinf(self.weight):
            raise UsageError(f"a weight must be positive, not {self.weight}")

    def to_json(self) -> dict[str, Any]:
        """A JSON object without the fields that are empty."""
        data = {"method": self.method, "value": self.value, "evidence": self.evidence or None, "weight": self.weight}
        return {name: value for name, value in data.items() if value is not None}


def exit_code(code: int | None, evidence: str = "") -> Verification:
    """The exit code of a checking command; None if it did not finish."""
    return Verification("exit_code", None if code is None else float(code == 0), evidence or f"exit code {code}")


def share_passed(passed: int, failed: int, evidence: str = "") -> Verification:
    """The share of tests that passed; undecided if there were none."""
    if passed < 0 or failed < 0:
        raise UsageError("the number of tests cannot be negative")
    total = passed + failed
    return Verification("tests", passed / total if total else None, evidence or f"{passed} of {total} passed")


def schema(output: Any, document: Mapping[str, Any]) -> Verification:
    """Checks an output against a JSON Schema, formats included."""
    from agent_forge.traces.validate import schema_faults

    faults = [fault for fault, _ in schema_faults(output, document)]
    return Verification("schema", float(not faults), "; ".join(faults[:3]) or "follows the schema")


def grader(score: float | None, evidence: str = "") -> Verification:
    """A grade in [0, 1]; None if the grader could not decide."""
    return Verification("grader", score, evidence)


def person(verdict: str, evidence: str = "") -> Verification:
    """A person's verdict: pass, partial or fail."""
    if verdict not in VERDICTS:
        raise UsageError(f"there is no verdict {verdict!r}", fix=f"Choose one of {', '.join(VERDICTS)}")
    return Verification("person", VERDICTS[verdict], evidence)


def reward_of(verifications: Iterable[Verification]) -> float | None:
    """The weighted mean of the decided verifications; None without any.

    People overrule: if there are verdicts of people, only those count.
    """
    parts = components(verifications)
    return sum(part["weight"] * part["value"] for part in parts) if parts else None


def components(verifications: Iterable[Verification]) -> list[dict[str, Any]]:
    """The parts of the reward, as in the span attribute `agent_forge.reward.components`; their weights sum to 1."""
    decided = [check for check in verifications if check.value is not None]
    counted = [check for check in decided if check.method == "person"] or decided
    total = sum(check.weight for check in counted)
    return [{"name": check.method, "value": check.value, "weight": check.weight / total} for check in counted]
