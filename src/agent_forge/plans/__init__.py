"""Plans: what is to be done, and what waits for what. Pure data.

What every run needs is imported at once; formats, changes and analysis are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agent_forge.plans.faults import CODES, TEXT_LIMITS, PlanFault, PlanInvalid, PlanLimits
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

if TYPE_CHECKING:
    from agent_forge.plans.analysis import Reason, needless_edges, reduced, why
    from agent_forge.plans.calls import VOCABULARY, read_call, write_call
    from agent_forge.plans.changes import ChangeBudget, ChangeRefused, expand, insert, replan
    from agent_forge.plans.documents import plan_from_document, to_document, to_json, to_yaml
    from agent_forge.plans.drawing import to_mermaid, to_tree
    from agent_forge.plans.lines_write import to_lines
    from agent_forge.plans.stream import FORMATS, PlanStream, parse_plan
    from agent_forge.plans.xml_write import to_xml

_HOME_OF = {
    name: f"agent_forge.plans.{module}"
    for module, names in {
        "analysis": ("Reason", "needless_edges", "reduced", "why"),
        "calls": ("VOCABULARY", "read_call", "write_call"),
        "changes": ("ChangeBudget", "ChangeRefused", "expand", "insert", "replan"),
        "documents": ("plan_from_document", "to_document", "to_json", "to_yaml"),
        "drawing": ("to_mermaid", "to_tree"),
        "lines_write": ("to_lines",),
        "stream": ("FORMATS", "PlanStream", "parse_plan"),
        "xml_write": ("to_xml",),
    }.items()
    for name in names
}

__all__ = [
    "CODES",
    "FORMATS",
    "JSON",
    "TEXT_LIMITS",
    "VOCABULARY",
    "ChangeBudget",
    "ChangeRefused",
    "Plan",
    "PlanFault",
    "PlanInvalid",
    "PlanLimits",
    "PlanStream",
    "Reason",
    "Reference",
    "ReferenceUnresolved",
    "Task",
    "expand",
    "find_references",
    "insert",
    "look_up",
    "needless_edges",
    "parse_plan",
    "plan_from_document",
    "read_call",
    "reduced",
    "replan",
    "resolve",
    "to_document",
    "to_json",
    "to_lines",
    "to_mermaid",
    "to_tree",
    "to_xml",
    "to_yaml",
    "whole_reference",
    "why",
    "write_call",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'agent_forge.plans' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
