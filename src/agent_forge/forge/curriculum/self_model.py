"""Self-modelling (2407.10188): an auxiliary loss that is small where a model's own states are easy to predict.

From the output x of the last block, with a constant, the output a of the middle block at the same token is predicted
linearly; the loss is the squared error relative to the mean square of a:

    loss = |x W - a|² / |a|²,   W = (Σ x'x + r I)⁻¹ Σ x'a

In the paper W is trained beside the network. Here it is solved, from sums over the tokens so far that fade with every
batch, so it is as good as a linear model can be from the first step on, and has no learning rate. The gradient goes to
both x and a: the model learns to be predictable, not only to predict. Shapes: N tokens, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from agent_forge.errors import HandoffError
from agent_forge.forge.training.packing import IGNORE, Batch

NAME = "self_model"  # of the module, while a model that has one is trained
FADE = 0.99  # per batch
RIDGE = 1e-3  # of the mean of the diagonal


class SelfModel(nn.Module):
    """The sums, as buffers of the model that is trained: they are saved and restored with its weights."""

    squares: Tensor  # [D + 1, D + 1]
    products: Tensor  # [D + 1, D]

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("squares", torch.zeros(width + 1, width + 1))
        self.register_buffer("products", torch.zeros(width + 1, width))

    @staticmethod
    def of(model: Any) -> SelfModel:
        """A new one. Raises HandoffError for a model without a middle."""
        if model.config.num_hidden_layers < 2:
            raise HandoffError("self_modelling needs a model of at least two blocks", fix="Set `self_modelling: 0`")
        return SelfModel(model.config.hidden_size).to(next(model.parameters()).device)

    def forward(self, last: Tensor, middle: Tensor) -> Tensor:
        """The relative error of predicting `middle` from `last`, both [N, D], which count among the tokens so far."""
        with torch.autocast(last.device.type, enabled=False):
            x, a = last.to(self.squares), middle.to(self.squares)
            x = torch.cat([x, x.new_ones(len(x), 1)], dim=1)
            with torch.no_grad():
                self.squares.mul_(FADE).addmm_(x.T, x)
                self.products.mul_(FADE).addmm_(x.T, a)
                ridge = RIDGE * self.squares.diagonal().mean() * torch.eye(len(self.squares)).to(x)
                solved = torch.linalg.solve(self.squares + ridge, self.products)
            return (x @ solved - a).square().mean() / a.detach().square().mean().clamp_min(1e-12)

    def error(self, batch: Batch, outputs: list[Tensor]) -> Tensor:
        """The loss at the targets of a batch, from the outputs of the model's blocks in the order of their calls."""
        blocks = [one for one in outputs if one.shape == (*batch.targets.shape, self.products.shape[1])]
        real = batch.targets != IGNORE
        error: Tensor = self(blocks[-1][real], blocks[(len(blocks) - 1) // 2][real])
        return error


@contextmanager
def beside(model: nn.Module, self_model: SelfModel | None) -> Iterator[None]:
    """Keeps the sums among the model's buffers for the block, in which it is trained."""
    if self_model is not None:
        model.add_module(NAME, self_model)
    try:
        yield
    finally:
        if self_model is not None:
            delattr(model, NAME)
