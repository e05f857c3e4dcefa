"""Round to nearest: the control that every other codec must beat at equal bits.

Each group of a row has a scale and an offset (float16), from its smallest and largest weight. The
codes have a fixed width and no entropy coding, as in plain formats.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from agent_forge.forge.compression.container import Encoded
from agent_forge.forge.compression.feedback import Cost


def encode(weight: Tensor, cost: Cost, bits: int = 4, group: int = 128) -> Encoded:
    rows, columns = weight.shape
    group = columns if group <= 0 or columns % group else group
    values = weight.detach().float().cpu().numpy().reshape(rows, -1, group)  # [R, groups, group]
    low = values.min(-1, keepdims=True).astype(np.float16)
    scale = ((values.max(-1, keepdims=True) - low) / ((1 << bits) - 1)).astype(np.float16)
    step = np.where(scale > 0, scale, 1).astype(np.float32)
    codes = np.clip(np.round((values - low.astype(np.float32)) / step), 0, (1 << bits) - 1)
    parts = {"scale": scale[..., 0], "low": low[..., 0], "plain": codes.astype(np.uint8).reshape(rows, columns)}
    return Encoded("rtn", (rows, columns), parts, {"bits": bits, "group": group})


def decode(encoded: Encoded) -> Tensor:
    rows, columns = encoded.shape
    scale, low = (encoded.parts[name].astype(np.float32)[..., None] for name in ("scale", "low"))
    codes = encoded.parts["plain"].astype(np.float32).reshape(rows, -1, encoded.settings["group"])
    return torch.from_numpy((codes * scale + low).reshape(rows, columns))
