"""The assessment before work is delegated: its complexity, criticality and uncertainty, and what follows from them.

| dimension | low | medium | high |
|---|---|---|---|
| complexity | one call | two to five calls | exploration and synthesis, more than five |
| criticality | read-only | reversible changes | deployments, permissions, irrecoverable data |
| uncertainty | clear input, known method | some unknowns | open-ended, several valid methods |

The decision is the first matching row of RULES, with its reason. It leads to one of four routes: do it *inline*,
*delegate* it, make a *checkpoint* first (a commit, a copy, a dry run), or *ask* a person.

    >>> decide(Assessment(complexity="high", criticality="low", uncertainty="medium")).route
    'delegate'
    >>> print(decide(assess(calls=1, side_effects="irreversible", unknowns=3)))
    ask: it cannot be undone and the method is unclear
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from agent_forge.errors import UsageError
from agent_forge.traces.reward import Verification

LEVELS = ("low", "medium", "high")
ROUTES = ("inline", "delegate", "checkpoint", "ask")
SIDE_EFFECTS = {"none": "low", "reversible": "medium", "irreversible": "high"}


@dataclass(frozen=True, slots=True)
class Assessment:
    """Three grades, each low, medium or high. Raises UsageError for any other value."""

    complexity: str
    criticality: str
    uncertainty: str

    def __post_init__(self) -> None:
        for name, level in asdict(self).items():
            if level not in LEVELS:
                raise UsageError(f"{name} is {level!r}", fix=f"Choose one of {', '.join(LEVELS)}")

    def to_json(self) -> dict[str, str]:
        """The value of the span field `assessment`."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class AssessmentRule:
    """If every dimension in `when` has one of its levels, the route is this one."""

    when: Mapping[str, tuple[str, ...]]
    route: str
    because: str

    def fits(self, assessment: Assessment) -> bool:
        return all(getattr(assessment, name) in levels for name, levels in self.when.items())


RULES: tuple[AssessmentRule, ...] = (
    AssessmentRule(
        {"criticality": ("high",), "uncertainty": ("high",)}, "ask", "it cannot be undone and the method is unclear"
    ),
    AssessmentRule({"criticality": ("high",)}, "checkpoint", "it cannot be undone: make a checkpoint first"),
    AssessmentRule(
        {"criticality": ("medium",), "uncertainty": ("high",)}, "checkpoint", "a change by an unclear method"
    ),
    AssessmentRule({"complexity": ("low",)}, "inline", "one call costs less than a delegation"),
    AssessmentRule({}, "delegate", "several reversible calls: worth a context of its own"),
)


@dataclass(frozen=True, slots=True)
class Decision:
    """A route and its reason."""

    route: str
    because: str
    assessment: Assessment

    def __str__(self) -> str:
        return f"{self.route}: {self.because}"


def decide(assessment: Assessment) -> Decision:
    """The route of the first matching rule."""
    rule = next(rule for rule in RULES if rule.fits(assessment))
    return Decision(rule.route, rule.because, assessment)


def assess(*, calls: int | None = None, side_effects: str | None = None, unknowns: int | None = None) -> Assessment:
    """An assessment from facts: the expected number of tool calls, their side effects ("none", "reversible",
    "irreversible"), and the number of unknowns. A missing fact counts as the worst case.
    """
    if side_effects is not None and side_effects not in SIDE_EFFECTS:
        raise UsageError(f"side effects are {side_effects!r}", fix=f"Choose one of {', '.join(SIDE_EFFECTS)}")
    return Assessment(
        complexity=_grade(calls, 1, 5),
        criticality=SIDE_EFFECTS[side_effects] if side_effects is not None else "high",
        uncertainty=_grade(unknowns, 0, 2),
    )


def _grade(count: int | None, low: int, medium: int) -> str:
    if count is None or count > medium:
        return "high"
    return "low" if count <= low else "medium"


# -- verification after delegation -------------------------------------------------------------------------------------

# What to inspect, by type of work: the reward of a delegation comes from these inspections (traces.reward), never from
# what the answer claims.
CHECKS: dict[str, str] = {
    "codebase_search": "open one or two of the places it names",
    "code": "read the diff, run the tests that cover it",
    "build": "the exit code",
    "test": "the exit code, and that the tests ran",
    "research": "open the sources: they exist and support the claim",
    "synthesis": "compare with its sources",
    "data": "check against the schema, count rows in and out",
}
Check = Callable[[Any], Verification]


def check_for(category: str | None) -> str:
    """What to inspect after work of this category."""
    return CHECKS.get(category or "", "inspect the result itself, not the claims about it")


def verify(result: Any, checks: Iterable[Check]) -> list[Verification]:
    """Applies each check to a result. A check that raises gives no verdict: its value is None."""
    looks = []
    for check in checks:
        try:
            looks.append(check(result))
        except Exception as error:
            looks.append(Verification("grader", None, f"the check failed: {type(error).__name__}: {error}"))
    return looks
