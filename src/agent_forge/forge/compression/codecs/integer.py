"""int2 to int8 in groups: a scale and a zero point per group of a row, scales searched, errors fed back.

For embeddings and wherever a fixed width is wanted. The codes are entropy-coded where that is
smaller, which for int8 it usually is.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from agent_forge.forge.compression.container import Encoded
from agent_forge.forge.compression.feedback import Cost, by_columns, codes_with_feedback

SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6)  # of the range: outliers may be clipped


def encode(weight: Tensor, cost: Cost, bits: int = 4, group: int = 64) -> Encoded:
    source = weight.detach().float()
    rows, columns = source.shape
    group = columns if group <= 0 or columns % group else group
    scale, zero = _ranges(source.view(rows, -1, group), bits)  # [R, groups]
    scales, zeros = (by_columns(x.repeat_interleave(group, 1)) for x in (scale, zero))  # [R, C]
    codes = codes_with_feedback(
        source,
        cost.hessian,
        lambda columns, at: _codes(columns, scales[:, at], zeros[:, at], bits),
        lambda codes, at: (codes - zeros[:, at]) * scales[:, at],
    )
    parts = {
        "scale": scale.half().cpu().numpy(),
        "zero": zero.to(torch.uint8).cpu().numpy(),
        "codes": codes.to(torch.uint8).cpu().numpy(),
    }
    return Encoded("integer", (rows, columns), parts, {"bits": bits, "group": group})


def _codes(x: Tensor, scale: Tensor, zero: Tensor, bits: int) -> Tensor:
    return (torch.round(x / scale) + zero).clamp(0, (1 << bits) - 1)


def _ranges(groups: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """The scale (as float16 stores it) and zero point of each group: the best of several narrower ranges."""
    most = (1 << bits) - 1
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    best = torch.full_like(low, torch.inf)
    scale, zero = torch.ones_like(low), torch.zeros_like(low)
    for shrink in SHRINKS:
        s = (shrink * (high - low) / most).clamp_min(1e-7).half().float()
        z = torch.round(-shrink * low / s).clamp(0, most)
        decoded = (_codes(groups, s[..., None], z[..., None], bits) - z[..., None]) * s[..., None]
        error = (decoded - groups).square().sum(-1)
        better = error < best
        best, scale, zero = (torch.where(better, a, b) for a, b in ((error, best), (s, scale), (z, zero)))
    return scale, zero


def decode(encoded: Encoded) -> Tensor:
    rows, columns = encoded.shape
    scale, zero = (encoded.parts[name].astype(np.float32)[..., None] for name in ("scale", "zero"))
    codes = encoded.parts["codes"].astype(np.float32).reshape(rows, -1, encoded.settings["group"])
    return torch.from_numpy(((codes - zero) * scale).reshape(rows, columns))
