"""Does fast training on a GPU compute the same as plain training?

    PYTHONPATH=src python benchmarks/gpu_checks.py

Compares the chunked loss with float64; then the same training as a CUDA graph and launched kernel by kernel, over the
axes of Cognate, compiled where that matters (two launched runs may differ, too, where kernels add in any order: the
last column); then a model that cannot be recorded, and a GPU with too little memory for the micro-batch. Exits 1 if a
loss differs by more than 0.001 nats and three times the last column.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from agent_forge.forge.models import CognateConfig, CognateForCausalLM
from agent_forge.forge.models.cross_entropy import chunked_cross_entropy
from agent_forge.forge.training import PackedRows, TrainResult, TrainSettings, train

SHAPE: dict[str, Any] = {"vocab_size": 4096, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3}
LENGTH, ROWS = 256, 24


def rows() -> PackedRows:
    """Numbers that count up in steps of one to three: something to learn; some positions are padding."""
    rng = np.random.default_rng(0)
    steps = rng.integers(1, 4, (200, LENGTH + 1)).cumsum(1) + rng.integers(0, 4000, (200, 1))
    documents = np.zeros_like(steps)
    documents[::3, 200:] = -1
    return PackedRows((steps % 4093 + 3).astype(np.int32), documents.astype(np.int32))


def cognate(**changes: Any) -> CognateForCausalLM:
    shape = {**SHAPE, "num_attention_heads": 4, "num_key_value_heads": 2, "embedding_rank": 128}
    return CognateForCausalLM(CognateConfig(**{**shape, **changes}))


class Looking(CognateForCausalLM):
    """Looks at its numbers while it computes, which cannot be recorded."""

    def forward(self, *args: Any, **named: Any) -> Any:
        output = super().forward(*args, **named)
        assert float(output.loss) >= 0
        return output


CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "memory off": (cognate, {"compile": True}),
    "memory on": (lambda: cognate(memory_layers=(1,)), {}),
    "memory with momentum": (lambda: cognate(memory_layers=(1,), memory_momentum=True), {}),
    "window below the length": (lambda: cognate(sliding_window=100), {"compile": True}),
    "two loops, halting": (lambda: cognate(loops=2, halting=True), {}),
    "latent steps, cycles": (lambda: cognate(loops=2, latent_steps=1, cycles=2), {}),
    "not compiled": (cognate, {}),
    "one micro-batch per step": (cognate, {"micro_rows": ROWS}),
    "uneven micro-batches": (cognate, {"micro_rows": 10}),
    "weight average, QK-clip": (cognate, {"ema": 0.9, "qk_clip": 100.0, "qk_clip_every": 2}),
    "float32": (cognate, {"precision": "float32"}),
}


def losses(build: Callable[[], Any], graph: bool | None, **settings: Any) -> tuple[list[float], TrainResult]:
    torch.manual_seed(0)
    common = {"steps": 24, "batch_rows": ROWS, "micro_rows": 8, "log_every": 1, "warmup": 4, "compile": False}
    result = train(build().cuda(), rows(), TrainSettings(**{**common, **settings}, graph=graph), progress=None)
    return result.losses, result


def loss_kernel(vocabulary: int) -> bool:
    """The chunked loss and both its gradients in bf16, compared with float64 on the same numbers."""
    generator = torch.Generator("cuda").manual_seed(vocabulary)
    hidden = torch.randn(5000, 64, device="cuda", generator=generator).bfloat16().requires_grad_()
    head = (torch.randn(vocabulary, 64, device="cuda", generator=generator) / 4).bfloat16().float().requires_grad_()
    targets = torch.randint(0, vocabulary, (5000,), device="cuda", generator=generator)
    targets[::7] = -100
    weights = torch.rand(5000, device="cuda", generator=generator)
    mine = chunked_cross_entropy(hidden, head, targets, weights)
    mine.backward()
    wide, top = hidden.detach().double().requires_grad_(), head.detach().double().requires_grad_()
    full = (F.cross_entropy(wide @ top.T, targets, reduction="none") * weights).sum()
    full.backward()
    pairs = ((mine.detach(), full.detach()), (hidden.grad, wide.grad), (head.grad, top.grad))
    errors = [float((a.double() - b).norm() / b.norm()) for a, b in pairs if a is not None and b is not None]
    figures = " ".join(f"{error:.1e}" for error in errors)
    print(f"vocabulary {vocabulary}, relative errors of the loss and its gradients: {figures}")
    return errors[0] < 1e-3 and max(errors) < 1e-2


def largest_difference(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def refused() -> bool:
    """A model that cannot be recorded trains without a graph, with a warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        unrecorded, _ = losses(lambda: Looking(cognate().config), True)
    plain, _ = losses(lambda: Looking(cognate().config), False)
    messages = [str(w.message) for w in caught if "CUDA graph" in str(w.message)]
    print(f"cannot be recorded: {messages}, {largest_difference(unrecorded, plain):.1e}")
    return len(messages) == 1 and largest_difference(unrecorded, plain) < 1e-3


def full() -> bool:
    """A GPU with too little memory for the micro-batch: it is halved, and the steps stay the same."""
    plain, _ = losses(cognate, False, micro_rows=2)
    room = (_peak(2) + _peak(ROWS)) / 2
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(room / torch.cuda.get_device_properties(0).total_memory)
    halved, result = losses(cognate, True, micro_rows=ROWS)
    torch.cuda.set_per_process_memory_fraction(1.0)
    difference = largest_difference(halved, plain)
    print(f"too little memory: micro-batch {ROWS} -> {result.micro_rows} rows, {difference:.1e}", flush=True)
    return result.micro_rows < ROWS and difference < 1e-3


def _peak(micro_rows: int) -> int:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    losses(cognate, False, micro_rows=micro_rows, steps=2)
    return torch.cuda.max_memory_reserved()


def compared(build: Callable[[], Any], settings: dict[str, Any]) -> tuple[float, float, float]:
    """The last loss, and the largest differences that the graph and a second run make. NaN: not recorded."""
    torch._dynamo.reset()
    launched, _ = losses(build, False, **settings)
    again, _ = losses(build, False, **settings)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="training without")
        try:
            replayed, _ = losses(build, None, **settings)
        except UserWarning as warning:
            print(warning)
            return launched[-1], math.nan, largest_difference(again, launched)
    return launched[-1], largest_difference(replayed, launched), largest_difference(again, launched)


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("no GPU: there is nothing to record")
    good = loss_kernel(4096) & loss_kernel(50257)
    print(f"{'':42}{'loss':>8}{'graph':>10}{'launched again':>16}")
    for name, (build, settings) in CASES.items():
        last, graph, again = compared(build, settings)
        good &= graph <= max(1e-3, 3 * again)
        print(f"{name:42}{last:8.4f}{graph:10.1e}{again:16.1e}", flush=True)
    good &= full()
    good &= refused()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
