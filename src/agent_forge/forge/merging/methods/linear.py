"""Weighted averages. Wortsman et al. 2022, "Model soups", arXiv:2203.05482."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def linear(tensors: Sequence[Tensor], weights: Sequence[float], normalize: bool = True) -> Tensor:
    """sum_i w_i x_i, divided by sum_i w_i where `normalize`."""
    total = combination(tensors, weights)
    return total / sum(weights) if normalize else total


def combination(tensors: Sequence[Tensor], coefficients: Sequence[float]) -> Tensor:
    """sum_i c_i x_i, from the first to the last."""
    total = tensors[0] * coefficients[0]
    for tensor, coefficient in zip(tensors[1:], coefficients[1:], strict=True):
        total = total + tensor * coefficient
    return total


def passthrough(tensor: Tensor, scale: float | None = None) -> Tensor:
    """The tensor of one model, scaled or as it is: layers are stacked, not mixed (a "frankenmerge")."""
    return tensor if scale is None else tensor * scale
