"""Agent Forge: agents that plan in graphs, run in parallel, leave a trace of everything, and learn from it.

The public names load when they are first used, so that `import agent_forge` stays light.
"""

from __future__ import annotations

from agent_forge._version import __version__

TYPE_CHECKING = False  # what type checkers take for true; `typing` itself costs a third of this import
if TYPE_CHECKING:
    from typing import Any

    from agent_forge.plans import Plan as Plan
    from agent_forge.plans import Task as Task

_HOME_OF = {
    "Plan": "agent_forge.plans",
    "Task": "agent_forge.plans",
}

__all__ = ["Plan", "Task", "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        from importlib import import_module

        return getattr(import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'agent_forge' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
