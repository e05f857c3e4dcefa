"""Weighted averages. Wortsman et al. 2022, "Model soups", arXiv:2203.05482."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from agent_forge.forge.merging.coefficients import total


def linear(tensors: Sequence[Tensor], weights: Sequence[float], normalize: bool = True) -> Tensor:
    """sum_i w_i x_i, divided by sum_i w_i where `normalize`."""
    mixed = combination(tensors, weights)
    return mixed / total(weights) if normalize else mixed


def combination(tensors: Sequence[Tensor], coefficients: Sequence[float]) -> Tensor:
    """sum_i c_i x_i, from first to last."""
    mixed = tensors[0] * coefficients[0]
    for tensor, coefficient in zip(tensors[1:], coefficients[1:], strict=True):
        mixed = mixed + tensor * coefficient
    return mixed


def passthrough(tensor: Tensor, scale: float | None = None) -> Tensor:
    """The tensor of one model, optionally scaled: layers are stacked, not mixed (a "frankenmerge")."""
    return tensor if scale is None else tensor * scale
