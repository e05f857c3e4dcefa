"""Phase 4: weights on few levels, trained for (BitNet b1.58 and its neighbours)."""

from __future__ import annotations

from agent_forge.forge.quantization.bitlinear import (
    BitLinear,
    linear_names,
    set_strength,
    settled,
    stored_weights,
    to_bitlinear,
    to_dense,
)
from agent_forge.forge.quantization.distillation import Distillation, chunked_divergence, distil
from agent_forge.forge.quantization.levels import (
    Format,
    fit_scales,
    level_codes,
    level_scales,
    round_inputs,
    spread,
    whole_numbers,
)

__all__ = [
    "BitLinear",
    "Distillation",
    "Format",
    "chunked_divergence",
    "distil",
    "fit_scales",
    "level_codes",
    "level_scales",
    "linear_names",
    "round_inputs",
    "set_strength",
    "settled",
    "spread",
    "stored_weights",
    "to_bitlinear",
    "to_dense",
    "whole_numbers",
]
