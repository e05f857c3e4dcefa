"""Interpolation along great circles. Each method is a linear combination whose coefficients follow from the inner
products of the inputs, so only those are computed from the tensors; the functions that end in `_coefficients` are
shared with the C kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from agent_forge.errors import DataError
from agent_forge.forge.merging.exact import gram, row_sums
from agent_forge.forge.merging.methods.linear import combination

Gram = Sequence[Sequence[float]]
PARALLEL = 0.9995  # above this cosine, mergekit interpolates linearly


def slerp(a: Tensor, b: Tensor, t: float) -> Tensor:
    """sin((1-t)W)/sin(W) a + sin(tW)/sin(W) b, with W the angle between a and b as flat vectors (Shoemake 1985).

    Linear for |cos W| > 0.9995, where the quotient loses its meaning.
    """
    return combination([a, b], slerp_coefficients(gram([a, b]), t))


def slerp_coefficients(products: Gram, t: float) -> list[float]:
    cosine = _cosine(products[0][1], _norm(products[0][0], 1e-8), _norm(products[1][1], 1e-8))
    if abs(cosine) > PARALLEL:
        return [1 - t, t]
    angle = math.acos(cosine)
    return [math.sin((1 - t) * angle) / math.sin(angle), math.sin(t * angle) / math.sin(angle)]


def _norm(square: float, least: float) -> float:
    norm = math.sqrt(square)
    return norm if norm > least else 1.0


def _cosine(product: float, a: float, b: float) -> float:
    return max(-1.0, min(1.0, product / a / b))


def share(weights: Sequence[float]) -> float:
    """NuSLERP's t from two weights."""
    total = weights[0] + weights[1]
    return 0.5 if abs(total) < 1e-6 else weights[1] / total


def nuslerp(a: Tensor, b: Tensor, t: float) -> Tensor:
    """SLERP that stays on the great circle until the vectors are parallel to rounding (mergekit's NuSLERP)."""
    return combination([a, b], nuslerp_coefficients(gram([a, b]), t))


def nuslerp_coefficients(products: Gram, t: float) -> list[float]:
    norms = [max(math.sqrt(products[i][i]), 1e-7) for i in (0, 1)]
    cosine = _cosine(products[0][1], *norms)
    if 1 - cosine * cosine <= 1e-16:
        return [1 - t, t]
    angle = math.acos(cosine)
    return [math.sin((1 - t) * angle) / math.sin(angle), math.sin(t * angle) / math.sin(angle)]


def nuslerp_rows(a: Tensor, b: Tensor, t: float, axis: int) -> Tensor:
    """NuSLERP of each row (axis -1) or each column (axis 0) on its own."""
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


def multislerp_coefficients(
    products: Gram, weights: Sequence[float], normalize: bool = True, eps: float = 1e-8
) -> list[float]:
    """With u_i the unit vectors and m the unit vector of sum_i w_i u_i, mergekit adds to m the mean of the tangents
    u_i - <u_i, m> m and follows it on the sphere. That mean is sum_i w_i u_i less its own projection on m: zero.
    What is left is m cos(eps), scaled to the mean norm."""
    if normalize:
        weights = [weight / sum(weights) for weight in weights]
    norms = [math.sqrt(products[i][i]) for i in range(len(weights))]
    shares = [weight / (norm + eps) for weight, norm in zip(weights, norms, strict=True)]
    square = sum(a * b * products[i][j] for i, a in enumerate(shares) for j, b in enumerate(shares))
    length = math.sqrt(max(square, 0.0))
    if length < eps:
        if len(weights) == 2:
            return list(weights)
        raise DataError("multislerp: the weighted sum of the inputs is zero", fix="change the weights")
    size = sum(weight * norm for weight, norm in zip(weights, norms, strict=True)) * math.cos(eps)
    return [part / length * size for part in shares]
