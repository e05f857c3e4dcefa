"""From results to an answer: facts read from passages, values combined, the final `<observation>` and `<answer>`."""

from __future__ import annotations

from agent_forge.agents.synthesis.answer import Answer, Evidence, parse_answer, synthesise
from agent_forge.agents.synthesis.combine import combine
from agent_forge.agents.synthesis.facts import Fact, look_up

__all__ = ["Answer", "Evidence", "Fact", "combine", "look_up", "parse_answer", "synthesise"]
