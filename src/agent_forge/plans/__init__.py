"""Plans: what is to be done, and what waits for what. Pure data."""

from agent_forge.plans.faults import PlanFault, PlanInvalid, PlanLimits
from agent_forge.plans.plan import Plan
from agent_forge.plans.references import (
    Reference,
    ReferenceUnresolved,
    find_references,
    look_up,
    resolve,
    whole_reference,
)
from agent_forge.plans.task import JSON, Task

__all__ = [
    "JSON",
    "Plan",
    "PlanFault",
    "PlanInvalid",
    "PlanLimits",
    "Reference",
    "ReferenceUnresolved",
    "Task",
    "find_references",
    "look_up",
    "resolve",
    "whole_reference",
]
