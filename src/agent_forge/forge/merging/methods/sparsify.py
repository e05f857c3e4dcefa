"""Which elements of a task vector stay. Each function gives a mask of booleans; ties go to the lower position, so the
number that stays is exact, and the masks are those of a stable sort without sorting."""

from __future__ import annotations

import torch
from torch import Tensor

from agent_forge.forge.merging.chance import random_mask, random_words
from agent_forge.forge.merging.counts import band_ends, top_count


def largest(keys: Tensor, count: int) -> Tensor:
    """The `count` largest of a flat tensor."""
    if count <= 0 or count >= keys.numel():
        return torch.full_like(keys, count > 0, dtype=torch.bool)
    threshold = keys.kthvalue(keys.numel() - count + 1).values
    return _with_ties(keys > threshold, keys == threshold, count)


def smallest(keys: Tensor, count: int) -> Tensor:
    """The `count` smallest of a flat tensor."""
    if count <= 0 or count >= keys.numel():
        return torch.full_like(keys, count > 0, dtype=torch.bool)
    threshold = keys.kthvalue(count).values
    return _with_ties(keys < threshold, keys == threshold, count)


def _with_ties(mask: Tensor, ties: Tensor, count: int) -> Tensor:
    places = ties.nonzero()[: count - int(mask.sum()), 0]
    mask[places] = True
    return mask


def top(vector: Tensor, density: float) -> Tensor:
    """TIES' trim (arXiv:2306.01708, step 1): the share `density` of the largest |x|, at least one."""
    if density >= 1 or density <= 0 or not vector.numel():
        return torch.full_like(vector, density > 0, dtype=torch.bool)
    keys = vector.abs().reshape(-1)
    return largest(keys, top_count(keys.numel(), density)).reshape(vector.shape)


def band(vector: Tensor, density: float, gamma: float) -> Tensor:
    """Model Breadcrumbs (arXiv:2312.06795): without the share `gamma` of the largest |x|, then the share `density`."""
    if density >= 1:
        return torch.ones_like(vector, dtype=torch.bool)
    keys = vector.abs().reshape(-1)
    low, high = band_ends(keys.numel(), density, gamma)
    return (smallest(keys, high) & ~smallest(keys, low)).reshape(vector.shape)


def bernoulli(vector: Tensor, density: float, key: tuple[int, int]) -> Tensor:
    """DARE's mask (arXiv:2311.03099, equation 2): every element stays with probability `density`."""
    mask = torch.from_numpy(random_mask(key, vector.numel(), density))
    return mask.to(vector.device).reshape(vector.shape)


def keep_probabilities(vector: Tensor, density: float, epsilon: float) -> Tensor:
    """DELLA's MagPrune (arXiv:2406.11617, equation 3): from density - epsilon for the smallest |x| of a row to
    density + epsilon for the largest, linear in the rank."""
    rows = vector.abs().reshape(1, -1) if vector.dim() < 2 else vector.abs().movedim(1, -1)
    order = torch.sort(rows, dim=-1, stable=True).indices
    ranks = torch.empty_like(order).scatter_(
        -1, order, torch.arange(rows.shape[-1], device=rows.device).expand_as(order)
    )
    span = 2 * epsilon / max(rows.shape[-1] - 1, 1)
    found = (density - epsilon) + ranks.to(torch.float64) * span
    return found.reshape(vector.shape) if vector.dim() < 2 else found.movedim(-1, 1)


def ranked(vector: Tensor, probabilities: Tensor, key: tuple[int, int]) -> Tensor:
    """Every element stays with its own probability, rounded to a multiple of 2^-16."""
    words = random_words(key, 0, vector.numel(), vector.device).reshape(vector.shape)
    return words < torch.round(probabilities * 2.0**16)
