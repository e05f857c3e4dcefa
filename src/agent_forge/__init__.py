"""Agent Forge: agents that plan in graphs, run in parallel, leave a trace of everything, and learn from it.

The public names load when they are first used, so that `import agent_forge` stays light.
"""

from __future__ import annotations

from agent_forge._version import __version__

TYPE_CHECKING = False  # what type checkers take for true; `typing` itself costs a third of this import
if TYPE_CHECKING:
    from typing import Any

    from agent_forge.agents.api import Result as Result
    from agent_forge.agents.api import aplan as aplan
    from agent_forge.agents.api import arun as arun
    from agent_forge.agents.api import plan as plan
    from agent_forge.agents.api import run as run
    from agent_forge.agents.tools import Tool as Tool
    from agent_forge.agents.tools import Toolbox as Toolbox
    from agent_forge.agents.tools import tool as tool
    from agent_forge.plans import Plan as Plan
    from agent_forge.plans import Task as Task
    from agent_forge.runtime import execute as execute

_ROOM_OF = {
    **dict.fromkeys(["Plan", "Task"], "plans"),
    **dict.fromkeys(["execute"], "runtime"),
    **dict.fromkeys(["Tool", "Toolbox", "tool"], "agents.tools"),
    **dict.fromkeys(["Result", "aplan", "arun", "plan", "run"], "agents.api"),
}

__all__ = [
    "Plan",
    "Result",
    "Task",
    "Tool",
    "Toolbox",
    "__version__",
    "aplan",
    "arun",
    "execute",
    "plan",
    "run",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name in _ROOM_OF:
        from importlib import import_module

        return getattr(import_module(f"agent_forge.{_ROOM_OF[name]}"), name)
    raise AttributeError(f"module 'agent_forge' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
