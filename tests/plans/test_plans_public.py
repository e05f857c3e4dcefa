"""The public names, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import agent_forge.plans


def test_every_public_name_is_there_and_no_other() -> None:
    for name in agent_forge.plans.__all__:
        assert getattr(agent_forge.plans, name) is not None
    assert dir(agent_forge.plans) == sorted(agent_forge.plans.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        agent_forge.plans.nothing  # noqa: B018


def test_plans_import_with_the_standard_library_and_without_the_formats() -> None:
    code = "import sys, agent_forge.plans; print([m for m in sys.modules if m.split('.')[0] in BAD or 'stream' in m])"
    bad = "BAD = ('yaml', 'httpx', 'click', 'rich', 'urllib', 'xml', 'asyncio', 'numpy', 'torch'); "
    found = subprocess.run([sys.executable, "-c", bad + code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
