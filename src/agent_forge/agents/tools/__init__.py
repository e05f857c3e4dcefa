"""Tools: typed functions that plans and models call by name, and the ones that come with the package."""

from agent_forge.agents.tools.schema import UnsupportedAnnotation
from agent_forge.agents.tools.tool import ArgumentsInvalid, Tool, ToolTimeout, tool
from agent_forge.agents.tools.toolbox import Toolbox, UnknownTool, as_handler, check

__all__ = [
    "ArgumentsInvalid",
    "Tool",
    "ToolTimeout",
    "Toolbox",
    "UnknownTool",
    "UnsupportedAnnotation",
    "as_handler",
    "check",
    "tool",
]
