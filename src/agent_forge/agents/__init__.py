"""Who does the work, with which model and which tools.

The public names load when they are first used, so that a program that needs only a tool does not pay for the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_forge.agents.api import Result as Result
    from agent_forge.agents.api import aplan as aplan
    from agent_forge.agents.api import arun as arun
    from agent_forge.agents.api import plan as plan
    from agent_forge.agents.api import run as run
    from agent_forge.agents.mcp import McpServer as McpServer
    from agent_forge.agents.mcp import mcp_server as mcp_server
    from agent_forge.agents.models import Completion as Completion
    from agent_forge.agents.models import ModelClient as ModelClient
    from agent_forge.agents.models import Stream as Stream
    from agent_forge.agents.models import ToolCall as ToolCall
    from agent_forge.agents.models import Usage as Usage
    from agent_forge.agents.models import model as model
    from agent_forge.agents.models import use_recorder as use_recorder
    from agent_forge.agents.planner import Planned as Planned
    from agent_forge.agents.planner import Planner as Planner
    from agent_forge.agents.planner import PlanningFailed as PlanningFailed
    from agent_forge.agents.profiles import AgentProfile as AgentProfile
    from agent_forge.agents.profiles import builtin_profiles as builtin_profiles
    from agent_forge.agents.profiles import find_profile as find_profile
    from agent_forge.agents.profiles import load_profile as load_profile
    from agent_forge.agents.profiles import load_profiles as load_profiles
    from agent_forge.agents.routing import Assigned as Assigned
    from agent_forge.agents.routing import Queued as Queued
    from agent_forge.agents.routing import Router as Router
    from agent_forge.agents.routing import RoutingError as RoutingError
    from agent_forge.agents.routing import Rule as Rule
    from agent_forge.agents.routing import Unroutable as Unroutable
    from agent_forge.agents.tools import Tool as Tool
    from agent_forge.agents.tools import Toolbox as Toolbox
    from agent_forge.agents.tools import as_handler as as_handler
    from agent_forge.agents.tools import builtin_tools as builtin_tools
    from agent_forge.agents.tools import check as check
    from agent_forge.agents.tools import tool as tool

_HOME_OF = {
    **dict.fromkeys(["Result", "aplan", "arun", "plan", "run"], "api"),
    **dict.fromkeys(["McpServer", "mcp_server"], "mcp"),
    **dict.fromkeys(["Completion", "ModelClient", "Stream", "ToolCall", "Usage", "model", "use_recorder"], "models"),
    **dict.fromkeys(["Planned", "Planner", "PlanningFailed"], "planner"),
    **dict.fromkeys(["AgentProfile", "builtin_profiles", "find_profile", "load_profile", "load_profiles"], "profiles"),
    **dict.fromkeys(["Assigned", "Queued", "Router", "RoutingError", "Rule", "Unroutable"], "routing"),
    **dict.fromkeys(["Tool", "Toolbox", "as_handler", "builtin_tools", "check", "tool"], "tools"),
}

__all__ = [
    "AgentProfile",
    "Assigned",
    "Completion",
    "McpServer",
    "ModelClient",
    "Planned",
    "Planner",
    "PlanningFailed",
    "Queued",
    "Result",
    "Router",
    "RoutingError",
    "Rule",
    "Stream",
    "Tool",
    "ToolCall",
    "Toolbox",
    "Unroutable",
    "Usage",
    "aplan",
    "arun",
    "as_handler",
    "builtin_profiles",
    "builtin_tools",
    "check",
    "find_profile",
    "load_profile",
    "load_profiles",
    "mcp_server",
    "model",
    "plan",
    "run",
    "tool",
    "use_recorder",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(import_module(f"agent_forge.agents.{_HOME_OF[name]}"), name)
    raise AttributeError(f"module 'agent_forge.agents' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
