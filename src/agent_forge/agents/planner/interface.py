"""The interface of all planners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar, runtime_checkable

from agent_forge.agents.planner.tools import ToolSpec
from agent_forge.errors import PlanError
from agent_forge.inference import TokenUsage
from agent_forge.plans import Plan, PlanFault, Provenance

Number = TypeVar("Number", int, float)
LONGEST_REQUEST = 100_000  # characters


class PlanningFailed(PlanError):
    """A planner that gave no usable plan. `errors` are the faults of its last attempt, `text` is its output."""

    def __init__(
        self,
        what: str,
        *,
        errors: Sequence[PlanFault] = (),
        attempts: int = 1,
        text: str | None = None,
        fix: str = "Simplify the request, or use another model or planner",
    ) -> None:
        super().__init__(what, fix=fix)
        self.errors = list(errors)
        self.attempts = attempts
        self.text = text


def check_request(request: str) -> None:
    """Raises PlanningFailed for a request that has no words, or is too long to be one."""
    if not any(char.isalnum() for char in request):
        raise PlanningFailed("the request has no words", fix="Say what is to be done")
    if len(request) > LONGEST_REQUEST:
        raise PlanningFailed(f"the request has {len(request):,} characters, the limit is {LONGEST_REQUEST:,}")


@runtime_checkable
class Planner(Protocol):
    """Turns a request into a plan with its provenance. `name` identifies the planner there."""

    @property
    def name(self) -> str: ...

    async def plan(self, request: str, *, tools: Sequence[ToolSpec] = ()) -> Plan:
        """Raises PlanningFailed, or ModelError if the model cannot be reached."""


async def make_plan(planner: Planner, request: str, tools: Sequence[ToolSpec]) -> Plan:
    """The planner's plan, with a provenance even if the planner leaves it out."""
    plan = await planner.plan(request, tools=tools)
    return plan if plan.provenance else plan.with_provenance(Provenance(request, planner.name))


def total(usages: Sequence[TokenUsage]) -> TokenUsage:
    """The sums of counts and costs; None if any of them was not measured, since a part would read as the whole."""

    def add(counts: list[Number | None]) -> Number | None:
        measured = [count for count in counts if count is not None]
        return sum(measured) if measured and len(measured) == len(counts) else None

    return TokenUsage(
        add([usage.input_tokens for usage in usages]),
        add([usage.output_tokens for usage in usages]),
        add([usage.cost for usage in usages]),
    )
