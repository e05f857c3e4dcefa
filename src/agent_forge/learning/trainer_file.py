"""The trainer configuration of the original, as it stands there:

    trainer:            {type, learning_rate, batch_size, epochs}
    trace_store:        {path, format}
    rewards:            {function, normalize, discount_factor}
    training:           {max_steps, checkpoint_every, eval_every, early_stopping}
    agents_to_optimize: [analyst_agent, …]

`agent-forge train --config FILE` trains these agents one after the other. Passes (`epochs`) are over recorded traces,
which sft and dpo learn from; ppo and grpo make their own attempts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from agent_forge.config import load, option
from agent_forge.learning.settings import AgentTraining

NAMED = "GenesisRewardFunction"  # the original's: here, each agent's reward profile


@dataclass(frozen=True)
class Trainer:
    """The algorithm, its rate and batch, and the most passes over the traces."""

    type: Literal["ppo", "grpo", "dpo", "sft"] = "ppo"
    learning_rate: float = option(1e-4, above=0)
    batch_size: int = option(32, at_least=1)
    epochs: int = option(10, at_least=1)


@dataclass(frozen=True)
class TraceStore:
    """Where traces are: a folder of files in that format. Reinforcement does not read it: it makes its own attempts."""

    path: str | None = None
    format: Literal["jsonl", "json", "parquet"] = "jsonl"


@dataclass(frozen=True)
class RewardRule:
    """The reward function; the original's name stands for each agent's own profile."""

    function: str = NAMED
    normalize: bool = True
    discount_factor: float = option(0.99, above=0, at_most=1)


@dataclass(frozen=True)
class TrainingLimits:
    """How long to train, and when to look."""

    max_steps: int = option(10_000, at_least=1)
    checkpoint_every: int = option(1000, at_least=1)
    eval_every: int = option(500, at_least=1)
    early_stopping: bool = True


@dataclass(frozen=True)
class TrainerFile:
    """The whole file. Unknown keys are refused by name."""

    trainer: Trainer = field(default_factory=Trainer)
    trace_store: TraceStore = field(default_factory=TraceStore)
    rewards: RewardRule = field(default_factory=RewardRule)
    training: TrainingLimits = field(default_factory=TrainingLimits)
    agents_to_optimize: tuple[str, ...] = ()


def read_trainer_file(path: str | Path) -> tuple[list[str], AgentTraining]:
    """The agents that a file names (`qa_agent` is `qa`), and how they learn. Raises ConfigError."""
    file = load(TrainerFile, path)
    agents = [name.removesuffix("_agent") for name in file.agents_to_optimize]
    offline = file.trainer.type in ("dpo", "sft")
    settings: dict[str, Any] = {
        "algorithm": file.trainer.type,
        "learning_rate": file.trainer.learning_rate,
        "batch_size": file.trainer.batch_size,
        "iterations": file.training.max_steps,
        "checkpoint_every": file.training.checkpoint_every,
        "evaluate_every": file.training.eval_every,
        "patience": AgentTraining.patience if file.training.early_stopping else 0,
        "normalise": file.rewards.normalize,
        "discount": file.rewards.discount_factor,
        "reward": None if file.rewards.function == NAMED else file.rewards.function,
        "traces": file.trace_store.path if offline else None,
        "epochs": float(file.trainer.epochs),
    }
    return agents, replace(AgentTraining(), **settings)
