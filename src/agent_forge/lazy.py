"""Public names of a package that are imported when they are first used, so that importing the package stays cheap."""

from __future__ import annotations

TYPE_CHECKING = False  # what type checkers take for true; `typing` itself costs a third of `import agent_forge`
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def attach(
    package: str, homes: Mapping[str, str], *eager: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package. `homes` names the public names of each submodule, separated
    by spaces; `eager` are those that the package imports itself.

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

        return getattr(import_module(f"{package}.{home_of[name]}"), name)

    return load, public.copy, public
