"""Evolution: merge recipes that improve, judged on data that did not select them.

    evolved = evolve(config, out)        # a search over recipes, from parents to a verdict
    write_report(evolved, out)

Genomes are recipes (`genome`, `recipe`), bred by `search`, merged and measured by `examiner`, scored and logged by
`jury`; `fitness` compares them and gates the champion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_forge.lazy import attach

if TYPE_CHECKING:
    from agent_forge.forge.evolution.report import document_of, write_report
    from agent_forge.forge.evolution.run import Evolved, evolve
    from agent_forge.forge.evolution.settings import Evolve, FitnessWeights, Search, TaskSource

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "report": "document_of write_report",
        "run": "Evolved evolve",
        "settings": "Evolve FitnessWeights Search TaskSource",
    },
)
