"""Architectures. Importing this registers Cognate, and the packed format, with transformers, and Cognate's cache with
the batching engine."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from agent_forge.forge.compression import loading as loading
from agent_forge.forge.models.cache import CognateCache
from agent_forge.forge.models.cognate import CognateForCausalLM, CognateModel, CognateOutput
from agent_forge.forge.models.config import CognateConfig
from agent_forge.forge.models.cross_entropy import chunked_cross_entropy
from agent_forge.forge.models.size import parameter_table
from agent_forge.inference import architectures
from agent_forge.inference.packed import quantizer as quantizer

__all__ = [
    "CognateCache",
    "CognateConfig",
    "CognateForCausalLM",
    "CognateModel",
    "CognateOutput",
    "chunked_cross_entropy",
    "parameter_table",
]

AutoConfig.register(CognateConfig.model_type, CognateConfig, exist_ok=True)
AutoModel.register(CognateConfig, CognateModel, exist_ok=True)
AutoModelForCausalLM.register(CognateConfig, CognateForCausalLM, exist_ok=True)


def _rows(reader: Any) -> Any:
    from agent_forge.forge.models.rows import WindowRows  # which needs a module that may be importing us just now

    return WindowRows(reader)


architectures.ROWS[CognateConfig.model_type] = _rows
