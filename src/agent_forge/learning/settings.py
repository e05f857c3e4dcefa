"""What `train planner` and `train AGENT` are asked for: the options of the commands and the Python arguments.

Nothing here needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from agent_forge.config import option
from agent_forge.errors import ConfigError
from agent_forge.forge.training.settings import LoraSettings


@dataclass(frozen=True)
class PlannerSettings:
    """Where the rows come from, how the planner learns from them, and how it is judged. Other settings of the training
    core (`TrainSettings`) go into `training`, of the reinforcement loop (`ReinforceSettings`) into `reinforcement`.
    """

    data: tuple[str, ...] = option((), help="Files of rows: plans, or logs of tool calls, as JSON Lines")
    traces: str | None = option(None, help="Home folder or postgresql:// URL; its right runs are rows")
    tools: str | None = option(None, help="Tools to generate rows for: a module, a Python file, or JSON schemas")
    generated: int = option(400, help="Rows to generate for the tools", at_least=0)
    public: str | None = option(None, help="Folder of the public plan sets, to mix with generated rows")
    sheets: int = option(0, help="Sheets to draw from the public sets", at_least=0)
    lora: bool = option(False, help="Train an adapter instead of all weights (always so for the shipped planner)")
    adapter: LoraSettings = field(default_factory=LoraSettings)
    epochs: float = option(2.0, help="Passes over the rows (0: no supervised steps)", at_least=0)
    lr: float = option(5e-4, help="Learning rate", above=0)
    batch_rows: int = option(4, help="Rows of tokens per step", at_least=1, flag="--batch")
    length: int = option(1024, help="Tokens per row; more where a request with its tools has more", at_least=64)
    vocabulary: int = option(0, help="Words to keep of the base's vocabulary (0: all)", at_least=0)
    training: dict[str, Any] = option({})
    reinforce: int = option(
        0, help="Iterations of reinforcement afterwards: sampled plans are carried out with simulated tools and scored",
        at_least=0,
    )  # fmt: skip
    reinforcement: dict[str, Any] = option({})
    held_out: float = option(0.2, help="Share of the rows that the planner is judged on", above=0, at_most=0.5)
    judged: int = option(60, help="Most held-out requests to judge on", at_least=2)
    output: Literal["int8", "dense"] = option("int8", help="Weights of the result; int8 runs without torch")

    def __post_init__(self) -> None:
        if not (self.data or self.traces or self.tools or self.public):
            fix = "Give --tools FILE, --traces HOME or --data FILE"
            raise ConfigError("there is nothing to learn from", where="planner", fix=fix)
        if not (self.epochs or self.reinforce):
            raise ConfigError("there are no steps to train", where="planner", fix="Set epochs or reinforce above 0")


@dataclass(frozen=True)
class AgentTraining:
    """How an agent learns: supervised first, on the reference solvers' answers or on traces, then by reinforcement.

    Other settings of the supervised part (`TrainSettings`) go into `training`, of the other (`ReinforceSettings`) into
    `reinforcement`.
    """

    algorithm: Literal["grpo", "ppo", "sft", "dpo"] = option(
        "grpo", help="grpo and ppo reinforce; sft and dpo learn from --traces"
    )
    iterations: int = option(100, help="Steps of reinforcement, or of learning from traces", at_least=0)
    batch_size: int = option(32, help="Answers per iteration", at_least=1)
    group: int = option(8, help="Answers per exercise, which are compared with each other", at_least=2)
    learning_rate: float = option(1e-4, help="Learning rate of reinforcement and of learning from traces", above=0)
    task_type: str = option("auto", help="Task family to practise; auto is the agent's own")
    warmup: int | None = option(
        None, help="Supervised steps on the reference solvers' answers first; by default as many as iterations",
        at_least=0, flag="--warmup-steps",
    )  # fmt: skip
    warmup_batch: int | None = option(
        None, help="Reference answers per supervised step; by default the batch size", at_least=1
    )
    warmup_rate: float = option(1e-3, help="Learning rate of the supervised steps", above=0)
    references: int = option(8192, help="Most different reference answers; more steps repeat them", at_least=1)
    lora: bool = option(True, help="Train an adapter instead of all weights")
    adapter: LoraSettings = field(default_factory=LoraSettings)
    turns: int = option(1, help="Model calls per exercise; with more than one the agent may use its tools", at_least=1)
    credit: Literal["shapley", "reuse", "discounted", "uniform"] = option(
        "shapley", help="How the turns of one attempt share its reward"
    )
    by_parts: bool = option(
        False, help="Credit each part of a JSON answer for what it earns against the same part of the other answers"
    )
    discount: float = option(
        1.0, help="Discount per turn (credit: discounted), and of PPO's returns", above=0, at_most=1
    )
    normalise: bool = option(True, help="Divide advantages by the spread of their group")
    kl: float = option(0.0, help="Weight of the divergence from the policy before reinforcement", at_least=0)
    temperature: float | None = option(
        None, help="Sampling temperature of the attempts; by default 0.5 for single answers, 1 for several turns",
        above=0,
    )  # fmt: skip
    constrained: bool = option(False, help="Attempts follow the grammar of the answers, as evaluations do; slower")
    max_tokens: int = option(512, help="Tokens per answer", at_least=1)
    updates: int = option(1, help="Optimiser steps per iteration, each on its share of the answers", at_least=1)
    judged: int = option(18, help="Held-out exercises in the report", at_least=2)
    evaluate_every: int = option(25, help="Iterations between two evaluations that may stop the run", at_least=1)
    checkpoint_every: int = option(25, help="Iterations between two checkpoints", at_least=1)
    patience: int = option(4, help="Evaluations without gain before the run stops (0: never)", at_least=0)
    reward: str | None = option(None, help="Reward function to learn by, FILE.py:NAME; judged is always by the agent's")
    traces: str | None = option(None, help="Traces to learn from: a folder of JSON Lines, a home folder, or a URL")
    epochs: float = option(10.0, help="Most passes over the traces", above=0)
    control: bool = option(False, help="Also train as many further supervised steps, for comparison")
    control_rate: float | None = option(
        None, help="Learning rate of these; by default that of the warm-up, which is too high after a long one", above=0
    )
    judges: int = option(0, help="Processes that score answers (0: one per core)", at_least=0)
    length: int = option(1024, help="Tokens per row of the supervised steps", at_least=64)
    gradient_checkpointing: bool = option(False, help="Less memory, a third more time in learning")
    training: dict[str, Any] = option({})
    reinforcement: dict[str, Any] = option({})

    def __post_init__(self) -> None:
        if self.algorithm in ("sft", "dpo") and self.traces is None:
            raise ConfigError(f"{self.algorithm} learns from traces", where="train", fix="Give --traces DIR or a URL")
        if self.batch_size % self.group and self.algorithm in ("grpo", "ppo"):
            what = f"a batch of {self.batch_size} answers is not made of groups of {self.group}"
            raise ConfigError(what, where="train", fix="Make batch_size a multiple of group")
        if self.turns > 1 and self.algorithm not in ("grpo",):
            raise ConfigError(
                f"{self.algorithm} learns from single answers", where="train", fix="Use grpo, or --turns 1"
            )
        if self.by_parts and (self.turns > 1 or self.algorithm != "grpo"):
            raise ConfigError(
                "by_parts works only for single answers with grpo", where="train",
                fix="Leave out --by-parts, or use --algorithm grpo --turns 1",
            )  # fmt: skip
        if self.turns > 1 and self.temperature not in (None, 1.0):
            raise ConfigError("attempts of several turns are sampled at temperature 1", where="train")

    @property
    def sampling_temperature(self) -> float:
        """Agents act greedily: what is learnt from attempts that are far from that may not help them."""
        return self.temperature or (0.5 if self.turns == 1 else 1.0)

    @property
    def warmup_steps(self) -> int:
        """Supervised steps before anything else; none where there are traces to learn from."""
        if self.warmup is None:
            return self.iterations if self.algorithm in ("grpo", "ppo") else 0
        return self.warmup

    def supervised(self, steps: int) -> tuple[int, int]:
        """How many reference answers so many supervised steps learn, and how many different ones.

        >>> AgentTraining(warmup_batch=96, references=384).supervised(32)
        (3072, 384)
        """
        wanted = steps * (self.warmup_batch or self.batch_size)
        return wanted, min(wanted, self.references)
