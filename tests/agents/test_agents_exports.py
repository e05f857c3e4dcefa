"""The public surface: every name is there, examples in docstrings run, and importing it is light."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import agent_forge.agents
from agent_forge.agents.tools import Toolbox, builtin_tools

ROOT = Path(agent_forge.agents.__file__).parent
EXAMPLES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in ROOT.rglob("*.py") if ">>> " in path.read_text()
)


def test_every_name_is_there() -> None:
    for name in agent_forge.agents.__all__:
        assert getattr(agent_forge.agents, name) is not None
    assert dir(agent_forge.agents) == agent_forge.agents.__all__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = agent_forge.agents.nothing
    from agent_forge import inference
    from agent_forge.agents import tools

    for module in (inference, tools):
        for name in module.__all__:
            assert getattr(module, name) is not None


@pytest.mark.parametrize("name", EXAMPLES)
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
