"""Which elements of a task vector stay. Each function returns a boolean mask of the vector's shape.

Ties go to the lower position, so the number of elements is exact: the masks of a stable sort, without sorting.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from agent_forge.forge.merging.coefficients import band_ends, top_count
from agent_forge.forge.merging.rng import random_mask, random_words


def largest(keys: Tensor, count: int) -> Tensor:
    """The `count` largest elements of a flat tensor."""
    if count <= 0 or count >= keys.numel():
        return torch.full_like(keys, count > 0, dtype=torch.bool)
    threshold = _kth(keys, keys.numel() - count)
    return _with_ties(keys > threshold, keys == threshold, count)


def smallest(keys: Tensor, count: int) -> Tensor:
    """The `count` smallest elements of a flat tensor."""
    if count <= 0 or count >= keys.numel():
        return torch.full_like(keys, count > 0, dtype=torch.bool)
    threshold = _kth(keys, count - 1)
    return _with_ties(keys < threshold, keys == threshold, count)


def _kth(keys: Tensor, place: int) -> float:
    """The key at a place of the ascending order. On a CPU numpy selects several times as fast as torch."""
    if keys.device.type == "cpu":
        return float(np.partition(keys.numpy(), place)[place])
    return float(keys.kthvalue(place + 1).values)


def _with_ties(mask: Tensor, ties: Tensor, count: int) -> Tensor:
    places = ties.nonzero()[: count - int(mask.sum()), 0]
    mask[places] = True
    return mask


def magnitudes(vector: Tensor) -> Tensor:
    """|x|, flat. A NaN ranks as zero, as in the kernel."""
    keys = vector.abs().reshape(-1)
    return torch.where(keys.isnan(), 0.0, keys)


def top(vector: Tensor, density: float) -> Tensor:
    """TIES' trim (arXiv:2306.01708, step 1): the share `density` with the largest |x|, at least one element."""
    if density >= 1 or density <= 0 or not vector.numel():
        return torch.full_like(vector, density > 0, dtype=torch.bool)
    keys = magnitudes(vector)
    return largest(keys, top_count(keys.numel(), density)).reshape(vector.shape) & ~vector.isnan()


def band(vector: Tensor, density: float, gamma: float) -> Tensor:
    """Model Breadcrumbs (arXiv:2312.06795): without the share `gamma` of the largest |x|, the next share `density`."""
    if density >= 1:
        return torch.ones_like(vector, dtype=torch.bool)
    keys = magnitudes(vector)
    low, high = band_ends(keys.numel(), density, gamma)
    return (smallest(keys, high) & ~smallest(keys, low)).reshape(vector.shape) & ~vector.isnan()


def bernoulli(vector: Tensor, density: float, key: tuple[int, int]) -> Tensor:
    """DARE's mask (arXiv:2311.03099, equation 2): every element stays with probability `density`."""
    mask = torch.from_numpy(random_mask(key, vector.numel(), density))
    return mask.to(vector.device).reshape(vector.shape)


def keep_probabilities(vector: Tensor, density: float, epsilon: float) -> Tensor:
    """DELLA's MagPrune (arXiv:2406.11617, equation 3), linear in the rank of |x| within its row.

    From density - epsilon for the smallest to density + epsilon for the largest.
    """
    rows = vector.abs().reshape(1, -1) if vector.dim() < 2 else vector.abs().movedim(1, -1)
    order = torch.sort(rows, dim=-1, stable=True).indices
    ranks = torch.empty_like(order).scatter_(
        -1, order, torch.arange(rows.shape[-1], device=rows.device).expand_as(order)
    )
    span = 2 * epsilon / max(rows.shape[-1] - 1, 1)
    chances = (density - epsilon) + ranks.to(torch.float64) * span
    return chances.reshape(vector.shape) if vector.dim() < 2 else chances.movedim(-1, 1)


def ranked(vector: Tensor, probabilities: Tensor, key: tuple[int, int]) -> Tensor:
    """Every element stays with its own probability, rounded to a multiple of 2^-16."""
    words = random_words(key, 0, vector.numel(), vector.device).reshape(vector.shape)
    return words < torch.round(probabilities * 2.0**16)
