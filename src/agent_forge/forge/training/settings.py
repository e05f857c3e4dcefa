"""The settings of a training run and of its optimiser, checked without torch: reading a pipeline file needs no more."""

from __future__ import annotations

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
    precision: str = "auto"  # "bf16" (autocast over float32 weights), "float32"; auto: bf16 on a GPU
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
