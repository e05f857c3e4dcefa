"""Architectures that another room brings along.

This room imports no other. The forge registers its architectures when it is imported: with transformers, so that
`from_pretrained` knows them, and here, so that the batching engine knows their caches. Somebody has to import it, and
a user who names a folder does not know who made it; so `register_all` imports the rooms listed here, by name.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_forge.inference.rows import Rows

PROVIDERS = ("agent_forge.forge",)
ROWS: dict[str, Callable[[Any], Rows]] = {}
"""By `model_type`: from a `torch_rows.Reader` to the `Rows` for it."""


def register_all() -> None:
    """Imports the rooms that register architectures. Raises ImportError where their packages are missing."""
    for name in PROVIDERS:
        import_module(name)
