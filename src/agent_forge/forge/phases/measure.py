"""What a phase measures: bits per byte document by document, and how a model behaves when it is used."""

from __future__ import annotations

import math
import resource
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from agent_forge.forge.checkpoint import Metric
from agent_forge.forge.gates import Gate, judge
from agent_forge.forge.training.evaluation import HeldOut, ratio
from agent_forge.forge.training.objective import losses_and_hits
from agent_forge.forge.training.packing import IGNORE

METRIC = "bits per byte"


def document_bits(model: Any, held_out: HeldOut, batch_rows: int = 16) -> np.ndarray:
    """The bits that the model needs for each held-out document."""
    device = next(model.parameters()).device
    model.eval()
    bits = np.zeros(len(held_out.bytes_of))
    for start in range(0, len(held_out.rows), batch_rows):
        batch = held_out.rows.take(slice(start, start + batch_rows))
        losses, _ = losses_and_hits(model, batch.to(device))
        real = batch.targets != IGNORE
        bits += np.bincount(batch.documents[real].numpy(), losses.cpu()[real].double().numpy(), len(bits))
    return bits / math.log(2)


def order_zero_bits(train: Iterable[str], held_out: Sequence[str]) -> np.ndarray:
    """The bits of each document under the byte frequencies of the training text: what knowing no context comes to."""
    counts = Counter(byte for text in train for byte in text.encode())
    total = sum(counts.values()) + 256
    cost = [-math.log2((counts[byte] + 1) / total) for byte in range(256)]
    return np.array([sum(cost[byte] for byte in text.encode()) for text in held_out])


def compare(before: np.ndarray, after: np.ndarray, sizes: Sequence[int]) -> Gate:
    """The gate on bits per byte. The standard error is that of the difference, document by document."""
    weights = np.array(sizes, dtype=float)
    _, error = ratio(after - before, weights)
    return judge(METRIC, ratio(before, weights)[0], ratio(after, weights)[0], error)


def text_metrics(bits: np.ndarray, sizes: Sequence[int]) -> dict[str, Metric]:
    value, error = ratio(bits, np.array(sizes, dtype=float))
    how = "held-out documents, each piece read from BOS"
    return {METRIC: Metric(value, None if math.isnan(error) else error, len(sizes), how)}


@torch.no_grad()
def use_metrics(model: Any, length: int = 512, repeats: int = 5) -> dict[str, Metric]:
    """Latency at a sequence of 512, tokens per second, and peak memory, measured on the device the model is on."""
    device = next(model.parameters()).device
    tokens = torch.randint(0, model.config.vocab_size, (1, length), device=device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    model.eval()
    model(tokens)  # the first call also warms caches
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
        "peak_memory_bytes": Metric(float(memory), how=f"of the whole process, {device.type}"),
    }
