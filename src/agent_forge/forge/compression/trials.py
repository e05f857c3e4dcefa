"""Trials: every tensor stored in several ways, and what each way does to the model's predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent_forge.errors import UsageError
from agent_forge.forge.compression.allocation import Option
from agent_forge.forge.compression.codecs import CODECS, decode, encode
from agent_forge.forge.compression.container import Encoded
from agent_forge.forge.compression.feedback import Cost, distortion
from agent_forge.forge.compression.sensitivity import matrices
from agent_forge.forge.training.packing import IGNORE, PackedRows

# what each codec is tried with, from fine to coarse
GRIDS: dict[str, list[dict[str, Any]]] = {
    "grid": [{"step": step} for step in (0.1, 0.18, 0.3, 0.42, 0.55, 0.7, 0.85, 1.0, 1.2, 1.45, 1.8, 2.3)],
    "integer": [{"bits": 8, "group": 128}, {"bits": 4, "group": 64}],
    "ternary": [{"group": 128}],
    "vptq": [{"width": 4, "entries": 256}],
    "seedlm": [{"width": 8, "rank": 3}, {"width": 12, "rank": 4}],
    "hyper": [{"bits": 8}, {"bits": 6}],
    "lowrank": [{"rank": 8, "step": 0.7}, {"rank": 8, "step": 1.15}],
    "rtn": [{"bits": 4, "group": 128}, {"bits": 3, "group": 128}],
}
SLOPES = (0.7, 1.5)  # of log loss against log distortion: 1 for small errors
USUAL = ("grid", "integer", "ternary")


@dataclass(frozen=True)
class Trial:
    """An option, what was encoded for it, and its distortion in the matrix's own metric."""

    option: Option
    encoded: Encoded
    distortion: float


class Reference:
    """The original's predictions on a few rows of calibration text, to compare with."""

    def __init__(self, model: Any, rows: PackedRows, tokens: int = 2048) -> None:
        device = next(model.parameters()).device
        count = max(1, min(len(rows), tokens // rows.length))
        self.batch = rows.take(slice(0, count)).to(device)
        self.real = self.batch.targets != IGNORE
        self.goal = self._predictions(model)
        self.likely = self.goal.exp()

    @torch.no_grad()
    def _predictions(self, model: Any) -> Tensor:
        logits = model(input_ids=self.batch.inputs, use_cache=False).logits
        return F.log_softmax(logits[self.real].float(), dim=-1)

    def divergence(self, model: Any) -> float:
        """KL(original || model) in nats per token."""
        with torch.no_grad():
            return float((self.likely * (self.goal - self._predictions(model))).sum(-1).mean().double())


def run_trials(
    model: nn.Module,
    costs: Mapping[str, Cost],
    reference: Reference,
    codecs: Sequence[str] = USUAL,
    tell: Callable[..., None] = lambda **_: None,
    measured: int = 0,
) -> dict[str, list[Trial]]:
    """Every matrix in every way, one at a time in the otherwise original model. Raises UsageError.

    With `measured` at 1 or more, only so many steps of the grid are measured for each matrix, and the loss of the other
    options is read off the line through them, log loss against log distortion (one: loss in proportion to distortion).
    """
    unknown = [name for name in codecs if name not in GRIDS]
    if unknown:
        raise UsageError(f"there is no codec {unknown[0]!r}", where="codecs", fix=f"the codecs are {', '.join(GRIDS)}")
    model.eval()
    weights = matrices(model)
    found: dict[str, list[Trial]] = {}
    for number, (name, weight) in enumerate(weights.items(), 1):
        tell(step=number, of=len(weights), tensor=name)
        found[name] = _trials(model, weight, costs.get(name, Cost()), reference, codecs, measured)
    return found


def _trials(
    model: nn.Module, weight: nn.Parameter, cost: Cost, reference: Reference, codecs: Sequence[str], measured: int
) -> list[Trial]:
    original, found = weight.data, []
    asked = [(codec, settings) for codec in codecs for settings in GRIDS[codec]]
    ways = [settings for codec, settings in asked if codec == "grid"]
    # inside the range: the finest steps' losses drown in noise, the coarsest say little about those in between
    spread = {round((place + 1) * (len(ways) - 1) / (measured + 1)) for place in range(measured)} if ways else set()
    try:
        for codec, settings in asked:
            encoded = encode(codec, original, cost, **settings)
            decoded = decode(encoded).to(original)
            share = distortion(original, decoded, cost)
            loss = math.nan
            if not spread or (codec == "grid" and ways.index(settings) in spread):
                weight.data = decoded
                loss = reference.divergence(model)
            found.append(Trial(Option(codec, encoded.size(), loss, settings), encoded, share))
    finally:
        weight.data = original
    return _inferred(found)


def _inferred(trials: list[Trial]) -> list[Trial]:
    """Losses that were not measured, from those that were: between and beyond them, loss = a * distortion^b."""
    known = sorted((t.distortion, t.option.loss) for t in trials if not math.isnan(t.option.loss))
    if len(known) == len(trials):
        return trials
    x, y = (np.log(np.maximum(column, 1e-12)) for column in np.array(known).T)
    slopes = np.clip(np.diff(y) / np.maximum(np.diff(x), 1e-9), *SLOPES) if len(known) > 1 else np.ones(1)

    def loss(trial: Trial) -> float:
        at = math.log(max(trial.distortion, 1e-12))
        segment = int(np.clip(np.searchsorted(x, at) - 1, 0, len(slopes) - 1))
        return math.exp(y[segment] + slopes[segment] * (at - x[segment]))

    return [t if not math.isnan(t.option.loss) else replace(t, option=replace(t.option, loss=loss(t))) for t in trials]


def plain_tensors(model: nn.Module) -> dict[str, Tensor]:
    """What no codec works on: gains, biases, small matrices."""
    chosen = matrices(model)
    return {name: weight.data for name, weight in model.named_parameters() if name not in chosen}


assert set(GRIDS) <= set(CODECS)
