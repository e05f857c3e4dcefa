"""Which model and which optimiser learn most from the same tokens, operations or time?

    AGENT_FORGE_DATA=… PYTHONPATH=src python benchmarks/cognate_quality.py            a GPU: the 25 M models, minutes
    PYTHONPATH=src python benchmarks/cognate_quality.py --size nano --only 'AdamW|cognate$|steps'   a CPU: 0.65 M models
    PYTHONPATH=src python benchmarks/cognate_quality.py --quick                       anywhere: a check that it runs

Every arm runs `agent_forge.forge.training.train` on the rows of the `small` preset, over several seeds, and is judged
by bits per byte on held-out documents. The arms run in parallel processes, so this says nothing about speed: the
numbers of steps for "equal time" come from benchmarks/cognate_throughput.py, as --time-ratio. The controls are a Llama
of the same size and vocabulary, and AdamW at several learning rates.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import re
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agent_forge.config import build
from agent_forge.forge.corpus import mixed, read_corpus
from agent_forge.forge.models import CognateConfig, CognateForCausalLM
from agent_forge.forge.phases import phase
from agent_forge.forge.pipeline import read_pipeline
from agent_forge.forge.training import (
    PRESETS,
    HeldOut,
    PackedRows,
    TrainSettings,
    encode,
    evaluate,
    pack,
    train,
    train_tokenizer,
)
from agent_forge.forge.training.speed import training_flops

MEMORY, OFF = {"memory_layers": (3,)}, {"memory_layers": ()}  # the optimiser and loop arms have it on


@dataclass(frozen=True)
class Size:
    """The size of the models, the preset whose text they read, and how much of it."""

    preset: str
    length: int
    rows: int  # per step
    steps: int
    cognate: dict[str, Any]
    llama: dict[str, Any]


def _llama(width: int, layers: int, heads: int, inner: int) -> dict[str, Any]:
    return {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": 2,
            "intermediate_size": inner}  # fmt: skip


_TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
_TINY |= {"embedding_rank": 16, "memory_head_dim": 16, "memory_layers": (0,)}
SIZES = {
    "small": Size("small", 1024, 64, 160, MEMORY, _llama(512, 4, 8, 1024)),
    "nano": Size("nano", 128, 16, 150, {}, _llama(128, 2, 4, 256)),  # the preset's own shape
    "tiny": Size("nano", 64, 4, 4, _TINY, _llama(32, 2, 2, 64)),
}


@dataclass(frozen=True)
class Arm:
    """One variant. `steps` is a factor on the common number; "operations" makes the operations those of the default."""

    name: str
    model: dict[str, Any] = field(default_factory=dict)
    llama: bool = False
    optimizer: dict[str, Any] = field(default_factory=dict)
    steps: float | str = 1.0
    seeds: int = 3


def adamw(rate: float, embedding: float | None = None) -> dict[str, Any]:
    return {"matrix_rule": "adamw", "lr": rate, "embedding_lr": embedding or 2 * rate, "scalar_lr": rate}


def scaled(factor: float) -> dict[str, Any]:
    return {name: PRESETS["cognate"][name] * factor for name in ("lr", "embedding_lr", "scalar_lr")}


def arms(time_ratio: float, off_ratio: float) -> list[Arm]:
    """Steps in the time of one Cognate step: `time_ratio` of the Llama, `off_ratio` of Cognate without memory."""
    variants = [
        Arm("cognate"),
        Arm("cognate, memory off", OFF),
        Arm("cognate, memory off, equal time", OFF, steps=off_ratio),
        Arm("llama", llama=True),
        Arm("llama, equal operations", llama=True, steps="operations"),
        Arm("llama, equal time", llama=True, steps=time_ratio),
        Arm("cognate, 2 loops", {"loops": 2}),
        Arm("cognate, 2 loops, equal operations", {"loops": 2}, steps="operations"),
    ]
    variants += [
        Arm(f"cognate, AdamW {rate:g}", optimizer=adamw(rate)) for rate in (5e-4, 1e-3, 2.5e-4, 2e-3, 4e-3, 8e-3)
    ]
    variants += [Arm(f"cognate, AdamW {r:g}, words 0.004", optimizer=adamw(r, 0.004)) for r in (1e-3, 5e-4, 2e-3)]
    variants += [Arm(f"cognate, {share:g} of the steps", steps=share) for share in (0.5, 0.6, 0.7, 0.4, 0.8)]
    variants += [Arm(f"cognate, rates x {factor:g}", optimizer=scaled(factor)) for factor in (2, 0.5, 4)]
    variants += [Arm("cognate, rates x 2, 0.7 of the steps", optimizer=scaled(2), steps=0.7)]
    variants += [Arm(f"llama, rates x {factor:g}", llama=True, optimizer=scaled(factor)) for factor in (2, 4, 0.5)]
    return variants


def make(arm: Arm, words: int, size: Size) -> Any:
    common = {"vocab_size": words, "bos_token_id": 0, "eos_token_id": 1}
    if arm.llama:
        return LlamaForCausalLM(LlamaConfig(**size.llama, **common, tie_word_embeddings=True))
    shape = size.cognate or read_pipeline(size.preset).phases["base"].config["model"]
    return CognateForCausalLM(CognateConfig(**{**shape, **common, **arm.model}))


def steps_of(arm: Arm, words: int, steps: int, length: int, size: Size) -> int:
    if arm.steps != "operations":
        return max(2, round(steps * float(arm.steps)))
    with torch.device("meta"):
        default, mine = (training_flops(make(a, words, size), length) for a in (Arm("cognate"), arm))
    return max(2, round(steps * default / mine))


def learn_all(jobs: list[tuple[Arm, int]], file: str, steps: int, size: Size) -> list[dict[str, Any]]:
    """Arms of one shape, one after the other in one process, so that the model is compiled once."""
    torch._dynamo.config.recompile_limit = 64
    prepared = dict(np.load(file))
    results = []
    for arm, seed in jobs:
        results.append(learn(arm, seed, prepared, steps, size))
        print(json.dumps(results[-1]), flush=True)
    return results


def learn(arm: Arm, seed: int, prepared: dict[str, Any], steps: int, size: Size) -> dict[str, Any]:
    rows, words = PackedRows(prepared["tokens"], prepared["documents"]), int(prepared["words"])
    held_out = HeldOut(PackedRows(prepared["judged"], prepared["whose"]), tuple(prepared["sizes"].tolist()))
    steps = steps_of(arm, words, steps, rows.length, size)
    torch.manual_seed(seed)
    model = make(arm, words, size).to("cuda" if torch.cuda.is_available() else "cpu")
    settings = TrainSettings(
        steps=steps, batch_rows=size.rows, warmup=20, seed=seed, optimizer_changes=arm.optimizer, log_every=50
    )
    train(model, rows, settings, progress=None)
    scores = evaluate(model, held_out)
    return {
        "arm": arm.name, "seed": seed, "steps": steps, "parameters": sum(p.numel() for p in model.parameters()),
        "bits_per_byte": scores.bits_per_byte, "stderr": scores.bits_per_byte_stderr, "accuracy": scores.accuracy,
    }  # fmt: skip


def prepare(file: Path, steps: int, size: Size) -> None:
    """The rows of the preset's base, enough for the longest arm, and a fixed quarter of its held-out documents."""
    pipeline = read_pipeline(size.preset)
    config = build(phase("cognate").config, pipeline.phases["base"].config, "base")
    corpus = read_corpus(config.sources, config.held_out)
    tokenizer = train_tokenizer((text for texts in corpus.train.values() for text in texts), config.vocab_size)
    held_out = [text for texts in corpus.held_out.values() for text in texts][::4]
    length = size.length
    rows = {
        name: pack(encode(tokenizer, texts), length, tokenizer.bos_token_id) for name, texts in corpus.train.items()
    }
    weights = {name: source.weight for name, source in config.sources.items()}
    data = mixed(rows, weights, steps * size.rows * 2, 0)
    judged = HeldOut.of(tokenizer, held_out, length)
    np.savez(
        file, tokens=data.tokens, documents=data.documents, judged=judged.rows.tokens, whose=judged.rows.documents,
        sizes=np.array(judged.bytes_of), words=np.array(len(tokenizer)),
    )  # fmt: skip


def report(results: list[dict[str, Any]]) -> None:
    names = dict.fromkeys(f["arm"] for f in results)
    bits_of = {name: [f["bits_per_byte"] for f in results if f["arm"] == name] for name in names}
    control = min((np.mean(bits) for name, bits in bits_of.items() if "AdamW" in name), default=math.nan)
    print(f"\n{'arm':38}{'M params':>9}{'steps':>7}{'bits/byte':>11}{'± seeds':>9}{'accuracy':>10}{'x AdamW':>9}")
    for name, bits in bits_of.items():
        rows = [f for f in results if f["arm"] == name]
        error = f"{np.std(bits, ddof=1) / math.sqrt(len(bits)):.4f}" if len(bits) > 1 else "-"
        accuracy = np.mean([f["accuracy"] for f in rows])
        size, mean = rows[0]["parameters"] / 1e6, np.mean(bits)
        print(f"{name:38}{size:9.2f}{rows[0]['steps']:7}{mean:11.4f}{error:>9}{accuracy:10.1%}{mean / control:9.3f}")
    print(f"standard error over documents, mostly common to all arms: {results[0]['stderr']:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--size", choices=["small", "nano"], default="small")
    parser.add_argument("--steps", type=int, help="160 for small, 150 for nano")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="Run the arms whose name matches this regular expression")
    parser.add_argument("--time-ratio", type=float, default=1.13)
    parser.add_argument("--off-ratio", type=float, default=1.09)
    parser.add_argument("--rows", type=Path, help="File of prepared rows; written if it does not exist")
    parser.add_argument("--prepare", action="store_true", help="Only write the rows")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    size = SIZES["tiny" if options.quick else options.size]
    steps, workers = options.steps or size.steps, 1 if options.quick else options.workers
    rows = options.rows or Path(tempfile.mkdtemp()) / "rows.npz"
    if not rows.exists():
        prepare(rows, steps, size)
    if options.prepare:
        return
    todo = arms(options.time_ratio, options.off_ratio)
    if options.quick:
        todo = [replace(arm, seeds=1) for arm in todo]
    shapes: dict[str, list[tuple[Arm, int]]] = {}
    for seed in range(options.seeds):
        for arm in todo:
            if seed < arm.seeds and re.search(options.only, arm.name):
                shapes.setdefault(f"{arm.llama} {arm.model}", []).append((arm, seed))
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = [pool.submit(learn_all, jobs, str(rows), steps, size) for jobs in shapes.values()]
        results = [row for job in running for row in job.result()]
    report(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
