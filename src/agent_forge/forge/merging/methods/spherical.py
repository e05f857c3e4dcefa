"""Interpolation along great circles.

Each method is a linear combination whose coefficients follow from the inner products of the inputs. Those are computed
here; the coefficients come from `coefficients`, which the C kernel shares.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agent_forge.forge.merging.coefficients import multislerp_coefficients, nuslerp_coefficients, slerp_coefficients
from agent_forge.forge.merging.exact import gram, row_sums
from agent_forge.forge.merging.methods.linear import combination


def slerp(a: Tensor, b: Tensor, t: float) -> Tensor:
    """sin((1-t)W)/sin(W) a + sin(tW)/sin(W) b, with W the angle between a and b as flat vectors (Shoemake 1985).

    Linear for |cos W| > 0.9995, where the quotient is ill-conditioned.
    """
    return combination([a, b], slerp_coefficients(gram([a, b]), t))


def nuslerp(a: Tensor, b: Tensor, t: float) -> Tensor:
    """SLERP that stays on the great circle until the vectors are parallel to rounding (mergekit's NuSLERP)."""
    return combination([a, b], nuslerp_coefficients(gram([a, b]), t))


def nuslerp_rows(a: Tensor, b: Tensor, t: float, axis: int) -> Tensor:
    """NuSLERP per row (axis -1) or per column (axis 0)."""
    a, b = a.transpose(axis, -1), b.transpose(axis, -1)
    norms = [row_sums(x * x).sqrt().clamp(min=1e-7) for x in (a, b)]
    cosine = (row_sums(a * b) / norms[0] / norms[1]).clamp(-1, 1)
    parallel = 1 - cosine * cosine <= 1e-16
    angle = torch.acos(torch.where(parallel, torch.zeros_like(cosine), cosine))
    first = torch.where(parallel, torch.full_like(angle, 1 - t), torch.sin((1 - t) * angle) / torch.sin(angle))
    second = torch.where(parallel, torch.full_like(angle, t), torch.sin(t * angle) / torch.sin(angle))
    return (first * a + second * b).transpose(axis, -1)


def multislerp(
    tensors: Sequence[Tensor], weights: Sequence[float], normalize: bool = True, eps: float = 1e-8
) -> Tensor:
    """The barycentre on the sphere, as mergekit's Multi-SLERP computes it."""
    return combination(tensors, multislerp_coefficients(gram(list(tensors)), weights, normalize, eps))
