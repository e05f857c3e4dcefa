"""Phases that learn a number by gradient descent in milliseconds: their curves are real, and so are their gates."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from agent_forge.config import as_dict
from agent_forge.forge.checkpoint import Card, Metric, finish, staging
from agent_forge.forge.contracts import Contract
from agent_forge.forge.gates import judge
from agent_forge.forge.phases import Phase, PhaseOutcome, Work

TRUTH = 5.0


@dataclass(frozen=True)
class Toy:
    steps: int = 20
    target: float = TRUTH  # what it is taught
    pace_s: float = 0.0
    fail: bool = False


def value_of(path: Path) -> float:
    return float(load_file(path / "model.safetensors")["w"][0])


def run(work: Work) -> PhaseOutcome:
    config: Toy = work.config
    draws = random.Random(work.seed)
    values = [value_of(item.path) for item in work.inputs]
    number = before = sum(values) / len(values) if values else 0.0
    for step in range(1, config.steps + 1):
        gradient = 2 * (number - config.target) + draws.gauss(0, 0.3)
        number -= 0.06 * gradient
        loss = (number - config.target) ** 2
        work.tell(step=step, loss=loss, mean_loss=loss, gradient_norm=abs(gradient), lr=0.06)
        if step % 10 == 0:
            off = abs(number - TRUTH)
            work.tell(step=step, evaluation={"bits_per_byte": off, "bits_per_byte_stderr": 0.05, "documents": 12})
        if config.fail and step > 3:
            raise ValueError("it was told to fail")
        time.sleep(config.pace_s)
    error = Metric(abs(number - TRUTH), 0.05, 12, "distance from the truth on 12 held-out documents")
    with staging(work.models) as folder:
        save_file({"w": np.full(4, number, dtype=np.float32)}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({"architectures": ["Toy"]}))
        inputs = tuple(item.digest for item in work.inputs)
        card = Card(work.name, as_dict(config), inputs=inputs, seed=work.seed, metrics={"bits per byte": error})
        made = finish(folder, card, work.models)
    gate = judge("bits per byte", abs(before - TRUTH), abs(number - TRUTH), 0.05)
    control = abs(number - TRUTH) + 0.25  # a little worse
    return PhaseOutcome(made, replace(gate, control=control, note="of a <toy>"))


def toy(takes: tuple[int, int]) -> Phase:
    return Phase("toy", 1, "Learn a number", Toy, Contract(checkpoints=takes), Contract(), run, lambda _: {})
