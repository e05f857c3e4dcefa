"""What `compress` is asked for: the options of the command, the `config` of its phase, and the Python argument.

Nothing here needs torch: a command lists its options, and a pipeline file is checked, without it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from agent_forge.config import option
from agent_forge.errors import ConfigError
from agent_forge.forge.checkpoint import count_parameters
from agent_forge.forge.corpus import Source
from agent_forge.forge.evaluation.settings import EvaluateSettings

# The settings that each codec is tried with, from fine to coarse.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "grid": [{"step": step} for step in (0.1, 0.18, 0.3, 0.42, 0.55, 0.7, 0.85, 1.0, 1.2, 1.45, 1.8, 2.3)],
    "integer": [{"bits": 8, "group": 128}, {"bits": 4, "group": 64}],
    "ternary": [{"group": 128}],
    "rtn": [{"bits": 4, "group": 128}, {"bits": 3, "group": 128}],
}
USUAL = ("grid", "integer", "ternary")


BUNDLED = {"stories": Source("stories"), "problems": Source("problems")}
SIZED = "(default: by the size of the model)"


@dataclass(frozen=True)
class CompressSettings:
    """The goal (a budget, a limit on perplexity), the text, and the work, which follows from the size of the model
    where it is not set."""

    budget: int | None = option(
        None,
        help="Size limit for the whole folder, e.g. 6MB (default: as few bytes as pass)",
        above=0,
        flag="--max-size",
        unit="bytes",
    )
    budget_mb: float | None = option(None, help="The same in megabytes", above=0, hidden=True)
    max_increase: float = option(
        0.3,
        help="Limit for the growth of perplexity on held-out text, e.g. 5%",
        above=0,
        flag="--max-ppl-increase",
        unit="share",
    )
    sources: dict[str, Source] = option(BUNDLED, help="Text to calibrate and judge on, at most 6 MB of each source")
    held_out: float | None = option(
        None,
        help="Share of the documents kept for judging (default: 0.05, or less where the model was trained with less)",
        above=0,
        at_most=0.5,
    )
    codecs: list[str] = option(USUAL, help=f"Codecs to try, of {', '.join(OPTIONS)}")
    recovery_steps: int | None = option(
        None, help=f"Distillation steps per stage, 0 for none {SIZED}", at_least=0, flag="--steps", former="--recover"
    )
    recovery_lr: float = option(0.01, help="Learning rate of recovery, in units of a grid's step", above=0)
    rows: int | None = option(None, help=f"Rows to calibrate on {SIZED}", at_least=1, flag="--calibration-rows")
    gradient_rows: int | None = option(None, help=f"How many of those rows are read with gradients {SIZED}", at_least=1)
    judged: int = option(64, help="Held-out rows to evaluate on", at_least=1, hidden=True)
    questions: int = option(100, help="Multiple-choice questions made from the held-out text", at_least=0)
    trial_tokens: int | None = option(None, help=f"Tokens to try options on {SIZED}", at_least=16)
    measured: int | None = option(
        None,
        help=f"Options to measure per matrix; the rest are inferred, 0 measures all {SIZED}",
        at_least=0,
        flag="--trials",
    )
    tries: int = option(5, help="Sizes to try", at_least=1)
    batch_rows: int | None = option(None, help=f"Rows per batch {SIZED}", at_least=1, flag="--batch")
    length: int = option(256, help="Tokens per row, at most what the model can read", at_least=8)

    def __post_init__(self) -> None:
        for name in self.codecs:
            if name not in OPTIONS:
                fix = f"The codecs are {', '.join(OPTIONS)}"
                raise ConfigError(f"there is no codec {name!r}", where="codecs", fix=fix)
        if self.budget is not None and self.budget_mb is not None:
            raise ConfigError("the budget is set twice", where="budget_mb", fix="Set `budget` or `budget_mb`")
        if not self.sources:
            raise ConfigError("name at least one source of text", where="sources")

    @property
    def most_bytes(self) -> int | None:
        """The limit in bytes, on the folder with everything in it."""
        return self.budget if self.budget_mb is None else int(self.budget_mb * 1e6)

    def effort(self, source: Path) -> Effort:
        """The work on this model: what is set, and for the rest what its size and the device allow."""
        usual = usual_effort(source)
        stated = {field.name: getattr(self, field.name) for field in fields(usual)}
        return Effort(**{name: getattr(usual, name) if value is None else value for name, value in stated.items()})


@dataclass(frozen=True)
class FinalCompression(CompressSettings):
    """Compression as a phase: what it makes must also keep what the model could do."""

    evaluation: EvaluateSettings = option(EvaluateSettings(suite=()))
    least_kept: float = option(
        0.85,
        help="Smallest share of the accuracy above chance to keep, on the questions and on the suite (0: any)",
        at_least=0,
        at_most=1,
    )


@dataclass(frozen=True)
class Effort:
    """How much work goes into one model: the fields of CompressSettings that follow from its size."""

    recovery_steps: int = 100
    rows: int = 256
    gradient_rows: int = 48
    trial_tokens: int = 2048
    measured: int = 2
    batch_rows: int = 4


# What a machine without a GPU can do in well under an hour, by the number of weights: few options
# are measured for a large model, which has many matrices and takes long per token. Recovery helps
# where a hundred thousand tokens are many for the weights; with 25 M weights it took half of the
# time and brought nothing.
EFFORTS: tuple[tuple[float, Effort], ...] = (
    (2e6, Effort(measured=0)),
    (5e7, Effort(recovery_steps=0)),
    (2.5e8, Effort(measured=1, trial_tokens=512, rows=96, gradient_rows=16, recovery_steps=0)),
    (math.inf, Effort(measured=1, trial_tokens=256, rows=32, gradient_rows=4, recovery_steps=0)),
)
ON_A_GPU = Effort(measured=0, trial_tokens=4096, recovery_steps=600, batch_rows=32)  # 5 M tokens of recovery


def usual_effort(source: Path) -> Effort:
    """The work on a model of this size, on this machine."""
    import torch

    if torch.cuda.is_available():
        return ON_A_GPU
    weights = count_parameters(source)
    return next(effort for most, effort in EFFORTS if weights <= most)
