"""What a phase measures: bits per byte document by document, and how a model behaves when it is used."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from agent_forge.context_length import context_length
from agent_forge.forge.checkpoint import Metric
from agent_forge.forge.gates import Gate, judge
from agent_forge.forge.models.memory import NeuralMemory
from agent_forge.forge.models.norm import rms_norm
from agent_forge.forge.training import TrainResult
from agent_forge.forge.training.evaluation import HeldOut, document_scores, ratio
from agent_forge.forge.training.packing import IGNORE

METRIC = "bits per byte"


def document_bits(model: Any, held_out: HeldOut, batch_rows: int = 16) -> np.ndarray:
    """The bits that the model needs for each held-out document."""
    nats, _, _ = document_scores(model, held_out, batch_rows)
    return nats / math.log(2)


def order_zero_bits(train: Iterable[str], held_out: Sequence[str]) -> np.ndarray:
    """The bits of each document under the byte frequencies of the training text: what knowing no context comes to."""
    counts = np.ones(256)  # one of each byte beforehand, so that none is impossible
    for text in train:
        counts += _byte_counts(text)
    cost = -np.log2(counts / counts.sum())
    return np.array([float(_byte_counts(text) @ cost) for text in held_out])


def _byte_counts(text: str) -> np.ndarray:
    return np.bincount(np.frombuffer(text.encode(), dtype=np.uint8), minlength=256)


def compare(before: np.ndarray, after: np.ndarray, sizes: Sequence[int]) -> Gate:
    """The gate on bits per byte. The standard error is that of the difference, document by document."""
    weights = np.array(sizes, dtype=float)
    _, error = ratio(after - before, weights)
    return judge(METRIC, ratio(before, weights)[0], ratio(after, weights)[0], error)


def text_metrics(bits: np.ndarray, sizes: Sequence[int]) -> dict[str, Metric]:
    value, error = ratio(bits, np.array(sizes, dtype=float))
    how = "held-out documents, each piece read from BOS"
    return {METRIC: Metric(value, None if math.isnan(error) else error, len(sizes), how)}


def training_metrics(result: TrainResult) -> dict[str, Metric]:
    """What the training loop measured on itself; on a CPU it knows no peak of its own."""
    found = {"training_tokens": Metric(float(result.tokens))}
    how = "median over the logged intervals of this process"
    if result.tokens_per_s is not None:
        found["training_tokens_per_s"] = Metric(result.tokens_per_s, how=how)
    if result.mfu is not None:
        found["training_mfu"] = Metric(result.mfu, how=how)
    if result.peak_memory is not None:
        found["training_peak_memory_bytes"] = Metric(float(result.peak_memory), how="allocated on the GPU")
    return found


@torch.no_grad()
def behaviour_metrics(model: Any, held_out: HeldOut, rows: int = 64) -> dict[str, Metric]:
    """How deep a model with halting goes, and how far the gate of a model with memory is open, on held-out text.

    The gate is 2 sigmoid(...): 1 lets attention through as it is, so its mean distance from 1 says whether the memory
    is used at all. Errors are over documents. Models without either have nothing to measure.
    """
    device = next(model.parameters()).device
    model.eval()
    documents = len(held_out.bytes_of)
    tokens = np.zeros(documents)
    sums: dict[str, Any] = {}
    chosen = np.unique(np.linspace(0, len(held_out.rows) - 1, rows).round().astype(int))  # from all the documents
    for start in range(0, len(chosen), 16):
        batch = held_out.rows.take(chosen[start : start + 16])
        with gates_of(model) as gates:
            depth = getattr(model.base_model(input_ids=batch.inputs.to(device), use_cache=False), "depth", None)
        figures = {} if depth is None else {"halting_mean_depth": depth.float()}
        if gates:
            stacked = torch.stack(gates)
            figures["memory_gate_mean"] = stacked.mean((0, -1))
            figures["memory_gate_distance_from_1"] = (stacked - 1).abs().mean((0, -1))
        real = batch.targets != IGNORE
        where = batch.documents[real].numpy()
        tokens += np.bincount(where, minlength=documents)
        for name, figure in figures.items():
            added = np.bincount(where, figure.cpu()[real].double().numpy(), documents)
            sums[name] = sums.get(name, 0.0) + added
    seen = tokens > 0
    pairs = {name: ratio(total[seen], tokens[seen]) for name, total in sums.items()}
    how = f"per token, {int(seen.sum())} held-out documents"
    return {
        name: Metric(value, None if math.isnan(error) else error, int(tokens.sum()), how)
        for name, (value, error) in pairs.items()
    }


@contextmanager
def gates_of(model: Any) -> Iterator[list[torch.Tensor]]:
    """Collects the gate [B, T, D] of every memory and pass of the forward calls in the block."""
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
    """Latency at a sequence of 512 (or what the model can read), tokens per second, and peak memory, measured on the
    device the model is on."""
    device = next(model.parameters()).device
    length = min(length, context_length(model.config) or length)
    tokens = torch.randint(0, model.config.vocab_size, (1, length), device=device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    model.eval()
    model(tokens)  # the first call also warms caches
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        model(tokens)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    middle = sorted(times)[len(times) // 2]
    how = f"one sequence of {length} tokens, median of {repeats}, {device.type}"
    memory = (
        torch.cuda.max_memory_allocated(device)
        if device.type == "cuda"
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    )
    return {
        f"latency_s_at_{length}": Metric(middle, n=repeats, how=how),
        f"forward_tokens_per_s_at_{length}": Metric(length / middle, n=repeats, how=how),
        "peak_memory_bytes": Metric(
            float(memory),
            how="allocated on the GPU, reading" if device.type == "cuda" else "of the whole process, training included",
        ),
    }
