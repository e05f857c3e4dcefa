"""No plan at all: the whole request is one task, for an agent that works in turns (ReAct)."""

from __future__ import annotations

from collections.abc import Sequence

from agent_forge.agents.planner.tools import ToolSpec
from agent_forge.plans import Plan, Provenance, Task, literal

WHOLE = "whole"  # in the meta of a task that is the whole request, not a part of it


def whole_task(request: str) -> Task:
    """The request as a task; braces in it are text, not references."""
    return Task("task_1", literal(request), meta={WHOLE: True})


class ReactPlanner:
    """Leaves every request to an agent, whole."""

    name = "react"

    async def plan(self, request: str, *, tools: Sequence[ToolSpec] = ()) -> Plan:
        origin = Provenance(request, self.name, attempts=0, input_tokens=0, output_tokens=0, shape="direct")
        return Plan([whole_task(request)]).with_provenance(origin)
