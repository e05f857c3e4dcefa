"""Trials: every matrix stored in several ways, and what each does to the model's predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent_forge.forge.compression.allocation import Option
from agent_forge.forge.compression.codecs import decode, encode_all
from agent_forge.forge.compression.container import Encoded
from agent_forge.forge.compression.feedback import Cost, distortion, weighted_square
from agent_forge.forge.compression.sensitivity import matrices
from agent_forge.forge.compression.settings import OPTIONS, USUAL
from agent_forge.forge.progress import Tell, reporter, silent
from agent_forge.forge.training.packing import IGNORE, PackedRows

SLOPES = (0.7, 1.5)  # of log loss against log distortion: 1 for small errors


@dataclass(frozen=True)
class Trial:
    """An option, its encoding, and its distortion in the matrix's own metric."""

    option: Option
    encoded: Encoded
    distortion: float


class ReferencePredictions:
    """The original's predictions on a few rows of text, to compare with."""

    def __init__(self, model: Any, rows: PackedRows, tokens: int = 2048) -> None:
        device = next(model.parameters()).device
        count = max(1, min(len(rows), tokens // rows.length))
        self.batch = rows.take(slice(0, count)).to(device)
        self.real = self.batch.targets != IGNORE
        self.goal = self._log_probabilities(model)
        self.likelihood = self.goal.exp()

    @torch.no_grad()
    def _log_probabilities(self, model: Any) -> Tensor:
        """[real targets, vocabulary]"""
        logits = model(input_ids=self.batch.inputs, use_cache=False).logits
        return F.log_softmax(logits[self.real].float(), dim=-1)

    def divergence(self, model: Any) -> float:
        """KL(original || model) in nats per token."""
        with torch.no_grad():
            return float((self.likelihood * (self.goal - self._log_probabilities(model))).sum(-1).mean().double())


def run_trials(
    model: nn.Module,
    costs: Mapping[str, Cost],
    reference: ReferencePredictions,
    codecs: Sequence[str] = USUAL,
    measured: int = 0,
    tell: Tell = silent,
) -> dict[str, list[Trial]]:
    """Every option of every matrix, one at a time in the otherwise original model.

    With `measured` at 1 or more, only so many steps of the grid are measured per matrix; the loss
    of the other options is read off the line through them, log loss against log distortion (one:
    loss in proportion to distortion).
    """
    options = [(codec, settings) for codec in codecs for settings in OPTIONS[codec]]
    chosen = _measured(options, measured)
    weights = matrices(model)
    trials: dict[str, list[Trial]] = {name: [] for name in weights}
    model.eval()
    # progress is counted in weights: the first matrix, of the vocabulary, may take as long as fifty others
    done, total = 0, len(options) * sum(weight.numel() for weight in weights.values())
    report = reporter("trials", total, tell)
    report(done)
    for name, codec in product(weights, codecs):
        weight, cost = weights[name], costs.get(name, Cost())
        original, whole = weight.data, weighted_square(weight.data.float(), cost)
        encodings = encode_all(codec, original, cost, OPTIONS[codec])
        for settings, encoded in zip(OPTIONS[codec], encodings, strict=True):
            report(done + weight.numel() // 2)  # the other half: coding it, and measuring its loss
            decoded = decode(encoded).to(original)
            loss = math.nan
            if len(trials[name]) in chosen:
                try:
                    weight.data = decoded
                    loss = reference.divergence(model)
                finally:
                    weight.data = original
            option = Option(codec, encoded.size(), loss, settings)
            trials[name].append(Trial(option, encoded, distortion(original, decoded, cost, whole)))
            done += weight.numel()
            report(done)
    return {name: _with_inferred(of) for name, of in trials.items()}


def _measured(options: Sequence[tuple[str, dict[str, Any]]], count: int) -> set[int]:
    """Which options are measured: `count` steps of the grid, or all where there is no grid or `count` is 0.

    They lie inside the range: the losses of the finest steps drown in noise, the coarsest say
    little about the others.
    """
    steps = [number for number, (codec, _) in enumerate(options) if codec == "grid"]
    if not steps or not count:
        return set(range(len(options)))
    return {steps[round((place + 1) * (len(steps) - 1) / (count + 1))] for place in range(count)}


def _with_inferred(trials: list[Trial]) -> list[Trial]:
    """Losses that were not measured, from those that were: between and beyond them, loss = a * distortion^b."""
    points = sorted((t.distortion, t.option.loss) for t in trials if not math.isnan(t.option.loss))
    if len(points) == len(trials):
        return trials
    x, y = (np.log(np.maximum(column, 1e-12)) for column in np.array(points).T)
    slopes = np.clip(np.diff(y) / np.maximum(np.diff(x), 1e-9), *SLOPES) if len(points) > 1 else np.ones(1)

    def loss(trial: Trial) -> float:
        at = math.log(max(trial.distortion, 1e-12))
        segment = int(np.clip(np.searchsorted(x, at) - 1, 0, len(slopes) - 1))
        return math.exp(y[segment] + slopes[segment] * (at - x[segment]))

    return [t if not math.isnan(t.option.loss) else replace(t, option=replace(t.option, loss=loss(t))) for t in trials]


def plain_tensors(model: nn.Module) -> dict[str, Tensor]:
    """What no codec works on: gains, biases, small matrices."""
    chosen = matrices(model)
    return {name: weight.data for name, weight in model.named_parameters() if name not in chosen}
