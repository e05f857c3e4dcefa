"""Imports that wait: public names that load at first use, and hooks on the import of a heavy library."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # what type checkers take for true; `typing` itself costs a third of `import agent_forge`
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


def attach(
    package: str, homes: Mapping[str, str], *eager: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package. `homes` names the public names of each submodule (or of a
    module named from the root), separated by spaces; `eager` are those that the package imports itself.

    >>> __getattr__, __dir__, __all__ = attach("agent_forge", {"plans": "Plan Task"}, "__version__")
    >>> __getattr__("Task").__module__, __all__
    ('agent_forge.plans.task', ['Plan', 'Task', '__version__'])
    """
    home_of = {name: module for module, names in homes.items() for name in names.split()}
    public = sorted([*home_of, *eager])

    def load(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        home = home_of[name]
        return getattr(import_module(home if home.startswith("agent_forge.") else f"{package}.{home}"), name)

    return load, public.copy, public


class ImportHook:
    """Runs `before` and `after` around the first import of the module `name`, whoever imports it.

    Looking for the module (`find_spec`) without importing it runs neither.
    """

    def __init__(
        self, name: str, before: Callable[[], object] | None = None, after: Callable[[], object] | None = None
    ) -> None:
        self.name, self.before, self.after = name, before, after
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        finders = (finder for finder in sys.meta_path if finder is not self)
        spec = next((spec for finder in finders if (spec := finder.find_spec(name, path, target))), None)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            load = loader.exec_module

            def load_with_hooks(module: ModuleType) -> None:
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                if self.before is not None:
                    self.before()
                load(module)
                if self.after is not None:
                    self.after()

            loader.exec_module = load_with_hooks
        return spec
