"""How a model is made: architectures, training, and the phases. One front door for every algorithm:

    from agent_forge import forge
    report = forge.compress("models/mine", "small", max_increase=0.05)

Importing this registers Cognate with transformers, so that `AutoModelForCausalLM.from_pretrained` loads what a phase
wrote: at once where transformers is loaded already, otherwise as soon as it is. So the registry, which needs neither,
opens in a fraction of a second and without a few hundred megabytes of torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from agent_forge.lazy import ImportHook, attach

if TYPE_CHECKING:
    from agent_forge.forge.compression.search import CompressionReport
    from agent_forge.forge.compression.settings import CompressSettings
    from agent_forge.forge.corpus import Source
    from agent_forge.forge.doors import (
        TrainReport,
        compress,
        evaluate,
        evolve,
        export,
        load,
        merge,
        quantize,
        run_phase,
        train,
    )
    from agent_forge.forge.evaluation.settings import EvaluateSettings
    from agent_forge.forge.evaluation.suite import EvaluationReport
    from agent_forge.forge.evolution.job import EvolveReport
    from agent_forge.forge.evolution.settings import Evolve
    from agent_forge.forge.exporting import ExportReport, ExportSettings
    from agent_forge.forge.importing import import_model
    from agent_forge.forge.merging.engine import MergeReport
    from agent_forge.forge.merging.settings import MergeSettings
    from agent_forge.forge.opening import LoadSettings, OpenedModel
    from agent_forge.forge.phases.cognate import Cognate
    from agent_forge.forge.phases.quietstar import QuietStar
    from agent_forge.forge.phases.specialise import Specialise
    from agent_forge.forge.quantization.job import QuantizeReport
    from agent_forge.forge.quantization.settings import QuantizeSettings

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "compression.search": "CompressionReport",
        "compression.settings": "CompressSettings",
        "corpus": "Source",
        "doors": "TrainReport compress evaluate evolve export load merge quantize run_phase train",
        "evaluation.settings": "EvaluateSettings",
        "evaluation.suite": "EvaluationReport",
        "evolution.job": "EvolveReport",
        "evolution.settings": "Evolve",
        "exporting": "ExportReport ExportSettings",
        "importing": "import_model",
        "merging.engine": "MergeReport",
        "merging.settings": "MergeSettings",
        "opening": "LoadSettings OpenedModel",
        "phases.cognate": "Cognate",
        "phases.quietstar": "QuietStar",
        "phases.specialise": "Specialise",
        "quantization.job": "QuantizeReport",
        "quantization.settings": "QuantizeSettings",
    },
)


def _register() -> None:
    from agent_forge.forge import models as models


if "transformers" in sys.modules:
    # Where another thread is still importing it, this waits. A `from transformers import …` that has to wait fails: it
    # then looks into the module that transformers has meanwhile replaced by another one.
    import_module("transformers")
    _register()
else:
    ImportHook("transformers", after=_register)
