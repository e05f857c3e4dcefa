"""How a model is made: architectures, training, and the phases.

Importing this registers Cognate with transformers, so that `AutoModelForCausalLM.from_pretrained` loads what a phase
wrote: at once where transformers is loaded already, otherwise as soon as it is. So the registry, which needs neither,
opens in a fraction of a second and without a few hundred megabytes of torch.
"""

from __future__ import annotations

import sys
from importlib import import_module

from agent_forge.lazy import ImportHook


def _register() -> None:
    from agent_forge.forge import models as models


if "transformers" in sys.modules:
    # Where another thread is still importing it, this waits. A `from transformers import …` that has to wait fails: it
    # then looks into the module that transformers has meanwhile replaced by another one.
    import_module("transformers")
    _register()
else:
    ImportHook("transformers", after=_register)
