"""The runtime: how a plan is carried out."""

from agent_forge.runtime.batch import BatchRouter, execute_many
from agent_forge.runtime.budget import Budget, spend
from agent_forge.runtime.executor import Running, execute, new_run_id, resume, start
from agent_forge.runtime.journal import Journal
from agent_forge.runtime.limits import Limits, Rate, Retry, ToolRules
from agent_forge.runtime.options import RunSettings
from agent_forge.runtime.result import Event, RunResult, TaskResult, Usage
from agent_forge.runtime.sandbox import SandboxLimits, SandboxResult, run_python, sandbox_available
from agent_forge.runtime.simulated import SimulatedLoop, run_simulated
from agent_forge.runtime.stored import RunSummary, StoredRun
from agent_forge.runtime.workers import Inline, Processes, Threads, WorkerDied, Workers

__all__ = [
    "BatchRouter",
    "Budget",
    "Event",
    "Inline",
    "Journal",
    "Limits",
    "Processes",
    "Rate",
    "Retry",
    "RunResult",
    "RunSettings",
    "RunSummary",
    "Running",
    "SandboxLimits",
    "SandboxResult",
    "SimulatedLoop",
    "StoredRun",
    "TaskResult",
    "Threads",
    "ToolRules",
    "Usage",
    "WorkerDied",
    "Workers",
    "execute",
    "execute_many",
    "new_run_id",
    "resume",
    "run_python",
    "run_simulated",
    "sandbox_available",
    "spend",
    "start",
]
