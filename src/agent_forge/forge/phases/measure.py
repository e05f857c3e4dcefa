"""What the training phases measure and put into the card: bits per byte, behaviour, speed and memory."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from agent_forge.context_length import context_length
from agent_forge.forge.checkpoint import Metric
from agent_forge.forge.gates import GateResult, judge
from agent_forge.forge.models.memory import NeuralMemory
from agent_forge.forge.models.norm import rms_norm
from agent_forge.forge.training import TrainResult
from agent_forge.forge.training.evaluation import HeldOut, ratio
from agent_forge.forge.training.packing import IGNORE, encode
from agent_forge.platforms import peak_memory

METRIC = "bits per byte"


def order_zero_bits(train: Iterable[str], held_out: Sequence[str]) -> np.ndarray:
    """The bits of each held-out document under the byte frequencies of the training text: a model without context."""

    def byte_counts(text: str) -> np.ndarray:
        return np.bincount(np.frombuffer(text.encode(), dtype=np.uint8), minlength=256)

    counts = np.ones(256)  # Laplace smoothing: no byte is impossible
    for text in train:
        counts += byte_counts(text)
    cost = -np.log2(counts / counts.sum())
    return np.array([float(byte_counts(text) @ cost) for text in held_out])


def token_frequency_bits(tokenizer: Any, train: Iterable[np.ndarray], held_out: Sequence[str]) -> np.ndarray:
    """The same with the frequencies of the tokenizer's tokens, from the tokens of each training text: what a
    vocabulary gains without any context."""
    counts = np.ones(len(tokenizer))
    for ids in train:
        counts += np.bincount(ids, minlength=len(counts))
    cost = -np.log2(counts / counts.sum())
    return np.array([float(cost[ids].sum()) for ids in encode(tokenizer, held_out, eos=False)])


def compare(
    before: np.ndarray,
    after: np.ndarray,
    sizes: Sequence[int],
    least_gain: float = 0.0,
    control: np.ndarray | None = None,
) -> GateResult:
    """The gate on bits per byte, from the bits of each document. The standard error is of the paired difference.

    `least_gain` is a share of the figure before; a `control` has to be beaten by two standard errors too.
    """
    weights = np.array(sizes, dtype=float)
    value, later = ratio(before, weights)[0], ratio(after, weights)[0]
    gate = judge(METRIC, value, later, ratio(after - before, weights)[1], least_gain=least_gain * value)
    if control is None:
        return gate
    rival = ratio(control, weights)[0]
    against = judge(METRIC, rival, later, ratio(after - control, weights)[1])
    return replace(gate, control=rival, verdict=gate.verdict if against.passed else against.verdict)


def text_metrics(bits: np.ndarray, sizes: Sequence[int]) -> dict[str, Metric]:
    value, error = ratio(bits, np.array(sizes, dtype=float))
    how = "held-out documents, each piece read from BOS"
    return {METRIC: Metric(value, None if math.isnan(error) else error, len(sizes), how)}


def training_metrics(result: TrainResult) -> dict[str, Metric]:
    """What the training loop measured about itself. Only a GPU reports its peak memory."""
    metrics = {"training_tokens": Metric(float(result.tokens))}
    how = "median over the logged intervals of this process"
    if result.tokens_per_s is not None:
        metrics["training_tokens_per_s"] = Metric(result.tokens_per_s, how=how)
    if result.mfu is not None:
        metrics["training_mfu"] = Metric(result.mfu, how=how)
    if result.peak_memory is not None:
        metrics["training_peak_memory_bytes"] = Metric(float(result.peak_memory), how="allocated on the GPU")
    return metrics


@torch.no_grad()
def behaviour_metrics(model: Any, held_out: HeldOut, rows: int = 64) -> dict[str, Metric]:
    """The depth of a model with halting and the gate of a model with memory, on held-out text; {} for other models.

    The gate is 2 sigmoid(...): 1 passes attention through unchanged, so the mean distance from 1 says whether the
    memory is used at all. Errors are over documents.
    """
    device = next(model.parameters()).device
    model.eval()
    documents = len(held_out.bytes_of)
    tokens = np.zeros(documents)
    sums: dict[str, Any] = {}
    chosen = np.unique(np.linspace(0, len(held_out.rows) - 1, rows).round().astype(int))  # spread over all documents
    for start in range(0, len(chosen), 16):
        batch = held_out.rows.take(chosen[start : start + 16])
        with gates_of(model) as gates:
            depth = getattr(model.base_model(input_ids=batch.inputs.to(device), use_cache=False), "depth", None)
        figures = {} if depth is None else {"halting_mean_depth": depth.float()}
        if gates:
            stacked = torch.stack(gates)  # [memories x passes, B, T, D]
            figures["memory_gate_mean"] = stacked.mean((0, -1))
            figures["memory_gate_distance_from_1"] = (stacked - 1).abs().mean((0, -1))
        real = batch.targets != IGNORE
        where = batch.documents[real].numpy()
        tokens += np.bincount(where, minlength=documents)
        for name, figure in figures.items():  # figure: [B, T]
            added = np.bincount(where, figure.cpu()[real].double().numpy(), documents)
            sums[name] = sums.get(name, 0.0) + added
    seen = tokens > 0
    how = f"per token, {int(seen.sum())} held-out documents"
    metrics = {}
    for name, total in sums.items():
        value, error = ratio(total[seen], tokens[seen])
        metrics[name] = Metric(value, None if math.isnan(error) else error, int(tokens.sum()), how)
    return metrics


@contextmanager
def gates_of(model: Any) -> Iterator[list[torch.Tensor]]:
    """Collects the gate [B, T, D] of every memory and pass during the forward calls in the block."""
    gates: list[torch.Tensor] = []
    memories = [module for module in model.modules() if isinstance(module, NeuralMemory)]

    def collect(memory: NeuralMemory, read: torch.Tensor) -> None:
        gates.append(2 * torch.sigmoid(rms_norm(read, memory.eps).float() * memory.memory_gain))

    hooks = [
        memory.out_proj.register_forward_hook(lambda _, __, read, memory=memory: collect(memory, read))
        for memory in memories
    ]
    try:
        yield gates
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def use_metrics(model: Any, length: int = 512, repeats: int = 5) -> dict[str, Metric]:
    """Latency for 512 tokens (or the model's context), throughput and peak memory, on the model's device."""
    device = next(model.parameters()).device
    length = min(length, context_length(model.config) or length)
    tokens = torch.randint(0, model.config.vocab_size, (1, length), device=device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    model.eval()
    model(tokens)  # warm-up
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        model(tokens)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    latency = sorted(times)[len(times) // 2]
    how = f"one sequence of {length} tokens, median of {repeats}, {device.type}"
    memory: int | None
    if device.type == "cuda":
        memory, of = torch.cuda.max_memory_allocated(device), "allocated on the GPU, reading"
    else:
        memory, of = peak_memory(), "of the whole process, training included"
    figures = {
        f"latency_s_at_{length}": Metric(latency, n=repeats, how=how),
        f"forward_tokens_per_s_at_{length}": Metric(length / latency, n=repeats, how=how),
    }
    if memory is not None:
        figures["peak_memory_bytes"] = Metric(float(memory), how=of)
    return figures
