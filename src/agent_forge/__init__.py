"""Agent Forge: agents that plan in graphs, run in parallel, leave a trace of everything, and learn from it.

The public names load when they are first used, so that `import agent_forge` stays light.
"""

from __future__ import annotations

import sys

from agent_forge._version import __version__ as __version__
from agent_forge.lazy import ImportHook, attach

TYPE_CHECKING = False  # what type checkers take for true; `typing` itself costs a third of this import
if TYPE_CHECKING:
    from agent_forge.agents.agent import Agent
    from agent_forge.agents.api import Result, aplan, arun, plan, run
    from agent_forge.agents.feedback import ModelJudge, afeedback, feedback
    from agent_forge.agents.tools import Tool, Toolbox, tool
    from agent_forge.plans import Plan, Task
    from agent_forge.runtime import execute

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "agents.agent": "Agent",
        "agents.api": "Result aplan arun plan run",
        "agents.feedback": "ModelJudge afeedback feedback",
        "agents.tools": "Tool Toolbox tool",
        "plans": "Plan Task",
        "runtime": "execute",
    },
    "__version__",
)


def _before_torch() -> None:
    from agent_forge.bf16 import limit_instructions

    limit_instructions()


if "torch" in sys.modules:
    _before_torch()  # oneDNN reads the variable at its first product: there may still be time
else:
    ImportHook("torch", before=_before_torch)
