"""An exponential moving average of the weights, and a way to evaluate the model with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """average = decay * average + (1 - decay) * weights; the decay starts small, while there is little to average.

    >>> model = nn.Linear(2, 2)
    >>> average = WeightAverage(model, decay=0.999)
    >>> average.update(model)
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.updates = decay, 0
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.updates += 1
        decay = min(self.decay, self.updates / (self.updates + 10))
        live = {name: p.detach() for name, p in model.named_parameters()}
        torch._foreach_lerp_([self.weights[name] for name in live], list(live.values()), 1 - decay)

    def settle(self, model: nn.Module) -> None:
        """Gives the model the averaged weights for good."""
        _copy(self.weights, model)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Inside the block the model has the averaged weights; after it, its own again."""
        own = {name: p.detach().clone() for name, p in model.named_parameters()}
        _copy(self.weights, model)
        try:
            yield
        finally:
            _copy(own, model)


@torch.no_grad()
def _copy(weights: dict[str, Tensor], model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])
