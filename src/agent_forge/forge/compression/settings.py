"""What `compress` is asked for, and how much work may go into it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agent_forge.config import option
from agent_forge.errors import ConfigError
from agent_forge.forge.checkpoint import count_parameters

# The settings that each codec is tried with, from fine to coarse.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "grid": [{"step": step} for step in (0.1, 0.18, 0.3, 0.42, 0.55, 0.7, 0.85, 1.0, 1.2, 1.45, 1.8, 2.3)],
    "integer": [{"bits": 8, "group": 128}, {"bits": 4, "group": 64}],
    "ternary": [{"group": 128}],
    "rtn": [{"bits": 4, "group": 128}, {"bits": 3, "group": 128}],
}
USUAL = ("grid", "integer", "ternary")


@dataclass(frozen=True)
class CompressSettings:
    """The goal (a budget, a limit on perplexity) and the work: the defaults of command, phase and Python."""

    budget: int | None = option(None, help="Size limit for the whole folder, in bytes (none: as few as pass)", above=0)
    max_increase: float = option(0.3, help="Largest increase of perplexity on held-out text, as a share", above=0)
    codecs: list[str] = option(USUAL, help=f"Codecs to try, of {', '.join(OPTIONS)}")
    recovery_steps: int = option(100, help="Distillation steps per stage (0: no recovery)", at_least=0)
    recovery_lr: float = option(0.01, help="Learning rate of recovery, in units of a grid's step", above=0)
    rows: int = option(256, help="Rows to calibrate on", at_least=1)
    gradient_rows: int = option(48, help="How many of those rows are read with gradients", at_least=1)
    judged: int = option(64, help="Held-out rows to judge on", at_least=1)
    questions: int = option(100, help="Multiple-choice questions made from the held-out text", at_least=0)
    trial_tokens: int = option(2048, help="Tokens to measure every option on", at_least=16)
    measured: int = option(2, help="Options to measure per matrix; the rest are inferred (0 measures all)", at_least=0)
    tries: int = option(5, help="Sizes to try", at_least=1)
    batch_rows: int = option(4, help="Rows per batch", at_least=1)
    length: int = option(256, help="Tokens per row, at most what the model can read", at_least=8)

    def __post_init__(self) -> None:
        for name in self.codecs:
            if name not in OPTIONS:
                fix = f"The codecs are {', '.join(OPTIONS)}"
                raise ConfigError(f"there is no codec {name!r}", where="codecs", fix=fix)


# What a machine without a GPU can do in well under an hour, by the number of weights: few options
# are measured for a large model, which has many matrices and takes long per token. Recovery helps
# where a hundred thousand tokens are many for the weights; with 25 M weights it took half of the
# time and brought nothing.
WORK: tuple[tuple[float, dict[str, int]], ...] = (
    (2e6, {"measured": 0}),
    (5e7, {"recovery_steps": 0}),
    (2.5e8, {"measured": 1, "trial_tokens": 512, "rows": 96, "gradient_rows": 16, "recovery_steps": 0}),
    (math.inf, {"measured": 1, "trial_tokens": 256, "rows": 32, "gradient_rows": 4, "recovery_steps": 0}),
)


def usual_work(source: Path) -> dict[str, int]:
    """Settings that follow from the size of the model and from the device, for what the user does not set."""
    if torch.cuda.is_available():
        return {"measured": 0, "trial_tokens": 4096, "recovery_steps": 600, "batch_rows": 32}  # 5 M tokens of recovery
    weights = count_parameters(source)
    return next(work for most, work in WORK if weights <= most)
