"""Ternary weights and an entropy coder: -1, 0 or 1 times the scale of the row's group.

A matrix that is ternary already (quantisation-aware training leaves such) is kept exactly. Any other is fitted: scale
and threshold by turns, then rounded with error feedback. Entropy coding gives 1 % at BitNet's third of zeros, and more
the sparser the matrix is (1.18 bits at 70 % zeros).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from agent_forge.forge.compression.container import Encoded, magnitude_classes
from agent_forge.forge.compression.feedback import Cost, order_of, rounded_with_feedback


def encode(weight: Tensor, cost: Cost, group: int = 128) -> Encoded:
    source = weight.detach().float()
    rows, columns = source.shape
    group = columns if group <= 0 or columns % group else group
    exact = _exact(source, group)
    if exact is not None:
        return _encoded(*exact, group)
    scale = _fitted(source.view(rows, -1, group)).half().float()
    scales = scale.repeat_interleave(group, 1).clamp_min(1e-12)
    order = None if cost.hessian is None else order_of(cost.hessian.to(source.device))
    if order is None:
        return _encoded(torch.round(source / scales).clamp(-1, 1), scale, group)
    place = scales[:, order.columns]
    codes = torch.empty_like(source)

    def quantise(piece: Tensor, at: int) -> Tensor:
        step = place[:, at : at + piece.shape[1]]
        codes[:, at : at + piece.shape[1]] = found = torch.round(piece / step).clamp(-1, 1)
        return found * step

    rounded_with_feedback(source[:, order.columns], order.upper, quantise)
    return _encoded(codes[:, order.back], scale, group)


def _exact(source: Tensor, group: int) -> tuple[Tensor, Tensor] | None:
    """Codes and scales if every group holds no magnitudes but 0 and one other. A group may be the whole row."""
    groups = source.view(len(source), -1, group)
    scale = groups.abs().amax(-1)
    codes = torch.sign(groups)
    return (codes.view_as(source), scale) if torch.equal(codes * scale[..., None], groups) else None


def _fitted(groups: Tensor, turns: int = 12) -> Tensor:
    """Lloyd's fit: the mean magnitude of the weights above half the scale, until it stays."""
    size = groups.abs()
    scale = 1.2 * size.mean(-1)
    for _ in range(turns):
        kept = size > scale[..., None] / 2
        scale = (size * kept).sum(-1) / kept.sum(-1).clamp_min(1)
    return scale


def _encoded(codes: Tensor, scale: Tensor, group: int) -> Encoded:
    trits = codes.to(torch.int8).cpu().numpy()
    held = scale.cpu().numpy()
    half = held.astype(np.float16)
    stored = half if np.array_equal(half.astype(np.float32), held) else held
    parts = {"scale": stored, **magnitude_classes(trits), "codes": (trits + 1).astype(np.uint8)}
    return Encoded("ternary", tuple(trits.shape), parts, {"group": group})


def decode(encoded: Encoded) -> Tensor:
    rows, columns = encoded.shape
    codes = encoded.parts["codes"].astype(np.float32).reshape(rows, -1, encoded.settings["group"]) - 1
    return torch.from_numpy((codes * encoded.parts["scale"].astype(np.float32)[..., None]).reshape(rows, columns))
