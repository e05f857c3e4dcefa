"""Tools: typed functions that plans and models call by name, and the built-in ones."""

from agent_forge.agents.tools.calculator import calculator
from agent_forge.agents.tools.files import file_tools
from agent_forge.agents.tools.http import http_fetch
from agent_forge.agents.tools.python import python_tool
from agent_forge.agents.tools.retrieval import Corpus, Hit, Passage, bundled_corpus, bundled_questions, retrieval
from agent_forge.agents.tools.schema import UnsupportedAnnotation
from agent_forge.agents.tools.tables import query_csv, query_json
from agent_forge.agents.tools.tool import ArgumentsInvalid, Tool, tool
from agent_forge.agents.tools.toolbox import Toolbox, UnknownTool, as_handler
from agent_forge.errors import ToolTimeout

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
    "builtin_tools",
    "bundled_corpus",
    "bundled_questions",
    "calculator",
    "file_tools",
    "http_fetch",
    "python_tool",
    "query_csv",
    "query_json",
    "retrieval",
    "tool",
]


def builtin_tools() -> list[Tool]:
    """The tools that need no setup: calculator, query_json, query_csv, and a search in the bundled corpus."""
    return [calculator, query_json, query_csv, retrieval(bundled_corpus())]
