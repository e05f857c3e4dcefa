"""The forged planner on one GPU: how fast it trains, the training itself, and the shrinking (docs/results/forged-planner.md).

    python benchmarks/planner_gpu.py speed
    python benchmarks/planner_gpu.py train --weights DIR --data DIR --steps N --out DIR
    python benchmarks/planner_gpu.py shrink --teacher DIR --data DIR --steps N --out DIR
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

LENGTH = 1024


def make_sheets(job: tuple[str, int, int, str, int]) -> Any:
    """One process's share of the training sheets, packed."""
    data, seed, count, tokenizer_json, end = job
    from _planner_tests import held_out_fields, held_out_ids
    from tokenizers import Tokenizer

    from agent_forge.learning.mixture import Mixture
    from agent_forge.learning.sheets import encode_sheets, pack_sheets

    folder = Path(data)
    mixture = Mixture(folder, seed, held_out=held_out_ids(folder), held_out_fields=held_out_fields(folder))
    groups = list(itertools.islice(mixture.groups(), count))
    sheets = encode_sheets(groups, Tokenizer.from_str(tokenizer_json), LENGTH, end)
    return pack_sheets(sheets, LENGTH)


def all_sheets(data: Path, count: int, tokenizer_json: str, end: int, seed: int, workers: int) -> Any:
    import numpy as np

    from agent_forge.learning.sheets import PlanSheets

    jobs = [(str(data), seed * 1000 + number, count // workers, tokenizer_json, end) for number in range(workers)]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        parts = pool.map(make_sheets, jobs)
    arrays = [np.concatenate([getattr(part, name) for part in parts]) for name in ("tokens", "documents", "positions", "learnt")]
    return PlanSheets(*arrays)


def settings(steps: int, rows: int, micro: int, lr: float, **more: Any) -> Any:
    from agent_forge.forge.training import TrainSettings

    changes = {"matrix_rule": "adamw", "lr": lr, "embedding_lr": lr, "scalar_lr": lr, "weight_decay": 0.01}
    return TrainSettings(steps=steps, batch_rows=rows, micro_rows=micro, optimizer="specialise", optimizer_changes={**changes, **more.pop("changes", {})},
                         schedule="cosine", warmup=max(10, steps // 50), floor=0.03, log_every=20, **more)  # fmt: skip


def shape(layers: int = 30, words: int = 16384) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(vocab_size=words, hidden_size=576, intermediate_size=1536, num_hidden_layers=layers, num_attention_heads=9, num_key_value_heads=3, head_dim=64, max_position_embeddings=8192, rope_theta=100000.0, tie_word_embeddings=True)


def speed(options: argparse.Namespace) -> None:
    """Tokens per second of training and of distilling onto ternary weights, with random weights and made-up rows."""
    import numpy as np
    import torch
    from transformers import LlamaForCausalLM

    from agent_forge.forge.quantization import Distillation, to_bitlinear
    from agent_forge.forge.quantization.bitlinear import set_strength
    from agent_forge.forge.quantization.levels import Format
    from agent_forge.forge.training import train
    from agent_forge.learning.sheets import PlanSheets

    device = "cuda" if torch.cuda.is_available() else "cpu"
    rng = np.random.default_rng(0)
    n, length = (512, LENGTH) if device == "cuda" else (8, 64)
    tokens = rng.integers(0, 16000, (n, length + 1)).astype(np.int32)
    parts = np.minimum(np.arange(length + 1) * 8 // length, 7)
    documents = np.broadcast_to(parts, tokens.shape).astype(np.int32).copy()
    positions = np.broadcast_to(np.arange(length + 1) % 600, tokens.shape).astype(np.int16)
    data = PlanSheets(tokens, documents, positions, np.broadcast_to(np.arange(length + 1) % 4 == 0, tokens.shape).copy())
    for micro in options.micro:
        for kind in ("train", "distil"):
            model = LlamaForCausalLM(shape() if device == "cuda" else shape(2)).to(device)
            loss = None
            if kind == "distil":
                teacher = copy.deepcopy(model).to(torch.bfloat16 if device == "cuda" else torch.float32).eval()
                to_bitlinear(model, Format(embedding="int4"))
                set_strength(model, 1.0)
                loss = Distillation(teacher, hard=0.3)
            steps = options.steps or 40
            begun = time.perf_counter()
            stamps: list[tuple[int, float]] = []

            def note(record: dict[str, Any], stamps: list[tuple[int, float]] = stamps) -> None:
                stamps.append((record["step"], time.perf_counter()))

            train(model, data, settings(steps, 128, micro, 1e-4), loss=loss, on_record=note, progress=None)
            rate = (stamps[-1][0] - stamps[0][0]) * 128 * length / (stamps[-1][1] - stamps[0][1]) if len(stamps) > 1 else None
            peak = torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else None
            print(json.dumps({"kind": kind, "micro": micro, "tokens_per_s": rate, "seconds": time.perf_counter() - begun, "gb": peak}), flush=True)
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()


def prepare(options: argparse.Namespace) -> tuple[Any, str, int]:
    """The base model with the cut vocabulary: model, tokenizer.json, the token that ends an answer."""
    import torch
    from transformers import AutoModelForCausalLM

    from agent_forge.forge.pruning import cut_embeddings

    kept = json.loads((options.weights / "kept.json").read_text())
    words = (options.weights / "tokenizer.json").read_text()
    model = AutoModelForCausalLM.from_pretrained(options.weights / "model", dtype=torch.float32)
    if model.config.vocab_size != len(kept):
        cut_embeddings(model, kept)
    return model, words, kept.index(2)


def judge(model: Any, words: str, end: int, data: Path, per_set: int | None, out: Path | None = None) -> dict[str, Any]:
    import torch
    from _planner_tests import judged_rows, summary, write_plans
    from llguidance import LLTokenizer
    from tokenizers import Tokenizer

    begun = time.perf_counter()
    rows = judged_rows(data, per_set)
    vocabulary = LLTokenizer(words, eos_token=end)
    device = next(model.parameters()).device
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        writers = write_plans(model.eval(), Tokenizer.from_str(words), vocabulary, [each.row for each in rows], batch=192 if device.type == "cuda" else 8)
    figures = summary(rows, writers)
    if out is not None:
        with (out / "written.jsonl").open("w") as file:
            for each, writer in zip(rows, writers, strict=True):
                line = {"kind": each.kind, "id": each.row.id, "calls": writer.calls, "none": writer.none_probability, "confidences": [round(c, 3) for c in writer.confidences], **each.judge(writer.calls)}
                file.write(json.dumps(line) + "\n")
    print(json.dumps(figures), f"{time.perf_counter() - begun:.0f} s", flush=True)
    return figures


def train_planner(options: argparse.Namespace) -> None:
    import torch

    from agent_forge.forge.training import train

    device = "cuda" if torch.cuda.is_available() else "cpu"
    options.out.mkdir(parents=True, exist_ok=True)
    model, words, end = prepare(options)
    begun = time.perf_counter()
    data = all_sheets(options.data, options.sheets, words, end, options.seed, options.workers)
    print(f"{len(data):,} rows of {LENGTH}, {data.learnt.mean():.3f} learnt, {time.perf_counter() - begun:.0f} s", flush=True)
    train(model.to(device), data, settings(options.steps, options.rows, options.micro[0], options.lr, seed=options.seed), progress=sys.stdout)
    model.save_pretrained(options.out / "model")
    (options.out / "tokenizer.json").write_text(words)
    (options.out / "kept.json").write_text((options.weights / "kept.json").read_text())
    figures = judge(model, words, end, options.data, options.per_set, options.out)
    (options.out / "figures.json").write_text(json.dumps(figures, indent=1))


def shrink(options: argparse.Namespace) -> None:
    """Distils the teacher onto few levels and packs it."""
    import torch
    from transformers import AutoModelForCausalLM

    from agent_forge.forge.pruning import keep_layers, layer_influence
    from agent_forge.forge.quantization import Distillation, to_bitlinear, write_packed
    from agent_forge.forge.quantization.bitlinear import set_strength, settled
    from agent_forge.forge.quantization.calibration import input_moments, round_with_feedback
    from agent_forge.forge.quantization.levels import Format
    from agent_forge.forge.training import train
    from agent_forge.learning.sheets import PlanSheets

    device = "cuda" if torch.cuda.is_available() else "cpu"
    options.out.mkdir(parents=True, exist_ok=True)
    teacher = AutoModelForCausalLM.from_pretrained(options.teacher / "model", dtype=torch.float32).to(device)
    words = (options.teacher / "tokenizer.json").read_text()
    end = json.loads((options.teacher / "kept.json").read_text()).index(2)
    data = all_sheets(options.data, options.sheets, words, end, options.seed + 1, options.workers)
    student = copy.deepcopy(teacher)
    if options.layers:
        influence = layer_influence(teacher, data.take(slice(0, 16)).inputs.to(device))
        kept = sorted(sorted(range(len(influence)), key=lambda n: -influence[n])[: options.layers])
        print("kept layers", kept, flush=True)
        keep_layers(student, kept)
    dense = copy.deepcopy(student)
    names = to_bitlinear(student, Format(levels=options.levels, embedding="int4"))
    few = PlanSheets(*(getattr(data, name)[:64] for name in ("tokens", "documents", "positions", "learnt")))
    round_with_feedback(student, input_moments(dense, few, names))
    del dense
    goal = copy.deepcopy(teacher).to(torch.bfloat16).eval() if device == "cuda" else teacher.eval()
    rise = max(1, options.steps // 5)

    def note(record: dict[str, Any]) -> None:
        if "loss" in record:
            set_strength(student, min(1.0, (record["step"] + 20) / rise))

    set_strength(student, min(1.0, 20 / rise))
    muon = {"matrix_rule": "muon", "lr": options.lr, "embedding_lr": options.lr / 5, "scalar_lr": options.lr / 5, "weight_decay": 0.0}
    chosen = settings(options.steps, options.rows, options.micro[0], options.lr, seed=options.seed, divergence=50.0, changes=muon)
    train(student, data, chosen, loss=Distillation(goal, hard=options.hard), on_record=note, progress=sys.stdout)
    set_strength(student, 1.0)
    with settled(student):
        figures = judge(student, words, end, options.data, options.per_set, options.out)
    size = write_packed(student, options.teacher / "model", options.out / "packed", options.layout)
    print("packed", size, flush=True)
    (options.out / "packed" / "tokenizer.json").write_text(words)
    (options.out / "figures.json").write_text(json.dumps({"bytes": size, **figures}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("speed", "train", "shrink", "judge"))
    for name in ("weights", "data", "out", "teacher"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--sheets", type=int, default=4000)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--micro", type=int, nargs="+", default=[64])
    parser.add_argument("--lr", type=float, default=4e-4)
    parser.add_argument("--hard", type=float, default=0.3)
    parser.add_argument("--levels", type=str, default="ternary")
    parser.add_argument("--layout", default="1.6bit")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--per-set", type=int)
    options = parser.parse_args()
    {"speed": speed, "train": train_planner, "shrink": shrink}[options.what](options)


if __name__ == "__main__":
    main()
