"""Phases that make tiny checkpoints in no time, for tests of the machinery around phases.

`make` writes a model whose weights are a number; `add` adds to it. The gate measures the number itself: higher is
better. `fail: true` raises, `slow_s` waits (and can be killed).
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from agent_forge.config import as_dict
from agent_forge.forge.checkpoint import Card, Metric, finish, staging
from agent_forge.forge.contracts import Contract
from agent_forge.forge.gates import judge
from agent_forge.forge.phases import Phase, PhaseOutcome, Work


@dataclass(frozen=True)
class Toy:
    number: float = 1.0
    fail: bool = False
    slow_s: float = 0.0
    runs: str | None = None  # a file that counts how often the phase ran to its end
    pid: str | None = None  # a file for the number of the process
    dies_at: str | None = None  # a file; the process dies if there is none yet


def value_of(path: Path) -> float:
    return float(load_file(path / "model.safetensors")["w"][0])


def run(work: Work) -> PhaseOutcome:
    config: Toy = work.config
    if config.fail:
        raise ValueError("it was told to fail")
    if config.pid:
        Path(config.pid).write_text(str(os.getpid()))
    work.tell(step=1, loss=1.0)
    if config.dies_at and not Path(config.dies_at).exists():
        Path(config.dies_at).touch()
        os._exit(9)
    time.sleep(config.slow_s)
    before = sum(value_of(item.path) for item in work.inputs)
    after = before + config.number
    with staging(work.models) as folder:
        save_file({"w": np.full(4, after, dtype=np.float32)}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({"architectures": ["Toy"]}))
        card = Card(
            work.name,
            as_dict(config),
            inputs=tuple(item.digest for item in work.inputs),
            seed=work.seed,
            metrics={"number": Metric(after)},
        )
        made = finish(folder, card, work.models)
    if config.runs:
        with open(config.runs, "a") as file:
            file.write(f"{work.name}\n")
    return PhaseOutcome(made, judge("number", before, after, 0.1, lower_is_better=False))


def toy(takes: tuple[int, int]) -> Phase:
    return Phase("toy", 1, "A toy", Toy, Contract(checkpoints=takes), Contract(), run, lambda _: {})
