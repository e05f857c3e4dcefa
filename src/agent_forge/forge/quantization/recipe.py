"""How long, how fast and how gradually a model is trained onto its levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from agent_forge.config import option
from agent_forge.forge.training.settings import TrainSettings

if TYPE_CHECKING:
    from torch import nn

# Floating-point operations that a default run may take: minutes on 2 cores, or on one large GPU.
EFFORT = {"cpu": 1.5e13, "cuda": 3e17}
MOST_STEPS = {"cpu": 300, "cuda": 3000}
FEWEST_STEPS = 20


@dataclass(frozen=True)
class QATRecipe:
    """Quantisation-aware training by distillation.

    The strength (lambda) rises from 0 to 1 in `stages` equal steps over the first `rise` of the
    run; the learning rate warms up, stays, and falls linearly over the last half. There is no
    weight decay and no average of the weights: both pull shadow weights towards a threshold.
    """

    steps: int | None = option(None, help="Training steps (default: some minutes' worth)", at_least=1)
    batch_rows: int = option(16, help="Rows per step", at_least=1, flag="--batch", former="--rows")
    micro_rows: int = option(16, help="Rows per forward pass", at_least=1)
    length: int = option(128, help="Tokens per row", at_least=8)
    lr: float = option(0.005, help="Learning rate of the matrices (Muon)", above=0)
    embedding_lr: float = option(0.001, help="Learning rate of the embedding", above=0)
    scalar_lr: float = option(0.001, help="Learning rate of scales, gains and biases", above=0)
    optimizer: Literal["muon", "adamw"] = option("muon", help="Optimiser of the matrices")
    start: Literal["feedback", "fitted", "plain"] = option(
        "feedback", help="Where learned scales start: GPTQ's rounding, scales fitted to the inputs, or to the weights"
    )
    stages: int = option(8, help="Steps in which the strength rises", at_least=1, flag="--strength-stages")
    rise: float = option(
        0.25, help="Share of the run over which the strength rises (0: full strength at once)", at_least=0, at_most=1
    )
    warmup: float = option(0.05, help="Share of the run over which the learning rate rises", at_least=0, at_most=0.5)
    hard: float = option(0.0, help="Share of the plain cross-entropy in the loss", at_least=0, at_most=1)
    hidden: float = option(0.0, help="Weight of the distance between hidden states", at_least=0)
    temperature: float = option(1.0, help="Temperature of the distillation", above=0)
    evaluations: int = option(6, help="Evaluations on held-out text while training", at_least=0)
    patience: int = option(3, help="Evaluations without gain before stopping (0: never)", at_least=0)
    recoveries: int = option(1, help="Further rounds at full strength when the gate is missed", at_least=0)
    recovery: float = option(0.5, help="Length of such a round, as a share of the run", above=0)

    def steps_for(self, model: nn.Module, device: str) -> int:
        """The number of steps that was set, or as many as the budget of operations allows: 8 per
        weight and token (2 for the student and 4 back, 2 for the teacher)."""
        if self.steps is not None:
            return self.steps
        weights = sum(parameter.numel() for parameter in model.parameters())
        fit = EFFORT[device] / (8 * weights * self.batch_rows * self.length)
        return int(min(MOST_STEPS[device], max(FEWEST_STEPS, fit)))

    def strength_at(self, step: int, steps: int) -> float:
        """
        >>> recipe = QATRecipe(stages=4, rise=0.5)
        >>> [recipe.strength_at(step, 16) for step in (0, 1, 2, 4, 6, 8, 15)]
        [0.25, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
        """
        rising = self.rise * steps
        return min(1.0, (int(step / rising * self.stages) + 1) / self.stages) if rising else 1.0

    def settings(self, steps: int, seed: int, pace: float = 1.0, **changes: Any) -> TrainSettings:
        """The settings of the training loop; `pace` scales the learning rates."""
        rates = {"lr": self.lr * pace, "embedding_lr": self.embedding_lr * pace, "scalar_lr": self.scalar_lr * pace}
        fixed: dict[str, Any] = {
            "optimizer": "bitnet",
            "optimizer_changes": {**rates, "matrix_rule": self.optimizer, "weight_decay": 0.0},
            "batch_rows": self.batch_rows,
            "micro_rows": min(self.micro_rows, self.batch_rows),
            "warmup": max(1, round(self.warmup * steps)),
            "divergence": 50.0,  # the loss rises with the strength, by design
            "evaluate_every": max(1, steps // self.evaluations) if self.evaluations else 0,
            "patience": self.patience,
            "log_every": max(1, min(10, steps // 5)),
        }
        return TrainSettings(steps=steps, seed=seed, **{**fixed, **changes})
