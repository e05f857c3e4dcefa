"""Which learning rates, batch size and number of steps suit the base of the `small` preset over its full run?

    AGENT_FORGE_DATA=… PYTHONPATH=src python benchmarks/cognate_schedule.py --tokens small.xz --prepare
    PYTHONPATH=src python benchmarks/cognate_schedule.py --tokens small.xz    on a GPU: a minute per arm
    PYTHONPATH=src python benchmarks/cognate_schedule.py --quick              anywhere: a check that it runs

Every arm trains the preset's model on the preset's mix. Prints bits per byte on a quarter of the held-out documents,
for choosing, and on the other three quarters, which say what the choice is worth.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import _token_file
import torch
from _token_file import TokenFile

from agent_forge.config import build
from agent_forge.forge.corpus import mixed, read_corpus
from agent_forge.forge.models import CognateConfig, CognateForCausalLM
from agent_forge.forge.phases import phase
from agent_forge.forge.pipeline import read_pipeline
from agent_forge.forge.training import PRESETS, HeldOut, TrainSettings, encode, evaluate, pack, train, train_tokenizer


@dataclass(frozen=True)
class Arm:
    """A change to the preset's training: factors on its rates, rows per step and steps; and settings by name."""

    rates: float = 1.0
    rows: float = 1.0
    steps: float = 1.0
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        factors = [f"{name} x {value:g}" for name, value in vars(self).items() if value != 1.0 and name != "settings"]
        return ", ".join([*factors, *(f"{name} {value}" for name, value in self.settings.items())]) or "preset"


ARMS = [
    Arm(),
    Arm(rates=2),
    Arm(rates=3),
    Arm(rows=0.5, steps=2),
    Arm(rates=2, rows=0.5, steps=2),
    Arm(rates=2, steps=1.67),
    Arm(rates=2, settings={"decay": 0.8}),
    Arm(rates=2, settings={"floor": 0.0}),
    Arm(rates=2, settings={"optimizer_changes": {"weight_decay": 0.3}}),
]


def prepare(file: Path, preset: str) -> None:
    config = base_of(preset)
    corpus = read_corpus(config.sources, config.held_out)
    tokenizer = train_tokenizer((text for texts in corpus.train.values() for text in texts), config.vocab_size)
    rows = {
        name: pack(encode(tokenizer, texts), config.length, tokenizer.bos_token_id, tokenizer.pad_token_id)
        for name, texts in corpus.train.items()
    }
    held_out = [text for texts in corpus.held_out.values() for text in texts]
    parts = {
        "chosen by": held_out[::4],
        "judged on": [text for number, text in enumerate(held_out) if number % 4],
    }
    judged = {name: HeldOut.of(tokenizer, texts, config.length) for name, texts in parts.items()}
    _token_file.write(file, TokenFile(rows, judged))


def base_of(preset: str) -> Any:
    return build(phase("cognate").config, read_pipeline(preset).phases["base"].config, "base")


def learn(arm: Arm, seed: int, file: Path, preset: str, steps: int) -> dict[str, Any]:
    tokens, config = _token_file.read(file), base_of(preset)
    training = {**config.training, **arm.settings}
    changes = {name: PRESETS["cognate"][name] * arm.rates for name in ("lr", "embedding_lr", "scalar_lr")}
    training["optimizer_changes"] = {**training.get("optimizer_changes", {}), **changes}
    training["batch_rows"] = max(1, round(training["batch_rows"] * arm.rows))
    training["steps"] = max(2, round((steps or training["steps"]) * arm.steps))
    settings = TrainSettings(
        **{**training, "seed": seed, "save_every": 0, "log_every": max(1, training["steps"] // 15)}
    )
    weights = {name: source.weight for name, source in config.sources.items()}
    available = sum(len(of) for of in tokens.rows.values())
    data = mixed(tokens.rows, weights, min(settings.steps * settings.batch_rows, 4 * available), seed)
    torch.manual_seed(seed)
    model = CognateForCausalLM(CognateConfig(**{**config.model, "vocab_size": config.vocab_size}))
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    result = train(model, data, settings, progress=None)
    row = {"arm": arm.name, "seed": seed, "steps": settings.steps, "rows": settings.batch_rows}
    row |= {name: evaluate(model, held).bits_per_byte for name, held in tokens.held_out.items()}
    row |= {"loss": sum(result.losses[-3:]) / len(result.losses[-3:]), "tokens_per_s": result.tokens_per_s}
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--tokens", type=Path)
    parser.add_argument("--prepare", action="store_true", help="Only write the tokens")
    parser.add_argument("--only", default="", help="Run the arms whose name matches this regular expression")
    parser.add_argument("--seeds", type=int, nargs="*", default=[42])
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    preset = "nano" if options.quick else "small"
    file = options.tokens or Path(tempfile.mkdtemp()) / "tokens.xz"
    if not file.exists():
        prepare(file, preset)
    if options.prepare:
        return
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    jobs = [(arm, seed) for seed in options.seeds for arm in ARMS if re.search(options.only, arm.name)]
    with ProcessPoolExecutor(options.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        steps = options.steps or (4 if options.quick else 0)
        running = [pool.submit(learn, arm, seed, file, preset, steps) for arm, seed in jobs]
        results = [job.result() for job in running]
    print(f"\n{'arm':50}{'steps':>7}{'seed':>6}{'chosen by':>11}{'judged on':>11}{'loss':>8}")
    for row in results:
        bits = "".join(f"{row[name]:11.4f}" for name in ("chosen by", "judged on"))
        print(f"{row['arm']:50}{row['steps']:7}{row['seed']:6}{bits}{row['loss']:8.3f}")


if __name__ == "__main__":
    main()
