"""What `train planner` is asked for: the options of the command, the `config` of its phase, and the Python arguments.

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
    core (`TrainSettings`) go into `training`."""

    data: tuple[str, ...] = option((), help="Files of rows: plans, or logs of tool calls, as JSON Lines")
    traces: str | None = option(None, help="Home folder or postgresql:// URL; its right runs are rows")
    tools: str | None = option(None, help="Tools to generate rows for: a module, a Python file, or JSON schemas")
    generated: int = option(400, help="Rows to generate for the tools", at_least=0)
    public: str | None = option(None, help="Folder of the public plan sets, to mix with generated rows")
    sheets: int = option(0, help="Sheets to draw from the public sets", at_least=0)
    lora: bool = option(False, help="Train an adapter instead of all weights (always so for the shipped planner)")
    adapter: LoraSettings = field(default_factory=LoraSettings)
    epochs: float = option(2.0, help="Passes over the rows", above=0)
    lr: float = option(5e-4, help="Learning rate", above=0)
    batch_rows: int = option(4, help="Rows of tokens per step", at_least=1, flag="--batch")
    length: int = option(1024, help="Tokens per row", at_least=64)
    vocabulary: int = option(0, help="Words to keep of the base's vocabulary (0: all)", at_least=0)
    training: dict[str, Any] = option({})
    held_out: float = option(0.2, help="Share of the rows that the planner is judged on", above=0, at_most=0.5)
    judged: int = option(60, help="Most held-out requests to judge on", at_least=2)
    output: Literal["int8", "dense"] = option("int8", help="Weights of the result; int8 runs without torch")

    def __post_init__(self) -> None:
        if not (self.data or self.traces or self.tools or self.public):
            fix = "Give --tools FILE, --traces HOME or --data FILE"
            raise ConfigError("there is nothing to learn from", where="planner", fix=fix)
