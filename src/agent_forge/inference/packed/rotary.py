"""Rotary positions: the angles of every position, as transformers computes them, with numpy alone.

Sources: RoFormer (2104.09864); linear interpolation (2306.15595); YaRN (2309.00071); Llama 3.1's own scaling by
wavelength. All of them are fixed: they do not depend on the length of the sequence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

FIXED_ANGLES = ("default", "linear", "llama3", "yarn")


def rope_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the rotary positions in config.json, also as written before transformers 5."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope.setdefault("rope_type", rope.pop("type", "default"))
    rope.setdefault("rope_theta", config.get("rope_theta") or 10_000.0)
    rope.setdefault("original_max_position_embeddings", config.get("max_position_embeddings"))
    return rope


def angles(rope: Mapping[str, Any], width: int, length: int) -> tuple[Any, Any]:
    """Cosines and sines of positions 0 .. length - 1, float32 [length, width / 2]."""
    frequencies = rope["rope_theta"] ** -(np.arange(0, width, 2, dtype=np.float64) / width)
    kind, scale = rope["rope_type"], 1.0
    if kind == "linear":
        frequencies = frequencies / rope["factor"]
    elif kind == "llama3":
        frequencies = _llama3(frequencies, rope)
    elif kind == "yarn":
        frequencies, scale = _yarn(frequencies, rope, width)
    turns = np.arange(length, dtype=np.float32)[:, None] * frequencies.astype(np.float32)  # in float32, as transformers
    return np.cos(turns) * np.float32(scale), np.sin(turns) * np.float32(scale)


def _llama3(frequencies: Any, rope: Mapping[str, Any]) -> Any:
    """Slow frequencies are divided by `factor`, fast ones stay, those between are mixed."""
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    turns = rope["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    keep = np.clip((turns - low) / (high - low), 0, 1)
    return frequencies * (keep + (1 - keep) / rope["factor"])


def _yarn(frequencies: Any, rope: Mapping[str, Any], width: int) -> tuple[Any, float]:
    factor, context = rope["factor"], rope["original_max_position_embeddings"]
    theta, half = rope["rope_theta"], width // 2

    def dimension(turns: float) -> float:
        """The dimension that makes so many turns within the original context."""
        return width * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(rope.get("beta_fast") or 32), dimension(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    ramp = np.clip((np.arange(half) - low) / (high - low or 0.001), 0, 1)

    def warmth(weight: float = 1.0) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    scale = rope.get("attention_factor")
    if scale is None:
        one, all_dims = rope.get("mscale"), rope.get("mscale_all_dim")
        scale = warmth(one) / warmth(all_dims) if one and all_dims else warmth()
    return frequencies * (1 - ramp + ramp / factor), scale
