"""Tools: typed functions that plans and models call by name, and the ones that come with the package."""

from agent_forge.agents.tools.retrieval import Corpus, Hit, Passage, bundled_corpus, bundled_questions, retrieval
from agent_forge.agents.tools.schema import UnsupportedAnnotation
from agent_forge.agents.tools.tool import ArgumentsInvalid, Tool, ToolTimeout, tool
from agent_forge.agents.tools.toolbox import Toolbox, UnknownTool, as_handler, check

__all__ = [
    "ArgumentsInvalid",
    "Corpus",
    "Hit",
    "Passage",
    "Tool",
    "ToolTimeout",
    "Toolbox",
    "UnknownTool",
    "UnsupportedAnnotation",
    "as_handler",
    "bundled_corpus",
    "bundled_questions",
    "check",
    "retrieval",
    "tool",
]
