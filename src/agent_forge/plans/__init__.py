"""Plans: what is to be done, and what waits for what. Pure data."""

from agent_forge.plans.analysis import Reason, needless_edges, reduced, why
from agent_forge.plans.calls import VOCABULARY, read_call, write_call
from agent_forge.plans.changes import ChangeBudget, ChangeRefused, expand, insert, replan
from agent_forge.plans.documents import plan_from_document, to_document, to_json, to_yaml
from agent_forge.plans.drawing import to_mermaid, to_tree
from agent_forge.plans.faults import CODES, TEXT_LIMITS, PlanFault, PlanInvalid, PlanLimits
from agent_forge.plans.lines_write import to_lines
from agent_forge.plans.plan import Plan
from agent_forge.plans.references import (
    Reference,
    ReferenceUnresolved,
    find_references,
    look_up,
    resolve,
    whole_reference,
)
from agent_forge.plans.stream import FORMATS, PlanStream, parse_plan
from agent_forge.plans.task import JSON, Task
from agent_forge.plans.xml_write import to_xml

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
