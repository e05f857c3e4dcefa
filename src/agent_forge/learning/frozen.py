"""What the layers below an adapter compute for the rows never changes: it is computed once, for all passes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from agent_forge.forge.adapters import adapted_layers
from agent_forge.forge.merging.layout import LAYER
from agent_forge.forge.training.objective import hidden_and_head
from agent_forge.forge.training.packing import Batch
from agent_forge.learning.sheets import PlanSheets

MOST_NUMBERS = 2**28  # that are kept: a gigabyte


class KnownStates(nn.Module):
    """In place of an embedding: "tokens" are places in states [N, D] that are known."""

    def __init__(self, states: Tensor) -> None:
        super().__init__()
        self.register_buffer("states", states, persistent=False)

    def forward(self, places: Tensor) -> Tensor:
        found: Tensor = self.states[places]  # type: ignore[index]
        return found


class Passed(nn.Module):
    """In place of a layer whose work is done."""

    def forward(self, states: Tensor, **_: Any) -> Tensor:
        return states


def layers_below(model: Any) -> int:
    """How many layers lie below the first one with an adapter; 0 where a model is more than a stack of layers (Llama is
    no more: others scale what they embed)."""
    if getattr(model.config, "model_type", None) != "llama":
        return 0
    numbers = [LAYER.fullmatch(f"{name}.weight") for name, _ in adapted_layers(model)]
    return min((int(match["number"]) for match in numbers if match), default=0)


@dataclass(frozen=True)
class KnownSheets(PlanSheets):
    """Sheets whose inputs are places in what is known of them."""

    def take(self, rows: Any) -> Batch:
        batch = super().take(rows)
        numbers = torch.arange(len(self))[rows]
        length = batch.inputs.shape[1]
        return replace(batch, inputs=numbers[:, None] * length + torch.arange(length))


@contextmanager
def below_computed_once(model: Any, data: PlanSheets) -> Iterator[PlanSheets]:
    """Inside the block the model is its layers from the first adapted one on, and the sheets to train it on hold what
    the layers below make of those of `data`. With none below, or too many rows to keep, both are as they were."""
    below = layers_below(model)
    if not below or len(data) * data.length * model.config.hidden_size > MOST_NUMBERS:
        yield data
        return
    base = model.base_model
    layers, embedding = base.layers, base.embed_tokens
    try:
        known = KnownStates(states_below(model, data, below))
        # the layers keep their numbers, by which checkpoints name their weights
        base.layers, base.embed_tokens = nn.ModuleList([*(Passed() for _ in range(below)), *layers[below:]]), known
        yield KnownSheets(data.tokens, data.documents, data.positions, data.learnt)
    finally:
        base.layers, base.embed_tokens = layers, embedding


@torch.no_grad()
def states_below(model: Any, data: PlanSheets, below: int) -> Tensor:
    """What goes into the layer of that number at every input of the sheets, [rows * length, D]."""
    base = model.base_model
    layers, norm, device = base.layers, base.norm, next(model.parameters()).device
    model.eval()
    try:
        base.layers, base.norm = layers[:below], nn.Identity()
        parts = [hidden_and_head(model, data.take(slice(row, row + 1)).to(device))[0] for row in range(len(data))]
    finally:
        base.layers, base.norm = layers, norm
    return torch.cat(parts).flatten(0, 1)
