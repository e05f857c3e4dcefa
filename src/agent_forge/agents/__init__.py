"""Who does the work, with which model and which tools.

The public names load when they are first used, so that a program that needs only a tool does not pay for the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_forge.lazy import attach

if TYPE_CHECKING:
    from agent_forge.agents.agent import Agent, AgentEvent
    from agent_forge.agents.api import Result, aplan, arun, plan, run
    from agent_forge.agents.mcp import McpServer, mcp_server
    from agent_forge.agents.planner import Missing, Planner, PlanningFailed, PlanRefused, check
    from agent_forge.agents.profiles import (
        AgentLimits,
        AgentProfile,
        builtin_profiles,
        find_profile,
        load_profile,
        load_profiles,
        roster,
    )
    from agent_forge.agents.routing import Assigned, Queued, Router, RoutingError, Rule, Unroutable
    from agent_forge.agents.tools import Tool, Toolbox, as_handler, builtin_tools, tool
    from agent_forge.agents.turns import AgentResult, CallRecord
    from agent_forge.inference import (
        Completion,
        CompletionStream,
        ModelClient,
        TokenUsage,
        ToolCall,
        model,
        use_recorder,
    )

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "agent_forge.inference": "Completion ModelClient CompletionStream ToolCall TokenUsage model use_recorder",
        "agent": "Agent AgentEvent",
        "api": "Result aplan arun plan run",
        "mcp": "McpServer mcp_server",
        "planner": "Missing Planner PlanningFailed PlanRefused check",
        "profiles": "AgentLimits AgentProfile builtin_profiles find_profile load_profile load_profiles roster",
        "routing": "Assigned Queued Router RoutingError Rule Unroutable",
        "tools": "Tool Toolbox as_handler builtin_tools tool",
        "turns": "AgentResult CallRecord",
    },
)
