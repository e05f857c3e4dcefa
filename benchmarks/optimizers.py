"""What does MuGrokfast gain over AdamW, and does the Grokfast filter help?

    PYTHONPATH=src python benchmarks/optimizers.py                     the toy: x * y mod 53, half of the table held out
    PYTHONPATH=src python benchmarks/optimizers.py --text FOLDER...    a language model on *.jsonl.gz files (on a GPU)
    PYTHONPATH=src python benchmarks/optimizers.py --quick             a check that both run

The toy is the task of the Grokfast paper, with the coefficients of the ablation in docs/results/cognate.md. Every
figure is a mean over seeds with its standard error; ratios are to AdamW at its best learning rate in the same run.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agent_forge.forge.models import CognateConfig, CognateForCausalLM
from agent_forge.forge.training import (
    HeldOut,
    PackedRows,
    TrainSettings,
    encode,
    evaluate,
    pack,
    train,
    train_tokenizer,
)
from agent_forge.forge.training.objective import losses_and_hits

ADAMW_RATES = (5e-4, 1e-3, 2e-3, 4e-3)
COEFFICIENTS = (-2 / 3, 0.0, 0.3, 2.0)


def adamw(rate: float) -> dict[str, Any]:
    return {"matrix_rule": "adamw", "lr": rate, "embedding_lr": 2 * rate, "scalar_lr": rate}


def variants() -> dict[str, dict[str, Any]]:
    controls = {f"AdamW {rate:g}": adamw(rate) for rate in ADAMW_RATES}
    return controls | {f"Muon, Grokfast {c:+.2f}": {"grokfast": c} for c in COEFFICIENTS}


def mean_and_error(values: list[float]) -> tuple[float, float]:
    error = float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
    return float(np.mean(values)), error


# ---------------------------------------------------------------------------------------------------------- the toy


def table(prime: int, seed: int) -> tuple[PackedRows, PackedRows]:
    """Rows "x y -> x * y mod prime" with the answer as the only target; half to train on, half held out."""
    x, y = (grid.flatten() for grid in np.meshgrid(np.arange(prime), np.arange(prime)))
    tokens = np.stack([np.full_like(x, prime), x, y, x * y % prime], axis=1).astype(np.int32)
    documents = np.tile(np.array([0, 1, 2, 2], dtype=np.int32), (len(x), 1))  # a target must share its token's document
    order = np.random.default_rng(seed).permutation(len(x))
    halves = np.array_split(order, 2)
    train_rows, held = (PackedRows(tokens[half], documents[half]) for half in halves)
    return train_rows, held


def toy(settings: dict[str, Any], seed: int, steps: int, prime: int) -> float:
    torch.manual_seed(seed)
    config = CognateConfig(
        vocab_size=prime + 1,
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=256,
        embedding_rank=None,
        memory_layers=(),
        tie_word_embeddings=False,
    )
    model = CognateForCausalLM(config)
    data, held = table(prime, seed)
    chosen = {"weight_decay": 0.005, "adam_weight_decay": 0.005, "embedding_lr": 1e-3, "scalar_lr": 1e-3, **settings}
    run = TrainSettings(steps=steps, batch_rows=256, micro_rows=256, warmup=10, floor=1.0, seed=seed, log_every=steps)
    train(model, data, TrainSettings(**{**vars(run), "optimizer_changes": chosen}), progress=None)
    batch = held.take(slice(None))
    _, hits = losses_and_hits(model, batch)
    return float(hits[:, -1].float().mean())


# ----------------------------------------------------------------------------------------------- the language model


def documents(folders: list[Path]) -> list[str]:
    files = [file for folder in folders for file in sorted(folder.glob("*.jsonl.gz"))]
    return [json.loads(line)["text"] for file in files for line in gzip.open(file, "rt", encoding="utf-8")]


def language_data(texts: list[str], vocabulary: int, length: int) -> tuple[PackedRows, HeldOut]:
    """Every fiftieth document is held out."""
    train_texts = [text for i, text in enumerate(texts) if i % 50]
    tokenizer = train_tokenizer(train_texts, vocabulary)
    rows = pack(encode(tokenizer, train_texts), length, tokenizer.bos_token_id)
    return rows, HeldOut.of(tokenizer, texts[::50], length)


def language(settings: dict[str, Any], seed: int, steps: int, data: PackedRows, held: HeldOut, config: Any) -> float:
    torch.manual_seed(seed)
    model = CognateForCausalLM(config).to("cuda" if torch.cuda.is_available() else "cpu")
    rows = 64 if torch.cuda.is_available() else 4
    run = TrainSettings(steps=steps, batch_rows=rows, warmup=10, seed=seed, optimizer_changes=settings)
    train(model, data, run, progress=None)
    return evaluate(model, held).bits_per_byte


def report(title: str, scores: dict[str, list[float]], best: Any) -> None:
    control = best(np.mean(v) for name, v in scores.items() if name.startswith("AdamW"))
    print(f"\n{title}\n{'optimiser':28}{'mean':>9}{'± s.e.':>9}{'x AdamW':>9}")
    for name, values in scores.items():
        mean, error = mean_and_error(values)
        print(f"{name:28}{mean:9.4f}{error:9.4f}{mean / control if control else math.nan:9.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--text", type=Path, nargs="*", default=[])
    options = parser.parse_args()
    seeds, steps = (1, 4) if options.quick else (options.seeds, options.steps)
    if not options.text or options.quick:
        prime = 11 if options.quick else 53
        scores = {name: [toy(s, seed, steps, prime) for seed in range(seeds)] for name, s in variants().items()}
        report(f"x * y mod {prime}: held-out accuracy after {steps} steps", scores, max)
    if options.text or options.quick:
        texts = documents(options.text) or [f"{i} and {i + 1} make {2 * i + 1}. " * 8 for i in range(60)]
        vocabulary, length = (320, 32) if options.quick else (32768, 1024)
        data, held = language_data(texts, vocabulary, length)
        small = {"hidden_size": 32, "num_attention_heads": 2, "embedding_rank": 16, "num_hidden_layers": 1}
        config = CognateConfig(vocab_size=vocabulary, memory_layers=(), **(small if options.quick else {}))
        scores = {
            name: [language(s, seed, steps, data, held, config) for seed in range(seeds)]
            for name, s in variants().items()
        }
        report(f"language model: held-out bits per byte after {steps} steps", scores, min)


if __name__ == "__main__":
    main()
