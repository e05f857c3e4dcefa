"""What a training run can be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agent_forge.errors import ConfigError


@dataclass(frozen=True)
class TrainSettings:
    """The defaults train the 25 M model: 64 rows of 1,024 tokens a step."""

    steps: int = 1000
    batch_rows: int = 64  # rows in one step of the optimiser, whatever the memory
    micro_rows: int = 32  # rows at once; halved when memory runs out, while the step stays the same
    optimizer: str = "cognate"  # a preset of MuGrokfast
    optimizer_changes: dict[str, Any] = field(default_factory=dict)
    schedule: str = "wsd"
    warmup: int = 20
    decay: float = 0.5
    floor: float = 0.05
    clip: float = 1.0  # largest norm of the gradient; 0: no clipping
    ema: float = 0.0  # decay of the average of the weights; 0: none
    document_mask: bool = False  # packed documents do not see each other (no measurable gain, some cost)
    gradient_checkpointing: bool = False
    qk_clip: float = 0.0  # largest attention logit (100 in the paper); 0: off, as it must be with QK-norm
    qk_clip_every: int = 10
    precision: str = "auto"  # "bf16" (autocast over float32 weights), "float32", or bf16 where the hardware has it
    compile: bool | None = None  # None: on a GPU
    graph: bool | None = None  # launch a micro-batch as one CUDA graph; None: where that is known to work
    log_every: int = 10
    evaluate_every: int = 0  # 0: only at the end
    patience: int = 0  # evaluations without gain before stopping; 0: never
    least_gain: float = 0.0
    save_every: int = 0  # 0: only at the end
    keep: int = 2
    divergence: float = 3.0  # nats the smoothed loss may rise above its lowest before the run is stopped
    seed: int = 0

    def __post_init__(self) -> None:
        wrong = [
            f"{name} is {getattr(self, name)!r}, not {what}"
            for names, holds, what in _BOUNDS
            for name in names
            if not holds(getattr(self, name))
        ]
        if wrong:
            raise ConfigError("; ".join(wrong), where="TrainSettings")


_BOUNDS: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (("steps", "batch_rows", "micro_rows", "log_every", "keep", "qk_clip_every"), lambda v: v >= 1, "1 or more"),
    (("warmup", "evaluate_every", "save_every", "patience", "clip", "qk_clip"), lambda v: v >= 0, "0 or more"),
    (("decay", "floor"), lambda v: 0 <= v <= 1, "from 0 to 1"),
    (("ema",), lambda v: 0 <= v < 1, "from 0 to below 1"),
    (("divergence",), lambda v: v > 0, "above 0"),
    (("schedule",), lambda v: v in ("wsd", "cosine"), "wsd or cosine"),
    (("precision",), lambda v: v in ("auto", "bf16", "float32"), "auto, bf16 or float32"),
)
