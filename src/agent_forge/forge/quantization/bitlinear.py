"""BitLinear: a linear layer that computes with few-level weights and int8 inputs, and learns through them.

The parameter `weight` stays in full precision (the shadow weight) and keeps its name, so optimiser,
checkpoints and tied weights work as before. The layer computes with

    w' = w + strength * (Q(w) - w)        x' = x + strength * (Q8(x) - x)

`strength` goes from 0 to 1 during training (the lambda of Hugging Face's 1.58-bit recipe); the
gradient passes through Q as if it were not there (straight-through), or, with learned scales, by
LSQ's rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent_forge.errors import UsageError
from agent_forge.forge.models.norm import rms_norm
from agent_forge.forge.quantization.levels import (
    MOST,
    LearnedLevels,
    fit_scales,
    level_codes,
    level_scales,
    round_inputs,
    spread,
    whole_numbers,
)
from agent_forge.forge.quantization.settings import INSIDE_BLOCKS, Format

SMALLEST_MATRIX = 16  # thinner ones are gates: they cost nothing and are worth their precision
SMALLEST_HALF = 6e-8  # float16's smallest number above 0


class BitLinear(nn.Linear):
    """A linear layer in training for few levels.

    >>> layer = BitLinear.of(nn.Linear(8, 4, bias=False), Format())
    >>> layer.strength.fill_(1.0).item(), len(layer.quantised().unique()) <= 3 * 4
    (1.0, True)
    """

    format: Format
    settled: bool  # whether `weight` already holds what will be stored
    strength: Tensor  # 0-d, so that changing it does not recompile the layer
    scales: nn.Parameter | None  # [S, G]

    @classmethod
    def of(cls, linear: nn.Linear, format: Format) -> BitLinear:
        """The layer with the same parameters; nothing changes until `strength` is above 0."""
        with torch.device("meta"):
            layer = cls(linear.in_features, linear.out_features, linear.bias is not None)
        layer.weight, layer.bias, layer.format = linear.weight, linear.bias, format
        layer.settled = False
        layer.register_buffer("strength", linear.weight.new_zeros(()), persistent=False)
        learned = nn.Parameter(fit_scales(linear.weight.detach(), format)) if format.learn_scales else None
        layer.register_parameter("scales", learned)
        return layer.train(linear.training)

    def forward(self, x: Tensor) -> Tensor:
        if self.format.sub_norm:
            x = torch.lerp(x, rms_norm(x), self.strength.to(x.dtype))
        if self.format.activations == "int8":
            x = x + self.strength.to(x.dtype) * (round_inputs(x) - x).detach()
        return F.linear(x, self.weight if self.settled else self.effective(), self.bias)

    def effective(self) -> Tensor:
        """What the layer multiplies with: between the shadow weight and its levels, differentiable."""
        if self.scales is None:
            return self.weight + self.strength * (self.quantised() - self.weight).detach()
        levels: Tensor = LearnedLevels.apply(self.weight, self.scales, self.format.levels, self.format.group)
        return torch.lerp(self.weight, levels, self.strength)

    @torch.no_grad()
    def quantised(self) -> Tensor:
        """The weight on its levels."""
        codes, scales = self.codes()
        return codes * spread(scales, self.in_features, self.format.group)

    @torch.no_grad()
    def codes(self) -> tuple[Tensor, Tensor]:
        """Codes [R, C] and scales [S, G]; the scales are what float16 stores."""
        scales = level_scales(self.weight, self.format) if self.scales is None else self.scales.detach()
        stored = scales.half().to(scales.dtype)
        stored = torch.where(stored == 0, SMALLEST_HALF, stored)
        return level_codes(self.weight, scales, self.format.levels, self.format.group), stored


class RoundedEmbedding(nn.Embedding):
    """An embedding whose rows are rounded to int4 or int8 as they are looked up."""

    format: Format
    settled: bool
    strength: Tensor

    def forward(self, tokens: Tensor) -> Tensor:
        rows = super().forward(tokens)
        return rows if self.settled else _rounded(rows, self.format, self.strength)


class RoundedHead(nn.Linear):
    """A head whose matrix is rounded to int4 or int8; its input is not."""

    format: Format
    settled: bool
    strength: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.effective(), self.bias)

    def effective(self) -> Tensor:
        return self.weight if self.settled else _rounded(self.weight, self.format, self.strength)


def _rounded(rows: Tensor, format: Format, strength: Tensor) -> Tensor:
    most = MOST[format.embedding]
    flat = whole_numbers(rows.detach().float().flatten(0, -2), most, format.word_group(rows.shape[-1])).view(rows.shape)
    return rows + strength * (flat - rows).detach()


def to_bitlinear(model: nn.Module, format: Format, layers: str = INSIDE_BLOCKS) -> list[str]:
    """Replaces every plain linear layer whose name matches the pattern `layers` by a BitLinear.

    Embedding and head are rounded as `format.embedding` says (a tied pair stays tied). Returns the
    names of the replaced linear layers. Raises UsageError if there are none.
    """
    names = linear_names(model, layers)
    for name in names:
        _put(model, name, BitLinear.of(model.get_submodule(name), format))  # type: ignore[arg-type]
    if format.embedding != "none":
        words: Any = model
        for module in (words.get_input_embeddings(), words.get_output_embeddings()):
            if type(module) in ROUNDED:
                # the class changes in place: whoever holds the module (accessors, hooks) goes on
                # holding it
                module.__class__ = ROUNDED[type(module)]
                module.format, module.settled = format, False
                module.register_buffer("strength", module.weight.new_zeros(()), persistent=False)
    return names


def linear_names(model: nn.Module, layers: str = INSIDE_BLOCKS) -> list[str]:
    """The plain linear layers that the pattern selects, without the head and thin ones. Raises
    UsageError if none."""
    try:
        pattern = re.compile(layers)
    except re.error as error:
        raise UsageError(f"{layers!r} is not a regular expression: {error}", where="layers") from error
    head: Any = getattr(model, "get_output_embeddings", lambda: None)()
    names = [
        name
        for name, module in model.named_modules()
        if type(module) is nn.Linear
        and pattern.search(f"{name}.")
        and module is not head
        and min(module.weight.shape) >= SMALLEST_MATRIX
    ]
    if not names:
        kinds = ", ".join(sorted({type(module).__name__ for module in model.modules() if hasattr(module, "weight")}))
        raise UsageError(f"no linear layer matches {layers!r}", fix=f"The model's weights are in: {kinds}")
    return names


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)


ROUNDED: dict[type[Any], type[nn.Module]] = {nn.Embedding: RoundedEmbedding, nn.Linear: RoundedHead}
Quantised = (BitLinear, RoundedEmbedding, RoundedHead)


def quantised_modules(model: nn.Module) -> Iterator[tuple[str, Any]]:
    return ((name, module) for name, module in model.named_modules() if isinstance(module, Quantised))


def set_strength(model: nn.Module, strength: float) -> None:
    """How far every layer computes with its levels: 0 not at all, 1 completely."""
    for _, module in quantised_modules(model):
        module.strength.fill_(strength)


def head_matrix(model: Any) -> Tensor:
    """The head as the model computes with it."""
    head = model.get_output_embeddings()
    return head.effective() if isinstance(head, RoundedHead) else head.weight


@torch.no_grad()
def stored_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights of the quantised modules exactly as they will be stored, by the parameter's name."""
    weights = {}
    for name, module in quantised_modules(model):
        if isinstance(module, BitLinear):
            weights[f"{name}.weight"] = module.quantised()
        else:
            most = MOST[module.format.embedding]
            group = module.format.word_group(module.weight.shape[1])
            weights[f"{name}.weight"] = whole_numbers(module.weight.float(), most, group)
    return weights


@contextmanager
def settled(model: nn.Module) -> Iterator[None]:
    """Inside the block the weights are those that will be stored: what is measured is what is written."""
    modules = dict(quantised_modules(model))
    shadows = {name: module.weight.detach().clone() for name, module in modules.items()}
    strengths = {name: module.strength.item() for name, module in modules.items()}
    with torch.no_grad():
        for name, weight in stored_weights(model).items():
            model.get_parameter(name).copy_(weight)
    for module in modules.values():
        module.settled = True
        module.strength.fill_(1.0)
    try:
        yield
    finally:
        with torch.no_grad():
            for name, module in modules.items():
                module.weight.copy_(shadows[name])
                module.settled = False
                module.strength.fill_(strengths[name])


def to_dense(model: nn.Module) -> nn.Module:
    """Back to plain layers, in place, with the stored weights: de-quantised, the shadow weights are gone.

    Inputs are no longer rounded. Layers with a sub-norm are refused, because a plain layer would
    compute something else.
    """
    stored = stored_weights(model)
    with torch.no_grad():
        for name, weight in stored.items():
            model.get_parameter(name).copy_(weight)
    for name, module in list(quantised_modules(model)):
        if isinstance(module, BitLinear):
            if module.format.sub_norm:
                raise UsageError("a layer with a sub-norm has no plain form", where=name, fix="Keep it packed")
            with torch.device("meta"):
                plain = nn.Linear(module.in_features, module.out_features, module.bias is not None)
            plain.weight, plain.bias = module.weight, module.bias
            _put(model, name, plain.train(module.training))
        else:
            module.__class__ = nn.Embedding if isinstance(module, RoundedEmbedding) else nn.Linear
            del module.strength, module.format, module.settled
    return model
