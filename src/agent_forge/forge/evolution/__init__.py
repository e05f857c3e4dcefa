"""Evolution: merge recipes that improve, judged on data that did not select them.

    evolved = evolve(config, out)        # a search over recipes, from parents to a verdict
    write_report(evolved, out)

Genomes are recipes (`genome`, `recipe`), changed by `operators`, raced by `search`, scored by `fitness` on what
`examiner` measures, and gated by `verdict`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_forge.forge.evolution.report import document_of, write_report
    from agent_forge.forge.evolution.run import Evolved, evolve
    from agent_forge.forge.evolution.settings import Evolve, Search, TaskSource, Weights

_HOME = {
    "Evolve": "settings",
    "Evolved": "run",
    "Search": "settings",
    "TaskSource": "settings",
    "Weights": "settings",
    "document_of": "report",
    "evolve": "run",
    "write_report": "report",
}


def __getattr__(name: str) -> Any:
    """Imported when used: reading a configuration needs no torch."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


__all__ = ["Evolve", "Evolved", "Search", "TaskSource", "Weights", "document_of", "evolve", "write_report"]
