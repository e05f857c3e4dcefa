"""From results to an answer: facts are read from passages, values combined, and the answer written."""

from __future__ import annotations

from agent_forge.agents.synthesis.answer import Answer, Evidence, parse_answer, synthesise
from agent_forge.agents.synthesis.combine import combine
from agent_forge.agents.synthesis.facts import Fact, look_up

__all__ = ["Answer", "Evidence", "Fact", "combine", "look_up", "parse_answer", "synthesise"]
