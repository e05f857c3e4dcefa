"""Hyper-compression (2409.00592): a few weights become one whole number, the time at which a trajectory passes them.

The curve t -> (t a_1 mod 1, t a_2 mod 1) with irrational a fills the unit square evenly, so any pair of weights,
brought into the square, is near the curve at some t of 0 ... 2^bits - 1, and t is all that is stored. The paper sorts
pairs into classes by size so that small ones get a finer square. We bend the square instead: both coordinates go
through the quantile function of the normal distribution, widened by sqrt 2, which is the density of points with the
least squared error for normal weights in two dimensions (Zador); every time is then about as likely and classes are not
needed.
"""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

from agent_forge.forge.compression.container import Encoded
from agent_forge.forge.compression.feedback import Cost, order_of, rounded_with_feedback

PLASTIC = 1.32471795724474602596  # directions 1/p, 1/p^2 of its powers spread points most evenly (Roberts' R2 sequence)


@lru_cache(maxsize=8)
def trajectory(bits: int) -> np.ndarray:
    """[2^bits, 2]: where the bent curve is at each whole time, for weights of root mean square 1."""
    quantile = NormalDist(0.0, 2**0.5).inv_cdf
    turns = [((0.5 + t / PLASTIC) % 1.0, (0.5 + t / PLASTIC**2) % 1.0) for t in range(1 << bits)]
    inside = 0.5 / (1 << bits)
    return np.array([[quantile(min(max(u, inside), 1 - inside)) for u in pair] for pair in turns], np.float32)


def encode(weight: Tensor, cost: Cost, bits: int = 8) -> Encoded:
    """`bits` for two weights."""
    rows, columns = weight.shape
    missing = columns % 2
    source = torch.nn.functional.pad(weight.detach().float(), (0, missing))
    scale = source.square().mean(1).sqrt().half().float().clamp_min(1e-7)
    points = torch.from_numpy(trajectory(bits)).to(source.device)
    times = torch.zeros(rows, source.shape[1] // 2, dtype=torch.long, device=source.device)

    def quantise(piece: Tensor, at: int) -> Tensor:
        times[:, at // 2] = nearest = _nearest(piece / scale[:, None], points)
        return points[nearest] * scale[:, None]

    if cost.hessian is None:
        for at in range(0, source.shape[1], 2):
            quantise(source[:, at : at + 2], at)
    else:
        hessian = torch.nn.functional.pad(cost.hessian.to(source.device), (0, missing, 0, missing))
        rounded_with_feedback(source, order_of(hessian, sort=False).upper, quantise, 2)
    parts = {"scale": scale.half().cpu().numpy(), "time": times.cpu().numpy().astype(np.uint16)}
    return Encoded("hyper", (rows, columns), parts, {"bits": bits})


def _nearest(pairs: Tensor, points: Tensor, rows: int = 1 << 14) -> Tensor:
    half = points.square().sum(1) / 2
    return torch.cat([(half - part @ points.T).argmin(1) for part in pairs.split(rows)])


def decode(encoded: Encoded) -> Tensor:
    rows, columns = encoded.shape
    pairs = trajectory(encoded.settings["bits"])[encoded.parts["time"]]
    scaled = pairs.reshape(rows, -1) * encoded.parts["scale"].astype(np.float32)[:, None]
    return torch.from_numpy(np.ascontiguousarray(scaled[:, :columns]))
