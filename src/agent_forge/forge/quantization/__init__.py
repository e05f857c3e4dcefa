"""Phase 4: weights on few levels, trained for (BitNet b1.58 and its relatives)."""

from __future__ import annotations

from agent_forge.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "bitlinear": "BitLinear linear_names set_strength settled stored_weights to_bitlinear to_dense",
        "calibration": "calibrate input_moments input_squares round_with_feedback",
        "distillation": "Distillation chunked_divergence distil",
        "folder": "copy_tokenizer float32_bytes folder_bytes write_dense write_packed",
        "gate": "Demands check",
        "job": "QuantizeReport quantise_folder",
        "levels": "fit_scales level_codes level_scales round_inputs spread whole_numbers",
        "material": "Material MaterialSize gather write_rows",
        "quantise": "Quantisation",
        "recipe": "QATRecipe",
        "settings": "Format QuantizeSettings",
    },
)
