"""What a model costs and what its parts do, measured: for its card."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn

from agent_forge.forge.models.memory import NeuralMemory


@torch.no_grad()
def measure_model(model: nn.Module, input_ids: Tensor, repeats: int = 5) -> dict[str, Any]:
    """Size, speed, memory, depth and gates of a causal language model on `input_ids` [rows, length].

    What cannot be measured here is None: peak memory without a GPU, depth without halting, gates without a memory.

    - `latency_ms`: one row of `length` tokens through the model, median of `repeats` after a warm-up
    - `tokens_per_s`: all rows at once, likewise
    - `depth_mean`, `depth_shares`: loops that tokens used
    - `gate_mean`, `gate_std`, `gate_open`: the memory's gates (1 is neutral) and the share above 1
    """
    was_training, device = model.training, input_ids.device
    model.eval()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    one, all_rows = (_seconds(model, rows, repeats) for rows in (input_ids[:1], input_ids))
    found = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "length": input_ids.shape[1],
        "latency_ms": 1000 * one,
        "tokens_per_s": input_ids.numel() / all_rows,
        "peak_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        **_depth(model, input_ids),
        **_gates(model, input_ids),
    }
    model.train(was_training)
    return found


def _seconds(model: nn.Module, input_ids: Tensor, repeats: int) -> float:
    times = []
    for _ in range(repeats + 1):
        _wait(input_ids)
        start = time.perf_counter()
        model(input_ids, use_cache=False)
        _wait(input_ids)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def _wait(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


def _depth(model: nn.Module, input_ids: Tensor) -> dict[str, Any]:
    depth = getattr(model(input_ids, use_cache=False), "depth", None)
    if depth is None:
        return {"depth_mean": None, "depth_shares": None}
    loops: int = model.config.loops  # type: ignore[union-attr, assignment]
    shares = torch.bincount(depth.flatten(), minlength=loops + 1)[1:] / depth.numel()
    return {"depth_mean": depth.float().mean().item(), "depth_shares": shares.tolist()}


def _gates(model: nn.Module, input_ids: Tensor) -> dict[str, Any]:
    memories = [module for module in model.modules() if isinstance(module, NeuralMemory)]
    for memory in memories:
        memory.probing = True
    try:
        model(input_ids, use_cache=False)
        gates = [memory.probed.flatten() for memory in memories if memory.probed is not None]
    finally:
        for memory in memories:
            memory.probing, memory.probed = False, None
    if not gates:
        return {"gate_mean": None, "gate_std": None, "gate_open": None}
    every = torch.cat(gates)
    return {
        "gate_mean": every.mean().item(),
        "gate_std": every.std().item(),
        "gate_open": (every > 1).float().mean().item(),
    }
