"""LoRA adapters (2106.09685) for any causal language model: put in, trained, merged, and kept as PEFT files.

    add_adapter(model, LoraSettings(rank=16))      # from here on only A and B learn
    train(model, data, settings)
    save_adapter(model, "adapter", base="models/mine")
    merge_adapter(model)                           # W + B A alpha / r, a plain model again

The files are those of PEFT (adapter_config.json, adapter_model.safetensors). `vectors apply` adds them to a model
folder without loading it; `load_adapter` puts them into a model in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agent_forge.errors import UsageError
from agent_forge.forge.merging.layout import LAYER
from agent_forge.forge.merging.vectors import write_adapter
from agent_forge.forge.training.settings import LoraSettings
from agent_forge.inference.adapter_file import PREFIX, Adapter


class LoraLinear(nn.Module):
    """x W^T + scale (x A^T) B^T with W fixed. B starts at zero, so that the model begins as it was.

    A and B are float32 even where W is not: steps of 1e-5 would be lost in the rounding of bf16."""

    def __init__(self, base: nn.Module, down: Tensor, up: Tensor, scale: float) -> None:
        super().__init__()
        self.base = base
        self.lora_A, self.lora_B = nn.Parameter(down.float()), nn.Parameter(up.float())  # [r, in], [out, r]
        self.scale, self.active = scale, True

    def forward(self, x: Tensor) -> Tensor:
        if not self.active:
            plain: Tensor = self.base(x)
            return plain
        low = nn.functional.linear(x, self.lora_A.to(x.dtype))
        low = nn.functional.linear(low, self.lora_B.to(x.dtype))
        output: Tensor = self.base(x) + self.scale * low
        return output


def matrix_shape(module: nn.Module) -> tuple[int, int] | None:
    """(out, in) of a layer that an adapter can change, else None. GPT-2's Conv1D stores its matrix as [in, out]."""
    if isinstance(module, nn.Linear):
        return module.out_features, module.in_features
    if is_transposed(module):
        weight: Any = module.weight
        return weight.shape[1], weight.shape[0]
    return None


def is_transposed(module: nn.Module) -> bool:
    return type(module).__name__ == "Conv1D" and isinstance(getattr(module, "nf", None), int)


def add_adapter(model: Any, settings: LoraSettings | None = None) -> list[str]:
    """Puts a new adapter into the layers that the settings name, by default all matrices inside the network (not the
    embedding, nor the head), and fixes every other weight. Returns the layers' names. Raises UsageError."""
    chosen = settings or LoraSettings()
    _refuse_second(model)
    layers: dict[str, tuple[Tensor, Tensor, float]] = {}
    for name, (rows, columns) in inner_matrices(model, chosen.targets, chosen.last).items():
        like: Any = model.get_submodule(name).weight
        down, up = like.new_empty(chosen.rank, columns), like.new_zeros(rows, chosen.rank)
        nn.init.kaiming_uniform_(down, a=5**0.5)  # as PEFT does
        layers[name] = (down, up, chosen.alpha / chosen.rank)
    _put_in(model, layers)
    return list(layers)


def inner_matrices(model: nn.Module, targets: Sequence[str] = (), last: int = 0) -> dict[str, tuple[int, int]]:
    """(out, in) of the matrices inside the network by name: all, those with the names of `targets`, and only those of
    the `last` so many layers. Raises UsageError if there are none."""
    first = 1 + max(map(_number, dict(model.named_modules())), default=-1) - last if last else 0
    shapes = {
        name: shape
        for name, module in model.named_modules()
        if (shape := matrix_shape(module)) is not None
        and _number(name) >= first
        and (not targets or name.rpartition(".")[2] in targets)
    }
    if not shapes:
        what = f"no layer is named {' or '.join(targets)}" if targets else "no layer has a matrix"
        raise UsageError(f"the adapter has nothing to change: {what}", where=type(model).__name__)
    return shapes


def _number(name: str) -> int:
    """The number of the layer that a module is in, or -1."""
    match = LAYER.fullmatch(f"{name}.weight")
    return int(match["number"]) if match else -1


def _refuse_second(model: nn.Module) -> None:
    if any(True for _ in adapted_layers(model)):
        raise UsageError("the model has an adapter already", fix="Merge it first: merge_adapter(model)")


def _put_in(model: nn.Module, layers: dict[str, tuple[Tensor, Tensor, float]]) -> None:
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for name, (down, up, scale) in layers.items():
        model.set_submodule(name, LoraLinear(model.get_submodule(name), down, up, scale))


def adapted_layers(model: nn.Module) -> Iterator[tuple[str, LoraLinear]]:
    """The layers with an adapter, by name."""
    for name, module in model.named_modules():
        if isinstance(module, LoraLinear):
            yield name, module


@contextmanager
def without_adapter(model: nn.Module) -> Iterator[None]:
    """Inside the block the model is its base: the reference of a policy that learns as an adapter."""
    layers = [layer for _, layer in adapted_layers(model)]
    for layer in layers:
        layer.active = False
    try:
        yield
    finally:
        for layer in layers:
            layer.active = True


@torch.no_grad()
def weaken_adapter(model: nn.Module, share: float) -> None:
    """Leaves so much of the adapter's change: W + share B A alpha / r, between the model before and after it."""
    for _, layer in adapted_layers(model):
        layer.lora_B.mul_(share)


@torch.no_grad()
def merge_adapter(model: nn.Module) -> None:
    """Adds the products to the matrices, in place: a plain model, all of whose weights learn again."""
    for name, layer in list(adapted_layers(model)):
        product = layer.scale * (layer.lora_B.double() @ layer.lora_A.double())
        weight: Tensor = layer.base.weight  # type: ignore[assignment]
        weight.copy_(weight.double() + (product.T if is_transposed(layer.base) else product))
        model.set_submodule(name, layer.base)
    for parameter in model.parameters():
        parameter.requires_grad_(True)


def save_adapter(model: Any, folder: str | os.PathLike[str], base: str | os.PathLike[str] = "") -> Path:
    """Writes the adapter as PEFT does; `base` is the model that the files name. Raises UsageError without one."""
    layers = dict(adapted_layers(model))
    if not layers:
        raise UsageError("the model has no adapter to save", fix="Add one: add_adapter(model)")
    first = next(iter(layers.values()))
    rank, transposed = len(first.lora_A), is_transposed(first.base)
    tensors = {}
    for name, layer in layers.items():
        for end, weight in (("A", layer.lora_A), ("B", layer.lora_B)):
            tensors[f"{PREFIX}{name}.lora_{end}.weight"] = weight.detach().float().cpu().contiguous().numpy()
    modules = sorted({name.rpartition(".")[2] for name in layers})
    numbers = sorted({_number(name) for name in layers})
    more = {"layers_to_transform": numbers} if numbers[0] else {}
    write_adapter(Path(folder), tensors, rank, str(base), modules, transposed, first.scale * rank, more)
    return Path(folder)


def load_adapter(model: Any, folder: str | os.PathLike[str]) -> list[str]:
    """Puts an adapter from PEFT's files into a model in memory; returns the layers' names. Raises CheckpointError for
    one that is damaged, does not fit, or holds more than products of two matrices."""
    _refuse_second(model)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if LAYER.fullmatch(name)}
    adapter = Adapter.open(Path(folder), shapes)
    layers = {}
    for tensor in adapter.modules:
        down, up, scale = adapter.parts(tensor)
        name = tensor.removesuffix(".weight")
        like: Tensor = model.get_submodule(name).weight
        layers[name] = (torch.from_numpy(down.copy()).to(like), torch.from_numpy(up.copy()).to(like), scale)
    _put_in(model, layers)
    return list(layers)
