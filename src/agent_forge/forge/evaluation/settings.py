"""What `evaluate` is asked for, and the names of the tasks."""

from __future__ import annotations

from dataclasses import dataclass

from agent_forge.config import nearest, option
from agent_forge.errors import UsageError

# Tasks by what they need of a model: the likelihood of given answers, or only the text that it writes.
BY_LIKELIHOOD = ("arc_easy", "arc_challenge", "piqa")
BY_TEXT = ("gsm8k", "svamp", "mbpp", "bfcl", "asynchow")


@dataclass(frozen=True)
class EvaluateSettings:
    """The tasks, their data, and how much of it."""

    suite: tuple[str, ...] = option(
        (*BY_LIKELIHOOD, *BY_TEXT), help=f"Tasks, of {', '.join((*BY_LIKELIHOOD, *BY_TEXT))}"
    )
    data: str | None = option(
        None, help="File with the questions of a task, or folder with those of all (default: AGENT_FORGE_DATA)"
    )
    most: int | None = option(None, help="Questions per task (default: all)", at_least=1, flag="--limit")
    begin: bool | None = option(
        None,
        help="Read every prompt after BOS, or without it (default: as the tokenizer does; with BOS for Cognate)",
        flag="--begin/--no-begin",
    )

    def __post_init__(self) -> None:
        tasks = (*BY_LIKELIHOOD, *BY_TEXT)
        for name in self.suite:
            if name not in tasks:
                near = nearest(name, tasks)
                fix = f"Did you mean {near!r}?" if near else f"The tasks are {', '.join(tasks)}"
                raise UsageError(f"there is no task {name!r}", fix=fix)
