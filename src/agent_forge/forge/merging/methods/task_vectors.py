"""Arithmetic on task vectors x_i - x_0.

Ilharco et al. 2022, arXiv:2212.04089; TIES, arXiv:2306.01708; SCE, arXiv:2408.07990.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agent_forge.forge.merging.coefficients import sce_weights, total
from agent_forge.forge.merging.exact import tree_sum
from agent_forge.forge.merging.methods.linear import combination
from agent_forge.forge.merging.methods.sparsify import largest


def add_task_vectors(
    base: Tensor,
    vectors: Sequence[Tensor],
    weights: Sequence[float],
    elect: bool = False,
    normalize: bool = False,
    scale: float = 1.0,
) -> Tensor:
    """x_0 + scale * sum_i w_i v_i; with `elect`, only over elements with the elected sign (TIES, steps 2 and 3).

    `normalize` divides by the sum of the weights; with `elect`, of those whose elements have the elected sign.
    """
    weighted = [vector * weight for vector, weight in zip(vectors, weights, strict=True)]
    if elect:
        agree = agreement(weighted)
        parts = [masked(part, ours) for part, ours in zip(weighted, agree, strict=True)]
        mixed = combination(parts, [1.0] * len(parts))
        below = combination([ours.to(base.dtype) for ours in agree], list(weights))
        below = torch.where(below == 0, 1.0, below)
    else:
        mixed = combination(weighted, [1.0] * len(weighted))
        whole = total(weights)
        below = torch.tensor(1.0 if abs(whole) < 1e-8 else whole, dtype=base.dtype, device=base.device)
    if normalize:
        mixed = mixed / below
    if scale != 1:
        mixed = mixed * scale
    return base + mixed


def elect_sign(parts: Sequence[Tensor]) -> Tensor:
    """True where the sum is not negative: a sum of zero elects plus."""
    return combination(parts, [1.0] * len(parts)) >= 0


def agreement(parts: Sequence[Tensor]) -> list[Tensor]:
    """Of each part, a mask of the elements with the elected sign; zero has none."""
    positive = elect_sign(parts)
    return [torch.where(positive, part > 0, part < 0) for part in parts]


def masked(vector: Tensor, mask: Tensor) -> Tensor:
    """The elements where the mask is true; zero elsewhere."""
    return torch.where(mask, vector, torch.zeros((), dtype=vector.dtype, device=vector.device))


def sce(base: Tensor, tensors: Sequence[Tensor], select_topk: float = 1.0) -> Tensor:
    """Selects the elements with the largest variance over the models, calculates a weight per model from its squares,
    and erases minority signs."""
    vectors = [tensor - base for tensor in tensors]
    if select_topk < 1:
        mask = sce_mask(vectors, select_topk)
        vectors = [masked(vector, mask) for vector in vectors]
    weights = sce_weights([tree_sum(vector * vector) / max(vector.numel(), 1) for vector in vectors])
    agree = agreement(vectors)
    parts = [masked(vector * weight, ours) for vector, weight, ours in zip(vectors, weights, agree, strict=True)]
    below = combination([ours.to(base.dtype) for ours in agree], weights).clamp(min=1e-6)
    return base + combination(parts, [1.0] * len(parts)) / below


def sce_mask(vectors: Sequence[Tensor], density: float) -> Tensor:
    """The share `density` of the elements with the largest variance, of those that vary at all."""
    variance = spread(vectors)
    count = int(int((variance != 0).sum()) * density)
    return largest(variance.reshape(-1), count).reshape(variance.shape)


def spread(vectors: Sequence[Tensor]) -> Tensor:
    """The variance over the models, per element."""
    ones = [1.0] * len(vectors)
    mean = combination(vectors, ones) / len(vectors)
    variance = combination([(vector - mean) * (vector - mean) for vector in vectors], ones) / len(vectors)
    return torch.where(variance.isnan(), 0.0, variance)  # as in the kernel
