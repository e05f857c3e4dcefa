"""A short training run. What it trains, and on what, is the same each time: its curves can be compared bit for bit."""

from __future__ import annotations

import numpy as np
import torch
from tests_forge_axes import tiny_config

from agent_forge.forge.models import CognateForCausalLM
from agent_forge.forge.training import Evaluation, HeldOut, PackedRows, evaluate, pack

SETTINGS = {"batch_rows": 4, "micro_rows": 2, "warmup": 2, "log_every": 1, "save_every": 3, "ema": 0.9, "seed": 7}


def data() -> PackedRows:
    rng = np.random.default_rng(0)
    return pack([_sentence(rng, int(rng.integers(5, 40))) for _ in range(60)], length=16, bos=0)


def held_out() -> HeldOut:
    rng = np.random.default_rng(1)
    documents = [_sentence(rng, 20) for _ in range(6)]
    return HeldOut(pack(documents, 16, bos=0, alone=True), tuple(len(d) for d in documents))


def _sentence(rng: np.random.Generator, size: int) -> np.ndarray:
    """Counting in steps of one to three: something to learn."""
    return (3 + rng.integers(0, 60) + np.cumsum(rng.integers(1, 4, size))) % 61 + 3


def judge(model: torch.nn.Module) -> Evaluation:
    return evaluate(model, held_out())


def model(**changes: object) -> CognateForCausalLM:
    torch.set_num_threads(1)
    torch.manual_seed(11)
    return CognateForCausalLM(tiny_config(**changes))
