"""Planning: a request becomes a plan. Planners with one interface; the result names the one that planned."""

from __future__ import annotations

from agent_forge.agents.planner.binding import bind_tools
from agent_forge.agents.planner.checking import Missing, PlanRefused, check, what_is_missing
from agent_forge.agents.planner.default import DefaultPlanner
from agent_forge.agents.planner.direct import ReactPlanner
from agent_forge.agents.planner.forged import ForgedPlanner
from agent_forge.agents.planner.interface import Planner, PlanningFailed
from agent_forge.agents.planner.local import LocalPlanner
from agent_forge.agents.planner.model import ModelPlanner, Writing
from agent_forge.agents.planner.prompts import template
from agent_forge.agents.planner.rule import RulePlanner, RulesFirst

__all__ = [
    "DefaultPlanner",
    "ForgedPlanner",
    "LocalPlanner",
    "Missing",
    "ModelPlanner",
    "PlanRefused",
    "Planner",
    "PlanningFailed",
    "ReactPlanner",
    "RulePlanner",
    "RulesFirst",
    "Writing",
    "bind_tools",
    "check",
    "template",
    "what_is_missing",
]
