"""Multinomial logistic regression: the one classifier of the phases, for what a text is and which expert it needs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def fit_logistic(
    states: Tensor, labels: Sequence[int], decay: float, *, balanced: bool = False
) -> tuple[Tensor, Tensor]:
    """Weight [K, D] and bias [K] with the least mean cross-entropy + decay |weight|², for states [N, D] in float64.

    Labels count from 0; `balanced` lets every label weigh the same, however often it occurs. The loss is convex, so
    that the result does not depend on a seed.

    >>> weight, bias = fit_logistic(torch.tensor([[1.0], [2.0], [-1.0], [-2.0]]).double(), [1, 1, 0, 0], 0.01)
    >>> (torch.tensor([[1.5], [-1.5]]).double() @ weight.T + bias).argmax(1).tolist()
    [1, 0]
    """
    y = torch.tensor(labels)
    counts = torch.bincount(y)
    shares = len(y) / (len(counts) * counts.clamp_min(1)).to(states) if balanced else None
    weight = states.new_zeros(len(counts), states.shape[1], requires_grad=True)
    bias = states.new_zeros(len(counts), requires_grad=True)
    descent = torch.optim.LBFGS(
        [weight, bias], max_iter=300, tolerance_grad=1e-10, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        descent.zero_grad()
        loss = nn.functional.cross_entropy(states @ weight.T + bias, y, shares) + decay * weight.square().sum()
        loss.backward()
        return loss

    descent.step(closure)
    return weight.detach(), bias.detach()
