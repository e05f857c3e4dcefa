"""Reads a request as the first shape that fits it."""

from __future__ import annotations

from agent_forge.agents.complexity import is_question
from agent_forge.agents.planner.rules.aggregation import aggregation
from agent_forge.agents.planner.rules.bridge import bridge, single
from agent_forge.agents.planner.rules.comparison import comparison
from agent_forge.agents.planner.rules.draft import Draft
from agent_forge.agents.planner.rules.requests import instructions, listed
from agent_forge.agents.planner.rules.tools import ToolIndex
from agent_forge.agents.relations import LONGEST_GOAL


def read(request: str, tools: ToolIndex | None = None) -> Draft:
    """The drafted plan of a request. Questions are tried as comparison, aggregation, bridge and look-up in turn."""
    request = request.strip()
    if not listed(request) and is_question(request):
        for shape in (comparison, aggregation, bridge) if len(request) <= LONGEST_GOAL else ():
            draft = shape(request)
            if draft is not None:
                return draft
        return single(request)
    return instructions(request, tools) or single(request)
