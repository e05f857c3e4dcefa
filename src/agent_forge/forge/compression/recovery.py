"""Recovery: a short distillation from the original, with the weights kept on what their codecs can store.

The original weights stay as latents; the model computes with what their codec makes of them, and
the gradient goes through the rounding as if it were not there (straight-through). What is learned
is what the codec stores: the multiples on a grid, trits and scales, gains. At the end the latents
are encoded again.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agent_forge.bf16 import faster_products
from agent_forge.forge.compression.codecs import decode, grid, raw, ternary
from agent_forge.forge.compression.container import Encoded
from agent_forge.forge.compression.feedback import Cost
from agent_forge.forge.progress import Tell, silent, track
from agent_forge.forge.quantization.distillation import Distillation
from agent_forge.forge.training.packing import PackedRows

WARMUP = 0.05
INSIDE = 0.2  # of a step
HOLD, GAIN, MOST = 5, 30.0, 0.5  # every HOLD steps the price is changed: by 3 % for a thousandth of the bits


class Latent:
    """A weight in training: `parameters` are learned, `weight()` is what they stand for,
    `encoded()` what is stored."""

    def __init__(self, source: Tensor, encoded: Encoded) -> None:
        self.original = encoded
        self.parameters = [nn.Parameter(source.detach().float().clone())]

    def weight(self) -> Tensor:
        return self.parameters[0]

    def encoded(self, tighter: float = 0.0) -> Encoded:
        """`tighter` widens the dead zone, where there is one: fewer bits, more error."""
        return raw.encode(self.parameters[0], Cost())

    def reach(self, parameter: nn.Parameter) -> float:
        """The unit of the learning rate: how far a parameter must move to matter."""
        return float(parameter.detach().square().mean().sqrt())

    def rate_slope(self) -> Tensor | None:
        """How the bits of the first parameter grow with it; None where they do not change."""
        return None

    def bits(self) -> Tensor | None:
        """The entropy of its codes, about what the coder makes of them; None where it does not change."""
        return None


class GridLatent(Latent):
    def __init__(self, source: Tensor, encoded: Encoded) -> None:
        super().__init__(source, encoded)
        self.steps = grid.steps_of(encoded.parts, encoded.settings).to(source.device)
        relative = encoded.settings["step"] / float(source.float().square().mean().sqrt().clamp_min(1e-12))
        self.deadzone = min(0.25, grid.DEADZONE * relative)
        # towards the original, but well inside what rounds to the codes of error feedback: on the
        # edge, the noise of the first steps would undo its work
        start, reach = grid.decode(encoded).to(source.device), INSIDE * self.steps
        self.parameters[0].data = start + torch.clamp(source.float() - start, -reach, reach)

    def _codes(self, tighter: float = 0.0) -> Tensor:
        return grid.rounded(self.parameters[0] / self.steps, min(0.49, self.deadzone + tighter))

    def weight(self) -> Tensor:
        latent = self.parameters[0]
        return latent + (self._codes() * self.steps - latent).detach()

    def encoded(self, tighter: float = 0.0) -> Encoded:
        return grid.recoded(self.original, self._codes(tighter).detach().to(torch.int16).cpu().numpy())

    def reach(self, parameter: nn.Parameter) -> float:
        return float(self.steps.mean())

    def rate_slope(self) -> Tensor:
        """Of log2(|w| + step): a code's bits grow about with the logarithm of its size."""
        latent = self.parameters[0].detach()
        return torch.sign(latent) / (latent.abs() + self.steps) / math.log(2)

    @torch.no_grad()
    def bits(self) -> Tensor:
        codes = self._codes().flatten().long()
        counts = torch.bincount(codes - codes.min()).double()
        return -(counts * (counts / counts.sum()).clamp_min(1e-300).log2()).sum()


class TernaryLatent(Latent):
    def __init__(self, source: Tensor, encoded: Encoded) -> None:
        super().__init__(source, encoded)
        self.group = encoded.settings["group"]
        scale = torch.from_numpy(encoded.parts["scale"].astype(np.float32)).to(source.device)  # [R, groups]
        self.parameters.append(nn.Parameter(scale))

    def _scales(self) -> Tensor:
        return self.parameters[1].repeat_interleave(self.group, 1)

    def _codes(self) -> Tensor:
        return torch.round(self.parameters[0].detach() / self._scales().detach().clamp_min(1e-12)).clamp(-1, 1)

    def weight(self) -> Tensor:
        latent = self.parameters[0]
        return self._codes() * self._scales() + latent - latent.detach()

    def encoded(self, tighter: float = 0.0) -> Encoded:
        return ternary.from_codes(self._codes(), self.parameters[1].detach().half().float(), self.group)


class FixedLatent(Latent):
    """A weight whose codec cannot learn: it stays as it was encoded."""

    def __init__(self, source: Tensor, encoded: Encoded) -> None:
        self.original, self.parameters = encoded, []
        self.fixed = decode(encoded).to(source.device)

    def weight(self) -> Tensor:
        return self.fixed

    def encoded(self, tighter: float = 0.0) -> Encoded:
        return self.original


LATENTS: dict[str, type[Latent]] = {"grid": GridLatent, "ternary": TernaryLatent, "raw": Latent}


def recover(
    teacher: Any,
    model: Any,
    tensors: Mapping[str, Encoded],
    rows: PackedRows,
    steps: int,
    *,
    batch_rows: int = 4,
    lr: float = 0.01,
    price: float = 0.0,
    seed: int = 0,
    tell: Tell = silent,
) -> dict[str, Latent]:
    """Trains a copy of `model` in the form of `tensors` towards the teacher, which may be the model itself.

    The learning rate is in units of a grid's step, elsewhere of the root mean square. `price` (nats
    per token for a bit) keeps the codes from growing; it rises and falls on the way, so that they
    take as many bits as at the start.
    """
    student = copy.deepcopy(model)
    teacher.eval(), student.train()
    places = dict(student.named_parameters())
    latents = {
        name: LATENTS.get(encoded.codec, FixedLatent)(places[name].data, encoded) for name, encoded in tensors.items()
    }
    parameters = [parameter for latent in latents.values() for parameter in latent.parameters]
    if not parameters:
        return latents
    units = [(parameter, latent.reach(parameter)) for latent in latents.values() for parameter in latent.parameters]
    groups = [{"params": [parameter], "lr": lr * unit, "initial": lr * unit} for parameter, unit in units]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.99), weight_decay=0.0)
    objective = Distillation(teacher)
    device = next(model.parameters()).device
    size = _bits(latents) if price else 0.0
    for step in track(range(steps), "recover", tell):
        for group in optimizer.param_groups:
            group["lr"] = group["initial"] * _pace(step, steps)
        weights = {name: latent.weight() for name, latent in latents.items()}
        for name, weight in weights.items():
            places[name].data = weight.detach().to(places[name].dtype)
            places[name].grad = None
        batch = rows.batch(step, batch_rows, seed).to(device)
        with faster_products(student):
            loss = objective(student, batch)
        loss.backward()
        _carry(weights, places, latents, price)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if price and step % HOLD == HOLD - 1:
            price *= math.exp(min(MOST, max(-MOST, GAIN * (_bits(latents) / size - 1))))
        if step % max(1, steps // 20) == 0:
            tell(stage="recover", step=step, steps=steps, loss=float(loss.detach()))
    return latents


def _bits(latents: Mapping[str, Latent]) -> float:
    bits = [entropy for latent in latents.values() if (entropy := latent.bits()) is not None]
    return float(torch.stack(bits).sum()) if bits else 1.0


def _pace(step: int, steps: int) -> float:
    """Warm-up, then a cosine down to nothing: at the end the codes must have settled."""
    warm = max(1, round(WARMUP * steps))
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def _carry(
    weights: Mapping[str, Tensor], places: Mapping[str, nn.Parameter], latents: Mapping[str, Latent], price: float
) -> None:
    """Takes the gradients from the student's weights to the latents, and adds the price of bits."""
    learned = {name: weight for name, weight in weights.items() if weight.requires_grad}
    gradients = {name: places[name].grad for name in learned}
    slopes = {name: gradient.to(learned[name]) for name, gradient in gradients.items() if gradient is not None}
    torch.autograd.backward([learned[name] for name in slopes], list(slopes.values()))
    for latent in latents.values():
        slope = latent.rate_slope() if price else None
        if slope is not None and latent.parameters[0].grad is not None:
            latent.parameters[0].grad += price * slope
