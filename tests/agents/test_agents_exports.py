"""The public surface: every name is there, examples in docstrings run, and importing it is light."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys

import pytest

import agent_forge.agents
from agent_forge.agents.tools import Toolbox, builtin_tools

MODULES = [
    "breaker",
    "mcp",
    "profiles",
    "routing",
    "models.checkpoint",
    "models.openai_compatible",
    "models.resolve",
    "tools.addresses",
    "tools.calculator",
    "tools.docstring",
    "tools.files",
    "tools.query",
    "tools.retrieval",
    "tools.schema",
    "tools.tables",
    "tools.tool",
    "tools.toolbox",
]


def test_every_name_is_there() -> None:
    for name in agent_forge.agents.__all__:
        assert getattr(agent_forge.agents, name) is not None
    assert dir(agent_forge.agents) == agent_forge.agents.__all__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = agent_forge.agents.nothing
    from agent_forge.agents import models, tools

    for module in (models, tools):
        for name in module.__all__:
            assert getattr(module, name) is not None


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    results = doctest.testmod(importlib.import_module(f"agent_forge.agents.{name}"))
    assert results.attempted > 0
    assert results.failed == 0


def test_importing_is_light() -> None:
    code = (
        "import sys; from agent_forge.agents import tool, Toolbox, ModelClient, Router, model;"
        "heavy = {'torch', 'transformers', 'httpx', 'jsonschema', 'mcp', 'numpy'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_tools_that_need_nothing() -> None:
    box = Toolbox(builtin_tools())
    assert box.names == ("calculator", "query_json", "query_csv", "search")
