"""Adaptive computation: after each loop every token has a trained probability of stopping.

    lambda_s = sigmoid(w . y_s + b);  p(s) = lambda_s prod_{j<s} (1 - lambda_j), the remainder on the last loop.

Training minimises sum_s p(s) CE_s - beta H(p) (plus a constant), so that the head has a gradient through every loop
(Ouro, 2510.25741). At inference a token stops at the first loop where the sum of p so far reaches the threshold.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from agent_forge.forge.models.config import CognateConfig
from agent_forge.forge.models.norm import widened


class HaltingHead(nn.Linear):
    """One logit per token. The bias starts at about -3: a head that starts at 0 halts early and never recovers."""

    def __init__(self, config: CognateConfig) -> None:
        super().__init__(config.hidden_size, 1)

    def forward(self, y_BTD: Tensor) -> Tensor:
        return widened(super().forward(y_BTD).squeeze(-1))  # BT


def halting_distribution(logits: list[Tensor]) -> Tensor:
    """[loops, ...] probabilities of stopping after each loop; they sum to 1, whatever the last logit is.

    >>> halting_distribution([torch.zeros(1), torch.zeros(1), torch.zeros(1)]).flatten().tolist()
    [0.5, 0.25, 0.25]
    """
    left = torch.ones_like(logits[0])
    parts = []
    for logit in logits[:-1]:
        stop = torch.sigmoid(logit)
        parts.append(left * stop)
        left = left * (1 - stop)
    return torch.stack([*parts, left])


def entropy(probabilities: Tensor) -> Tensor:
    """-sum p log p over the first dimension."""
    return -(probabilities * probabilities.clamp_min(1e-9).log()).sum(0)
