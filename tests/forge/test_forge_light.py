"""The registry opens without torch, and Cognate is known to transformers whichever of the two is imported first."""

from __future__ import annotations

import subprocess
import sys


def printed(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_the_registry_opens_without_torch() -> None:
    code = "import sys, agent_forge.forge.registry; print('torch' in sys.modules, 'transformers' in sys.modules)"
    assert printed(code) == ["False", "False"]


def test_cognate_is_known_to_transformers() -> None:
    first = "from importlib.util import find_spec; import agent_forge.forge"
    asked = "find_spec('transformers')"  # asking where transformers is must not count as its import
    last = "import transformers; print(transformers.AutoConfig.for_model('cognate').model_type)"
    assert printed(f"{first}; {asked}; {last}") == ["cognate"]
