"""Agent Forge: agents that plan in graphs, run in parallel, leave a trace of everything, and learn from it.

The public names load when they are first used, so that `import agent_forge` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agent_forge._version import __version__

if TYPE_CHECKING:
    from agent_forge.plans import Plan as Plan
    from agent_forge.plans import Task as Task

_HOME_OF = {
    "Plan": "agent_forge.plans",
    "Task": "agent_forge.plans",
}

__all__ = ["__version__", *sorted(_HOME_OF)]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'agent_forge' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
