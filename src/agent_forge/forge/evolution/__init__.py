"""Evolution: merge recipes that improve, judged on data that did not select them.

    evolved = evolve(config, out)        # a search over recipes, from parents to a verdict
    write_report(evolved, out)

Genomes are recipes (`genome`, `recipe`), changed by `operators`, raced by `search`, scored by `fitness` on what
`examiner` measures, and gated by `verdict`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_forge.lazy import attach

if TYPE_CHECKING:
    from agent_forge.forge.evolution.report import document_of, write_report
    from agent_forge.forge.evolution.run import Evolved, evolve
    from agent_forge.forge.evolution.settings import Evolve, Search, TaskSource, Weights

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "report": "document_of write_report",
        "run": "Evolved evolve",
        "settings": "Evolve Search TaskSource Weights",
    },
)
