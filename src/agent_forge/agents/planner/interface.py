"""The interface of all planners, and the plan they return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from agent_forge.agents.complexity import Complexity
from agent_forge.agents.planner.tools import ToolSpec
from agent_forge.errors import PlanError
from agent_forge.inference import TokenUsage
from agent_forge.plans import Plan, PlanFault


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan and its origin: the planner, the model, the prompt template, and the number of attempts.

    `usage` is the sum over all attempts; its counts are None if the model did not report them or none was asked.
    """

    plan: Plan
    request: str
    planner: str
    complexity: Complexity
    model: str | None = None
    template: str | None = None
    attempts: int = 1
    usage: TokenUsage = field(default_factory=TokenUsage)
    text: str | None = None  # the model's output, verbatim
    shape: str | None = None  # how the rule planner read the request


class PlanningFailed(PlanError):
    """A planner that gave no usable plan. `errors` are the faults of its last attempt, `text` is its output."""

    def __init__(
        self, what: str, *, errors: Sequence[PlanFault] = (), attempts: int = 1, text: str | None = None
    ) -> None:
        super().__init__(what, fix="Simplify the request, or use another model or planner")
        self.errors = list(errors)
        self.attempts = attempts
        self.text = text


@runtime_checkable
class Planner(Protocol):
    """Turns a request into a plan. `name` identifies the planner in results."""

    @property
    def name(self) -> str: ...

    async def plan(self, request: str, *, tools: Sequence[ToolSpec] = ()) -> Planned:
        """Raises PlanningFailed, or ModelError if the model cannot be reached."""


def total(usages: Sequence[TokenUsage]) -> TokenUsage:
    """The sum of the counts; None if any of them was not measured, since a part would read as the whole."""

    def add(counts: list[int | None]) -> int | None:
        measured = [count for count in counts if count is not None]
        return sum(measured) if measured and len(measured) == len(counts) else None

    return TokenUsage(add([usage.input_tokens for usage in usages]), add([usage.output_tokens for usage in usages]))
