"""The registry opens without torch, and Cognate is known to transformers whichever of the two is imported first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def printed(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_the_registry_opens_without_torch() -> None:
    code = "import sys, agent_forge.forge.registry; print('torch' in sys.modules, 'transformers' in sys.modules)"
    assert printed(code) == ["False", "False"]


def test_cognate_is_known_to_transformers() -> None:
    first = "from importlib.util import find_spec; import agent_forge.forge"
    query = "find_spec('transformers')"  # asking where transformers is must not count as its import
    last = "import transformers; print(transformers.AutoConfig.for_model('cognate').model_type)"
    assert printed(f"{first}; {query}; {last}") == ["cognate"]


STAND_IN = """
import sys, time, types
time.sleep(0.5)
whole = types.ModuleType("transformers")
whole.AutoConfig = object
sys.modules["transformers"] = whole  # as transformers puts its lazy module in place of itself
"""


def test_an_import_of_transformers_in_another_thread_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "transformers.py").write_text(STAND_IN)
    code = f"""
import sys, threading, types
sys.path.insert(0, {str(tmp_path)!r})
sys.modules["agent_forge.forge.models"] = types.ModuleType("models")
threading.Thread(target=lambda: __import__("transformers")).start()
while "transformers" not in sys.modules:
    pass
import agent_forge.forge
print(hasattr(sys.modules["transformers"], "AutoConfig"))
"""
    assert printed(code) == ["True"]


AUTO = """
import sys
from types import SimpleNamespace
utils = SimpleNamespace(logging=SimpleNamespace(disable_progress_bar=lambda: None))
class AutoModelForCausalLM:
    def from_pretrained(*_, **__):
        print("agent_forge.forge" in sys.modules)
AutoTokenizer = AutoModelForCausalLM
"""


def test_a_folder_as_a_model_may_be_one_that_the_forge_made(tmp_path: Path) -> None:
    (tmp_path / "transformers.py").write_text(AUTO)
    code = f"""
import sys, types
sys.path.insert(0, {str(tmp_path)!r})
sys.modules["agent_forge.forge.models"] = types.ModuleType("models")
from agent_forge.agents import model
model({str(tmp_path)!r})._load()
"""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    assert printed(code) == ["True", "True"]
