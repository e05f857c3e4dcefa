"""The runtime: how a plan is carried out."""

from agent_forge.runtime.budget import Budget, spend
from agent_forge.runtime.executor import Running, execute, resume, start
from agent_forge.runtime.limits import Limits, Rate, ToolRules
from agent_forge.runtime.options import RunSettings
from agent_forge.runtime.result import Event, RunResult, TaskResult, Usage
from agent_forge.runtime.retry import Retry

__all__ = [
    "Budget",
    "Event",
    "Limits",
    "Rate",
    "Retry",
    "RunResult",
    "RunSettings",
    "Running",
    "TaskResult",
    "ToolRules",
    "Usage",
    "execute",
    "resume",
    "spend",
    "start",
]
