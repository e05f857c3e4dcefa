"""Model Stock. Jang et al. 2024, arXiv:2403.19522, equation 2: t = N cos / (1 + (N - 1) cos)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agent_forge.forge.merging.coefficients import stock_coefficients
from agent_forge.forge.merging.exact import gram, row_sums
from agent_forge.forge.merging.methods.linear import combination


def model_stock(base: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """t mean(x_i) + (1 - t) x_0, with cos the mean cosine between the task vectors x_i - x_0."""
    products = gram([tensor - base for tensor in tensors])
    return combination([*tensors, base], stock_coefficients(products))


def model_stock_rows(base: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """Model Stock with a t per row ("filter-wise")."""
    shape = base.shape
    if base.dim() == 1:
        base, tensors = base[None], [tensor[None] for tensor in tensors]
    vectors = [tensor - base for tensor in tensors]
    norms = [row_sums(vector * vector).sqrt() for vector in vectors]
    count = len(vectors)
    cosines = [
        (row_sums(vectors[i] * vectors[j]) / (norms[i] * norms[j]).clamp(min=1e-6)).clamp(-1, 1)
        for i in range(count)
        for j in range(i + 1, count)
    ]
    cosine = combination(cosines, [1.0] * len(cosines)) / len(cosines)
    below = 1 + (count - 1) * cosine
    singular = below.abs() < 1e-6
    t = torch.where(singular, torch.zeros_like(below), count * cosine / torch.where(singular, 1.0, below))
    return (t * (combination(tensors, [1.0] * count) / count) + (1 - t) * base).reshape(shape)
