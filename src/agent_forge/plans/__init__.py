"""Plans: what is to be done, and what waits for what. Pure data.

What every run needs is imported at once; formats, changes and analysis are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_forge.lazy import attach
from agent_forge.plans.faults import CODES, TEXT_LIMITS, PlanFault, PlanInvalid, PlanLimits
from agent_forge.plans.plan import Plan
from agent_forge.plans.provenance import Provenance
from agent_forge.plans.references import (
    Reference,
    ReferenceUnresolved,
    find_references,
    literal,
    look_up,
    resolve,
    whole_reference,
)
from agent_forge.plans.task import JSON, Task

if TYPE_CHECKING:
    from agent_forge.plans.analysis import Reason, needless_edges, reduced, why
    from agent_forge.plans.calls import VOCABULARY, read_call, write_call
    from agent_forge.plans.changes import ChangeBudget, ChangeRefused, expand, insert, replan
    from agent_forge.plans.conditions import Condition, ConditionError, condition
    from agent_forge.plans.documents import plan_from_document, to_document, to_json, to_yaml
    from agent_forge.plans.drawing import to_mermaid, to_tree
    from agent_forge.plans.lines_write import to_lines
    from agent_forge.plans.stream import FORMATS, PlanStream, parse_plan
    from agent_forge.plans.xml_write import to_xml

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "analysis": "Reason needless_edges reduced why",
        "calls": "VOCABULARY read_call write_call",
        "conditions": "Condition ConditionError condition",
        "changes": "ChangeBudget ChangeRefused expand insert replan",
        "documents": "plan_from_document to_document to_json to_yaml",
        "drawing": "to_mermaid to_tree",
        "lines_write": "to_lines",
        "stream": "FORMATS PlanStream parse_plan",
        "xml_write": "to_xml",
    },
    "CODES",
    "JSON",
    "Plan",
    "PlanFault",
    "PlanInvalid",
    "PlanLimits",
    "Provenance",
    "Reference",
    "ReferenceUnresolved",
    "TEXT_LIMITS",
    "Task",
    "find_references",
    "literal",
    "look_up",
    "resolve",
    "whole_reference",
)
