"""The settings of a training run and of its optimiser, checked without torch: reading a pipeline file needs no more."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from agent_forge.config import build, option
from agent_forge.errors import ConfigError, UsageError


@dataclass(frozen=True)
class OptimizerSettings:
    """MuGrokfast: Muon for the matrices inside the network, AdamW for the rest, Grokfast's filter in front of both."""

    lr: float = option(0.02, at_least=0)  # of the matrices
    matrix_rule: Literal["muon", "adamw"] = "muon"  # "adamw" is the control
    momentum: float = option(0.95, at_least=0, at_most=1)
    nesterov: bool = True
    weight_decay: float = option(0.1, at_least=0)
    ns_steps: int = option(5, at_least=1)  # Newton-Schulz iterations
    adjust_lr: Literal["original", "match_rms_adamw"] = "original"  # see `muon.shape_factor`
    embedding_lr: float = option(0.004, at_least=0)
    scalar_lr: float = option(0.004, at_least=0)
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = option(1e-8, at_least=0)
    adam_weight_decay: float = option(0.0, at_least=0)
    grokfast: float = 0.0  # signed coefficient of the slow part of the gradient; 0 costs nothing
    grokfast_decay: float = option(0.98, at_least=0, at_most=1)


# Phase 1 trains from nothing; the later phases move a model that is already good, with smaller steps. The published
# presets (lr 1e-3 for Muon, three Newton-Schulz steps, a Grokfast coefficient of 0.05 to 2) are not used: see
# docs/training.md.
PRESETS: dict[str, dict[str, Any]] = {
    "cognate": {"lr": 0.02, "embedding_lr": 0.004, "scalar_lr": 0.004, "weight_decay": 0.1},
    "specialise": {"lr": 0.005, "embedding_lr": 0.001, "scalar_lr": 0.001, "weight_decay": 0.1},
    "quietstar": {"lr": 0.001, "embedding_lr": 1e-4, "scalar_lr": 1e-4, "weight_decay": 0.0},
    "bitnet": {"lr": 0.005, "embedding_lr": 0.001, "scalar_lr": 0.001, "weight_decay": 0.0},
    "curriculum": {"lr": 0.002, "embedding_lr": 3e-4, "scalar_lr": 3e-4, "weight_decay": 0.0},
    "baking": {"lr": 0.002, "embedding_lr": 2e-4, "scalar_lr": 2e-4, "weight_decay": 0.0},
    "experts": {"lr": 0.002, "embedding_lr": 2e-4, "scalar_lr": 2e-3, "weight_decay": 0.0},
    "compression": {"lr": 0.002, "embedding_lr": 2e-4, "scalar_lr": 2e-4, "weight_decay": 0.0},
    "reinforce": {"matrix_rule": "adamw", "lr": 1e-5, "embedding_lr": 1e-5, "scalar_lr": 1e-5, "weight_decay": 0.0},
}


def optimizer_settings(preset: str, **changes: Any) -> OptimizerSettings:
    """A phase's preset with some of its values changed. Raises UsageError for an unknown preset or a wrong value.

    >>> optimizer_settings("cognate", embedding_lr="1e-3").embedding_lr
    0.001
    """
    if preset not in PRESETS:
        raise UsageError(f"there is no optimizer preset {preset!r}", fix=f"Use one of {', '.join(PRESETS)}")
    return build(OptimizerSettings, {**PRESETS[preset], **changes}, "optimizer_changes")


@dataclass(frozen=True)
class LoraSettings:
    """What an adapter changes, and how far. As in PEFT, the product is scaled by `alpha` / `rank`."""

    rank: int = option(16, help="Rank of the adapter", at_least=1)
    alpha: float = option(32.0, help="Scale of the adapter, divided by its rank", above=0)
    targets: tuple[str, ...] = option((), help="Matrices that the adapter changes, e.g. q_proj,v_proj (default: all)")
    last: int = option(0, help="Adapt only so many of the last layers, which is faster (0: all)", at_least=0)


@dataclass(frozen=True)
class PolicySettings:
    """The objective of reinforcement learning: how far one update may move the policy."""

    clip_low: float = option(0.2, help="Ratio new/old is clipped below 1 minus this", at_least=0, at_most=1)
    clip_high: float = option(0.28, help="Ratio new/old is clipped above 1 plus this", at_least=0)
    kl: float = option(0.0, help="Weight of the KL divergence from the reference (0: none)", at_least=0)
    ratio_limit: float = option(
        10.0, help="Tokens whose probability has changed by more than this factor since sampling are left out", above=1
    )
    value_weight: float = option(0.1, help="Weight of the value head's squared error (PPO)", at_least=0)


def first_updates(steps: int) -> int:
    """Updates over which the rate rises where a fresh optimiser goes on from weights that have learnt something."""
    return min(8, steps // 4)


@dataclass(frozen=True)
class ReinforceSettings(PolicySettings):
    """A run of reinforcement learning. An iteration samples answers with the current policy and learns from them."""

    algorithm: Literal["grpo", "ppo"] = option("grpo", help="Advantages from groups (grpo) or from a value head (ppo)")
    iterations: int = option(100, help="Rounds of sampling and learning", at_least=1)
    prompts: int = option(8, help="Prompts per iteration", at_least=1)
    copies: int = option(8, help="Answers per prompt", at_least=1)
    max_tokens: int = option(64, help="Longest answer, in tokens", at_least=1)
    temperature: float = option(1.0, help="Sampling temperature", above=0)
    resample: int = option(2, help="Further draws to replace groups whose rewards are all equal (grpo)", at_least=0)
    normalise: bool = option(True, help="Divide advantages by their standard deviation")
    discount: float = option(1.0, help="Discount of later rewards", at_least=0, at_most=1)
    trace: float = option(0.95, help="Lambda of generalised advantage estimation (ppo)", at_least=0, at_most=1)
    epochs: int = option(1, help="Passes over the answers of an iteration", at_least=1)
    minibatches: int = option(1, help="Optimiser steps per pass", at_least=1)
    micro_rows: int = option(32, help="Rows at once; halved when memory runs out", at_least=1)
    learning_rate: float = option(1e-5, help="Learning rate", above=0)
    warmup: int | None = option(
        None, help="Updates over which the learning rate rises (default: 8, of short runs a quarter)", at_least=0
    )
    decay: float = option(
        0.0, help="Share of the updates, at the end, over which the learning rate falls to zero", at_least=0, at_most=1
    )
    clip: float = option(1.0, help="Largest gradient norm (0: no clipping)", at_least=0)
    update_kl: float = option(
        0.3, help="How far one update may move the policy: KL divergence in nats per answer (0: any)", at_least=0
    )
    gradient_checkpointing: bool = option(False, help="Less memory, a third more time in learning")
    precision: Literal["auto", "bf16", "float32"] = option("auto", help="auto is bf16 where it is faster")
    evaluate_every: int = option(10, help="Iterations between held-out evaluations (0: never)", at_least=0)
    patience: int = option(3, help="Evaluations without gain before stopping (0: never)", at_least=0)
    least_gain: float = option(0.0, help="Smallest gain that counts", at_least=0)
    window: int = option(5, help="Iterations over which the reward is averaged to notice a collapse", at_least=1)
    collapse: float = option(0.5, help="Share of its best reward that a policy may lose", above=0)
    kl_limit: float = option(2.0, help="Largest KL divergence from the reference, nats per token", above=0)
    kl_every: int = option(10, help="Iterations between measurements of a KL that is not in the loss", at_least=1)
    save_every: int = option(0, help="Iterations between checkpoints (0: only at the end)", at_least=0)
    keep: int = option(2, help="Checkpoints to keep", at_least=1)
    seed: int = option(0, help="Seed of the sampling")

    @property
    def updates(self) -> int:
        """Optimiser steps per iteration."""
        return self.epochs * self.minibatches

    def training(self) -> TrainSettings:
        """The settings of the training core under the loop: after the warm-up, a constant learning rate and `decay`.

        A fresh Adam moves every weight by the whole rate in its first step, whatever the gradient: from a policy that
        has learnt something, that step undid part of it (docs/experiments.md).
        """
        steps = self.iterations * self.updates
        rates = dict.fromkeys(("lr", "embedding_lr", "scalar_lr"), self.learning_rate)
        shared = ("micro_rows", "decay", "clip", "gradient_checkpointing", "precision", "keep", "seed")
        return TrainSettings(
            steps=steps,
            warmup=first_updates(steps) if self.warmup is None else self.warmup,
            batch_rows=self.prompts * self.copies,
            optimizer="reinforce",
            optimizer_changes=rates,
            schedule="wsd",
            floor=0.0,
            compile=False,  # every batch has another shape
            graph=False,
            divergence=math.inf,  # the level of a policy's loss means nothing; only NaN does
            **{name: getattr(self, name) for name in shared},
        )


@dataclass(frozen=True)
class TrainSettings:
    """The defaults train the 25 M model: 64 rows of 1,024 tokens per step."""

    steps: int = 1000
    batch_rows: int = 64  # rows per optimiser step, whatever the memory
    micro_rows: int = 32  # rows at once; halved when memory runs out, while the step stays the same
    optimizer: str = "cognate"  # one of PRESETS
    optimizer_changes: dict[str, Any] = field(default_factory=dict)  # fields of OptimizerSettings
    schedule: str = "wsd"
    warmup: int = 20
    decay: float = 0.5
    floor: float = 0.05
    clip: float = 1.0  # largest gradient norm; 0: no clipping
    ema: float = 0.0  # decay of the weight average; 0: none
    document_mask: bool = False  # packed documents do not see each other (no measurable gain, some cost)
    gradient_checkpointing: bool = False
    qk_clip: float = 0.0  # largest attention logit (100 in the paper); 0: off, as it must be with QK-norm
    qk_clip_every: int = 10
    precision: str = "auto"  # "bf16" (autocast over float32 weights), "float32"; auto: bf16 where it is faster
    compile: bool | None = None  # None: on a GPU
    graph: bool | None = None  # launch a micro-batch as one CUDA graph; None: where that is known to work
    log_every: int = 10
    evaluate_every: int = 0  # 0: only at the end
    patience: int = 0  # evaluations without gain before stopping; 0: never
    least_gain: float = 0.0
    save_every: int = 0  # 0: only at the end
    keep: int = 2
    divergence: float = 3.0  # nats by which the smoothed loss may rise above its lowest before the run stops
    seed: int = 0

    def __post_init__(self) -> None:
        faults = [
            f"{name} is {getattr(self, name)!r}, not {what}"
            for names, holds, what in _BOUNDS
            for name in names
            if not holds(getattr(self, name))
        ]
        if faults:
            raise ConfigError("; ".join(faults), where="TrainSettings")


_BOUNDS: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (("steps", "batch_rows", "micro_rows", "log_every", "keep", "qk_clip_every"), lambda v: v >= 1, "1 or more"),
    (("warmup", "evaluate_every", "save_every", "patience", "clip", "qk_clip"), lambda v: v >= 0, "0 or more"),
    (("decay", "floor"), lambda v: 0 <= v <= 1, "from 0 to 1"),
    (("ema",), lambda v: 0 <= v < 1, "from 0 to below 1"),
    (("divergence",), lambda v: v > 0, "above 0"),
    (("schedule",), lambda v: v in ("wsd", "cosine"), "wsd or cosine"),
    (("precision",), lambda v: v in ("auto", "bf16", "float32"), "auto, bf16 or float32"),
)
