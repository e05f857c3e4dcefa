"""The planner that needs no model: comparison, bridge and aggregation questions, and lists of instructions."""

from __future__ import annotations

from agent_forge.agents.planner.rules.draft import Draft, Step
from agent_forge.agents.planner.rules.read import read
from agent_forge.agents.planner.rules.tools import ToolIndex, ToolSpec

__all__ = ["Draft", "Step", "ToolIndex", "ToolSpec", "read"]
