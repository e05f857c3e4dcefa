"""The assessment before work is handed over: how complex, how critical, how uncertain, and what follows from that.

| dimension | low | medium | high |
|---|---|---|---|
| complexity | one call | two to five calls | exploration and synthesis, more than five |
| criticality | only reads | changes that can be undone | deploys, permissions, data that cannot be brought back |
| uncertainty | clear input, known way | some unknowns | open-ended, several valid ways |

The decision is the first row of RULES that fits, and says why. It leads to one of four routes: do it *inline*,
*delegate* it, make a *checkpoint* first (a commit, a copy, a dry run) and then do it, or *ask* a person.

    >>> decide(Assessment(complexity="high", criticality="low", uncertainty="medium")).route
    'delegate'
    >>> print(decide(assess(calls=1, side_effects="irreversible", unknowns=3)))
    ask: it cannot be undone and the way is not clear
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
    """Three grades, each low, medium or high. Raises UsageError for another."""

    complexity: str
    criticality: str
    uncertainty: str

    def __post_init__(self) -> None:
        for name, level in asdict(self).items():
            if level not in LEVELS:
                raise UsageError(f"{name} is {level!r}", fix=f"choose one of {', '.join(LEVELS)}")

    def to_json(self) -> dict[str, str]:
        """As the field `assessment` of a span."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class AssessmentRule:
    """If every named dimension has one of these levels, then this route, because."""

    when: Mapping[str, tuple[str, ...]]
    route: str
    because: str

    def fits(self, assessment: Assessment) -> bool:
        return all(getattr(assessment, name) in levels for name, levels in self.when.items())


RULES: tuple[AssessmentRule, ...] = (
    AssessmentRule(
        {"criticality": ("high",), "uncertainty": ("high",)}, "ask", "it cannot be undone and the way is not clear"
    ),
    AssessmentRule({"criticality": ("high",)}, "checkpoint", "it cannot be undone: keep a way back"),
    AssessmentRule({"criticality": ("medium",), "uncertainty": ("high",)}, "checkpoint", "a change on an unclear way"),
    AssessmentRule({"complexity": ("low",)}, "inline", "one call costs less than handing it over"),
    AssessmentRule({}, "delegate", "several calls that can be undone: worth a context of its own"),
)


@dataclass(frozen=True, slots=True)
class Decision:
    """A route and the reason for it."""

    route: str
    because: str
    assessment: Assessment

    def __str__(self) -> str:
        return f"{self.route}: {self.because}"


def decide(assessment: Assessment) -> Decision:
    """The route that the first fitting rule gives."""
    rule = next(rule for rule in RULES if rule.fits(assessment))
    return Decision(rule.route, rule.because, assessment)


def assess(*, calls: int | None = None, side_effects: str | None = None, unknowns: int | None = None) -> Assessment:
    """An assessment from facts: how many tool calls are expected, what they change ("none", "reversible",
    "irreversible"), and how many things are not known. A fact that is missing counts as the worst case.
    """
    if side_effects is not None and side_effects not in SIDE_EFFECTS:
        raise UsageError(f"side effects are {side_effects!r}", fix=f"choose one of {', '.join(SIDE_EFFECTS)}")
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

# What to look at, by the kind of work: the reward of a delegation comes from these looks (traces.reward), never from
# what the answer says about itself.
CHECKS: dict[str, str] = {
    "codebase_search": "open one or two of the places that it names",
    "code": "read the diff, run the tests that cover it",
    "build": "the exit code",
    "test": "the exit code, and that the tests ran",
    "research": "open the sources: they exist and say so",
    "synthesis": "compare with the parts that it was made from",
    "data": "check against the schema, count what went in and came out",
}
Check = Callable[[Any], Verification]


def check_for(category: str | None) -> str:
    """What to look at after work of this category."""
    return CHECKS.get(category or "", "look at the result itself, not at what is said about it")


def verify(result: Any, checks: Iterable[Check]) -> list[Verification]:
    """Looks at a result with each check. A check that breaks could not tell: its value is None."""
    looks = []
    for check in checks:
        try:
            looks.append(check(result))
        except Exception as error:
            looks.append(Verification("grader", None, f"the check failed: {type(error).__name__}: {error}"))
    return looks
