"""Rules that read a request as a plan: comparison, aggregation and bridge questions, and instructions."""

from __future__ import annotations

import re

from agent_forge.agents.complexity import is_question, listed_items
from agent_forge.agents.language import squeeze
from agent_forge.agents.planner.rules.aggregation import aggregation
from agent_forge.agents.planner.rules.bridge import LONGEST_QUESTION, bridge, single
from agent_forge.agents.planner.rules.comparison import comparison
from agent_forge.agents.planner.rules.draft import PlanDraft
from agent_forge.agents.planner.rules.requests import instructions
from agent_forge.agents.planner.tools import ToolIndex
from agent_forge.plans.references import Reference, reads_as_name, split_text

__all__ = ["read"]

_BRACES = re.compile(r"(?<!\{)\{+[^{}]*\}+")


def read(request: str, tools: ToolIndex | None = None, *, searches: bool = True) -> PlanDraft:
    """The draft of a request. A question is tried as comparison, aggregation, bridge and single look-up in turn; where
    nothing `searches`, it is for the tools like any other request."""
    text = squeeze(_BRACES.sub(lambda braces: _literal(braces.group()), request))
    question = " ".join(text.split())
    if listed_items(text) or not is_question(text) or not searches:
        return instructions(text, tools) or single(question)
    if len(question) <= LONGEST_QUESTION:
        for shape in (comparison, aggregation, bridge):
            draft = shape(question)
            if draft is not None:
                return draft
    return single(question)


def _literal(text: str) -> str:
    """Braces that would count as a reference in arguments, escaped: "{name}" in a request is text, "{3}" always is."""
    pieces = split_text(text)
    if pieces == [text] or any(isinstance(piece, Reference) and not reads_as_name(piece) for piece in pieces):
        return text
    return f"{{{text}}}"
