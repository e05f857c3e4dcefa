"""Who does the work, with which model and which tools.

The public names load when they are first used, so that a program that needs only a tool does not pay for the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_forge.agents.models import Completion as Completion
    from agent_forge.agents.models import ModelClient as ModelClient
    from agent_forge.agents.models import Stream as Stream
    from agent_forge.agents.models import ToolCall as ToolCall
    from agent_forge.agents.models import Usage as Usage
    from agent_forge.agents.tools import Tool as Tool
    from agent_forge.agents.tools import Toolbox as Toolbox
    from agent_forge.agents.tools import as_handler as as_handler
    from agent_forge.agents.tools import check as check
    from agent_forge.agents.tools import tool as tool

_HOME_OF = {
    **dict.fromkeys(["Tool", "Toolbox", "as_handler", "check", "tool"], "tools"),
    **dict.fromkeys(["Completion", "ModelClient", "Stream", "ToolCall", "Usage"], "models"),
}

__all__ = [
    "Completion",
    "ModelClient",
    "Stream",
    "Tool",
    "ToolCall",
    "Toolbox",
    "Usage",
    "as_handler",
    "check",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(import_module(f"agent_forge.agents.{_HOME_OF[name]}"), name)
    raise AttributeError(f"module 'agent_forge.agents' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
