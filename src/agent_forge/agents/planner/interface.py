"""What every planner answers to, and what it answers with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from agent_forge.agents.complexity import Complexity
from agent_forge.agents.models import TokenUsage
from agent_forge.agents.planner.rules import ToolSpec
from agent_forge.errors import PlanError
from agent_forge.plans import Plan, PlanFault


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan and where it came from: which planner, which model, asked with which template, in how many attempts.

    `usage` adds up all attempts; its counts are None where the model did not say or no model was asked.
    """

    plan: Plan
    request: str
    planner: str
    complexity: Complexity
    model: str | None = None
    template: str | None = None
    attempts: int = 1
    usage: TokenUsage = field(default_factory=TokenUsage)
    text: str | None = None  # what the model wrote, as it wrote it
    shape: str | None = None  # what the rule planner took the request for


class PlanningFailed(PlanError):
    """A planner that gave no usable plan. `errors` are the faults of its last attempt, `text` what it wrote."""

    def __init__(
        self, what: str, *, errors: Sequence[PlanFault] = (), attempts: int = 1, text: str | None = None
    ) -> None:
        super().__init__(what, fix="ask more simply, or plan with another model or planner")
        self.errors = list(errors)
        self.attempts = attempts
        self.text = text


@runtime_checkable
class Planner(Protocol):
    """Turns a request into a plan. `name` is what results call it."""

    @property
    def name(self) -> str: ...

    async def plan(self, request: str, *, tools: Sequence[ToolSpec] = ()) -> Planned:
        """Raises PlanningFailed, or ModelError where the model cannot be reached."""


def total(usages: Sequence[TokenUsage]) -> TokenUsage:
    """The sum, None where any part was not measured: half a count would read as a whole one."""
    read = [usage.input_tokens for usage in usages]
    written = [usage.output_tokens for usage in usages]
    return TokenUsage(_sum(read), _sum(written))


def _sum(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None
