"""Training throughput, and which share of the hardware's matrix throughput it uses (MFU)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from agent_forge.forge.models import CognateModel


def training_flops(model: nn.Module, length: int) -> float:
    """Floating-point operations per training token: per multiplied weight 2 forward, 2 for its own gradient if it is
    trained, and 2 for its input's if anything before it is trained; plus the attention, likewise.

    An embedding that is only looked up does not count; a tied one counts once, as the head.
    """
    config: Any = getattr(model, "config", None)
    passes = getattr(config, "passes_per_loop", 1) * getattr(config, "loops", 1)
    looped = once = 0  # weights inside the layers are used in every pass, the embedding's projections and the head once
    behind = everything = 0  # weights in layers, with something trained before them and in all
    trained = False
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            weights, inside = module.weight.numel(), "layers." in name or ".h." in name
            cost = weights * (2 + 2 * trained + 2 * module.weight.requires_grad)
            looped, once = looped + cost * inside, once + cost * (not inside)
            behind, everything = behind + weights * inside * trained, everything + weights * inside
        trained = trained or any(parameter.requires_grad for parameter in module.parameters(recurse=False))
    window = min(length, getattr(config, "sliding_window", None) or length)
    seen = window - window * (window - 1) / (2 * length) if length else 0.0  # keys of an average query
    attention = 4 * getattr(config, "hidden_size", 0) * getattr(config, "num_hidden_layers", 0) * seen
    attention *= 1 + 2 * behind / everything if everything else 1
    return float(passes * (looped + attention) + once)


@lru_cache(maxsize=4)
def matrix_rate(device: str, in_bf16: bool) -> float:
    """Operations per second of a large matrix product, measured on this device: the ceiling for MFU."""
    size, repeats = (8192, 10) if device.startswith("cuda") else (512, 3)
    dtype = torch.bfloat16 if in_bf16 else torch.float32
    own = torch.Generator(device).manual_seed(0)  # training may draw random numbers: theirs must not depend on this
    a, b = (torch.randn(size, size, device=device, dtype=dtype, generator=own) for _ in range(2))
    for _ in range(2):
        a @ b
    wait(torch.device(device))
    start = time.perf_counter()
    for _ in range(repeats):
        a @ b
    wait(torch.device(device))
    return 2 * size**3 * repeats / (time.perf_counter() - start)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def compiled(model: nn.Module) -> Iterator[None]:
    """Compiles the model's layers inside the block; its embedding, masks and head stay as they are.

    Of a model from transformers one layer is compiled, and the others run the same code: many layers in one graph take
    long to compile.
    """
    body: Any = getattr(model, "base_model", model)
    layers = [] if isinstance(body, CognateModel) else _equal_layers(body)
    if isinstance(body, CognateModel):
        body.__dict__["refine"] = torch.compile(body.refine, dynamic=False)
    for layer in layers:
        layer.compile(dynamic=False)
    try:
        yield
    finally:
        for layer in layers:
            layer._compiled_call_impl = None
        body.__dict__.pop("refine", None)


def _equal_layers(body: nn.Module) -> list[nn.Module]:
    """The layers of one class that make up the model, or the model itself where there are none."""
    lists = [list(part) for part in body.modules() if isinstance(part, nn.ModuleList)]
    layers = max(lists, key=len, default=[])
    return layers if len(layers) > 1 and len({type(layer) for layer in layers}) == 1 else [body]


class Later:
    """A number on its way from the GPU. `value` waits for it alone, not for what was launched later."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()
        if tensor.is_cuda:
            self.tensor = torch.empty((), dtype=tensor.dtype, pin_memory=True).copy_(self.tensor, non_blocking=True)
            self.arrived = torch.cuda.Event()
            self.arrived.record()

    def value(self) -> float:
        if hasattr(self, "arrived"):
            self.arrived.synchronize()
        return float(self.tensor)


class Meter:
    """Tokens per second and MFU since the last reading."""

    def __init__(self, model: nn.Module, length: int, device: torch.device, in_bf16: bool) -> None:
        self.device, self.tokens, self.flops = device, 0, training_flops(model, length)
        self.ceiling = matrix_rate(str(device), in_bf16)
        self.started = time.perf_counter()

    def add(self, tokens: int) -> None:
        self.tokens += tokens

    def read(self) -> dict[str, float]:
        wait(self.device)
        now = time.perf_counter()
        rate = self.tokens / max(now - self.started, 1e-9)
        self.tokens, self.started = 0, now
        return {"tokens_per_s": rate, "mfu": rate * self.flops / self.ceiling}
