"""Half precision, for gains, biases and other small tensors. What float16 cannot hold stays float32."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from agent_forge.forge.compression.container import Encoded
from agent_forge.forge.compression.feedback import Cost


def encode(weight: Tensor, cost: Cost) -> Encoded:
    values = weight.detach().float().cpu().numpy()
    half = values.astype(np.float16)
    close = np.abs(half.astype(np.float32) - values) <= 1e-3 * np.abs(values) + 1e-7
    return Encoded("raw", tuple(weight.shape), {"values": half if close.all() else values})


def decode(encoded: Encoded) -> Tensor:
    return torch.from_numpy(encoded.parts["values"].astype(np.float32).reshape(encoded.shape))
