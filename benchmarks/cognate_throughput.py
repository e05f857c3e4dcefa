"""How fast does Cognate train, compared with transformers' Llama in the same loop?

    PYTHONPATH=src python benchmarks/cognate_throughput.py            on a GPU: the 25 M model, 64 x 1024 tokens a step
    PYTHONPATH=src python benchmarks/cognate_throughput.py --quick    anywhere: tiny models, a check that it runs

Each row runs `agent_forge.forge.training.train` on random tokens; tokens/s is the median over the logged intervals.
The control has as many parameters and is measured with its own loss, compiled as a whole (what users of transformers
get), with our chunked cross-entropy, and with our vocabulary, for which it has to give up two layers. Everything runs
as a CUDA graph and launched kernel by kernel; ratios are to the faster control. `--again` repeats the rows to show how
much measurements vary; the fastest counts for every row.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agent_forge.forge.models import CognateConfig, CognateForCausalLM
from agent_forge.forge.training import Batch, PackedRows, TrainSettings, train
from agent_forge.forge.training.speed import matrix_rate

SAME_VOCABULARY = {"vocab_size": 32768, "num_hidden_layers": 4, "num_key_value_heads": 2, "intermediate_size": 1024}
TINY = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}


def cognate(quick: bool, **changes: Any) -> CognateForCausalLM:
    tiny = {**TINY, "num_attention_heads": 4, "embedding_rank": 32, "memory_head_dim": 16} if quick else {}
    return CognateForCausalLM(CognateConfig(**{**tiny, **changes}))


def llama(quick: bool, **changes: Any) -> LlamaForCausalLM:
    """25.8 M parameters: as wide and as deep as Cognate, with the vocabulary of 16k that then fits."""
    full = {
        "vocab_size": 16384,
        "hidden_size": 512,
        "intermediate_size": 1376,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    }
    tiny = {**TINY, "num_attention_heads": 4, "num_key_value_heads": 2} if quick else {}
    return LlamaForCausalLM(LlamaConfig(**{**full, **tiny, **changes}, tie_word_embeddings=True))


def own_loss(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """transformers' own loss: full logits, in float32."""
    loss: torch.Tensor = model(input_ids=batch.inputs, labels=batch.targets, shift_labels=batch.targets).loss
    return loss


def variants(quick: bool) -> dict[str, tuple[Callable[[], Any], Any, bool]]:
    """How each model is built, its loss (None: ours), and whether it runs as a CUDA graph."""
    same_vocabulary = {"vocab_size": 512, "num_hidden_layers": 1} if quick else SAME_VOCABULARY
    with_memory = {"memory_layers": (0,) if quick else (3,)}
    models: dict[str, tuple[Callable[[], Any], Any]] = {
        "cognate, memory on": (lambda: cognate(quick, **with_memory), None),
        "cognate, memory off": (lambda: cognate(quick), None),
        "llama 6 layers, 16k, own loss": (lambda: llama(quick), own_loss),
        "llama 6 layers, 16k, our loss": (lambda: llama(quick), None),
        "llama 4 layers, 32k, own loss": (lambda: llama(quick, **same_vocabulary), own_loss),
    }
    suffixes = {"": True, ", no graph": False}
    return {name + suffix: (*model, graph) for name, model in models.items() for suffix, graph in suffixes.items()}


def measure(build: Callable[[], Any], loss: Any, graph: bool, steps: int, rows: int, length: int) -> dict[str, Any]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = build().to(device)
    tokens = np.random.default_rng(0).integers(0, model.config.vocab_size, (4 * rows, length + 1)).astype(np.int32)
    data = PackedRows(tokens, np.zeros_like(tokens))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        if loss is not None:
            model.compile(dynamic=False)  # the whole model, its loss included
    micro = rows if loss is own_loss else TrainSettings.micro_rows  # each at its fastest; the control takes over 6 GB
    settings = TrainSettings(steps=steps, batch_rows=rows, micro_rows=micro, log_every=max(1, steps // 6), graph=graph)
    result = train(model, data, settings, loss=loss, progress=None)
    row = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens_per_s": result.tokens_per_s,
        "mfu": result.mfu,
        "peak_gb": None if result.peak_memory is None else result.peak_memory / 2**30,
        "reserved_gb": torch.cuda.max_memory_reserved() / 2**30 if device.type == "cuda" else None,
        "micro_rows": result.micro_rows,
        "loss": result.losses[-1],
    }
    del model
    gc.collect()
    torch._dynamo.reset()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--again", type=int, default=1)
    options = parser.parse_args()
    rows, length, steps = (4, 64, 6) if options.quick else (options.rows, 1024, options.steps or 60)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"matrix product: {matrix_rate(device, device == 'cuda') / 1e12:.1f} TFLOP/s on {device}")
    fastest: dict[str, dict[str, Any]] = {}
    for _ in range(options.again):
        for name, (build, loss, graph) in variants(options.quick).items():
            if re.search(options.only, name):
                row = measure(build, loss, graph, steps, rows, length)
                fastest[name] = max(fastest.get(name, row), row, key=lambda one: float(one["tokens_per_s"]))
                print(json.dumps({"variant": name, **row}), flush=True)
    controls = [row["tokens_per_s"] for name, row in fastest.items() if "6 layers, 16k, own loss" in name]
    print(f"\n{'model':40}{'M params':>9}{'tokens/s':>12}{'MFU':>7}{'peak GB':>9}{'reserved':>9}{'x control':>10}")
    for name, row in fastest.items():
        memory = "".join(
            f"{'-' if row[kind] is None else format(row[kind], '.2f'):>9}" for kind in ("peak_gb", "reserved_gb")
        )
        times = f"{row['tokens_per_s'] / max(controls):.2f}" if controls else "-"
        print(
            f"{name:40}{row['parameters'] / 1e6:9.2f}{row['tokens_per_s']:12,.0f}{row['mfu']:7.1%}{memory}{times:>10}"
        )
    if options.json:
        options.json.write_text(json.dumps(fastest, indent=1))


if __name__ == "__main__":
    main()
