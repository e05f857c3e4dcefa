"""The planner for tools of one's own where nobody named a model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agent_forge.agents.actions import SEARCH
from agent_forge.agents.planner.binding import bind_tools
from agent_forge.agents.planner.checking import what_is_missing
from agent_forge.agents.planner.forged import ForgedPlanner
from agent_forge.agents.planner.interface import PlanningFailed
from agent_forge.agents.planner.rule import RulePlanner, RulesFirst
from agent_forge.agents.planner.tools import ToolSpec
from agent_forge.plans import Plan


class DefaultPlanner:
    """The rules where they read a whole question and can search, else the forged planner; and the rules again where it
    is not sure or leaves something open, and they leave no more. Whether any tool serves a request, it decides."""

    name = "forged"

    def __init__(self) -> None:
        self.forged = ForgedPlanner()

    async def plan(self, request: str, *, tools: Sequence[ToolSpec] = ()) -> Plan:
        return await asyncio.to_thread(self.plan_now, request, tools=tools)

    def plan_now(self, request: str, *, tools: Sequence[ToolSpec] = ()) -> Plan:
        searches = any(tool.name == SEARCH for tool in tools)
        question = RulesFirst(self.forged).read(request, tools) if searches else None
        if question is not None:
            return question
        try:
            plan = self.forged.plan_now(request, tools=tools)
        except PlanningFailed:
            return RulePlanner().plan_now(request, tools=tools)
        if all(task.action is None for task in plan):
            return plan
        missing = len(what_is_missing(plan, tools, request=request))
        if self.forged.is_sure(plan) and not missing:
            return plan
        try:
            other = bind_tools(RulePlanner().plan_now(request, tools=tools), tuple(tools))
        except PlanningFailed:
            return plan
        return other if len(what_is_missing(other, tools, request=request)) <= missing else plan
