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
from agent_forge.forge.quantization.calibration import calibrate, input_moments, input_squares, round_with_feedback
from agent_forge.forge.quantization.distillation import Distillation, chunked_divergence, distil
from agent_forge.forge.quantization.folder import copy_tokenizer, float32_bytes, folder_bytes, write_dense, write_packed
from agent_forge.forge.quantization.gate import Demands, check
from agent_forge.forge.quantization.job import Job, quantise_folder
from agent_forge.forge.quantization.levels import (
    Format,
    fit_scales,
    level_codes,
    level_scales,
    round_inputs,
    spread,
    whole_numbers,
)
from agent_forge.forge.quantization.material import Material, Wanted, gather, write_rows
from agent_forge.forge.quantization.quantise import Quantisation
from agent_forge.forge.quantization.recipe import Recipe

__all__ = [
    "BitLinear",
    "Demands",
    "Distillation",
    "Format",
    "Job",
    "Material",
    "Quantisation",
    "Recipe",
    "Wanted",
    "calibrate",
    "check",
    "chunked_divergence",
    "copy_tokenizer",
    "distil",
    "fit_scales",
    "float32_bytes",
    "folder_bytes",
    "gather",
    "input_moments",
    "input_squares",
    "level_codes",
    "level_scales",
    "linear_names",
    "quantise_folder",
    "round_inputs",
    "round_with_feedback",
    "set_strength",
    "settled",
    "spread",
    "stored_weights",
    "to_bitlinear",
    "to_dense",
    "whole_numbers",
    "write_dense",
    "write_packed",
    "write_rows",
]
