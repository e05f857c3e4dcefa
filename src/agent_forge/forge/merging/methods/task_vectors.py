"""Arithmetic on task vectors x_i - x_0. Ilharco et al. 2022, arXiv:2212.04089; TIES, arXiv:2306.01708; SCE,
arXiv:2408.07990."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agent_forge.forge.merging.counts import sce_weights, total
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
    """x_0 + scale * sum_i w_i v_i; with `elect`, over the elements whose sign is the elected one (TIES, steps 2 and 3).

    `normalize` divides by the weights that took part: all of them, or those of the elements that agree with the sign.
    """
    weighted = [vector * weight for vector, weight in zip(vectors, weights, strict=True)]
    if elect:
        agree = agreement(weighted)
        mixed = combination([kept(part, ours) for part, ours in zip(weighted, agree, strict=True)], [1.0] * len(agree))
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
    """Of each part, the elements that have the elected sign; zero has none."""
    positive = elect_sign(parts)
    return [torch.where(positive, part > 0, part < 0) for part in parts]


def kept(vector: Tensor, mask: Tensor) -> Tensor:
    """The elements under the mask; zero elsewhere."""
    return torch.where(mask, vector, torch.zeros((), dtype=vector.dtype, device=vector.device))


def sce(base: Tensor, tensors: Sequence[Tensor], select_topk: float = 1.0) -> Tensor:
    """Select the elements with the largest variance over the models, calculate a weight for each model from its
    squares, erase the minority signs."""
    vectors = [tensor - base for tensor in tensors]
    if select_topk < 1:
        mask = sce_mask(vectors, select_topk)
        vectors = [kept(vector, mask) for vector in vectors]
    weights = sce_weights([tree_sum(vector * vector) / max(vector.numel(), 1) for vector in vectors])
    agree = agreement(vectors)
    parts = [kept(vector * weight, ours) for vector, weight, ours in zip(vectors, weights, agree, strict=True)]
    below = combination([ours.to(base.dtype) for ours in agree], weights).clamp(min=1e-6)
    return base + combination(parts, [1.0] * len(parts)) / below


def sce_mask(vectors: Sequence[Tensor], density: float) -> Tensor:
    variance = spread(vectors)
    count = int(int((variance != 0).sum()) * density)
    return largest(variance.reshape(-1), count).reshape(variance.shape)


def spread(vectors: Sequence[Tensor]) -> Tensor:
    """The variance over the models, element by element."""
    ones = [1.0] * len(vectors)
    mean = combination(vectors, ones) / len(vectors)
    return combination([(vector - mean) * (vector - mean) for vector in vectors], ones) / len(vectors)
