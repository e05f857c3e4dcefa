"""How a model is made: architectures, training, and the phases.

Importing this makes Cognate known to transformers, so that `AutoModelForCausalLM.from_pretrained` loads what a phase
wrote: at once where transformers is loaded already, else as soon as it is. The registry, which needs neither, then
opens in a fraction of a second and without a few hundred megabytes of torch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_LIBRARY = "transformers"


class _WhenLoaded:
    """Waits for the import of transformers, and registers our architectures right after it."""

    asked = False

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Finds it as others would, with our step after it. Whoever only asks where it is, loads nothing."""
        if name != _LIBRARY or self.asked:
            return None
        self.asked = True
        try:
            spec = find_spec(name)
        finally:
            self.asked = False
        if spec is not None and spec.loader is not None:
            self._register_after(spec.loader)
        return spec

    def _register_after(self, loader: Any) -> None:
        load = loader.exec_module

        def load_and_register(module: ModuleType) -> None:
            sys.meta_path.remove(self)
            load(module)
            from agent_forge.forge import models as models

        loader.exec_module = load_and_register


if _LIBRARY in sys.modules:
    # Where another thread is still importing it, this waits. A `from transformers import …` that has to wait fails: it
    # then looks into the module that transformers has meanwhile replaced by another one.
    import_module(_LIBRARY)
    from agent_forge.forge import models as models
else:
    sys.meta_path.insert(0, _WhenLoaded())
