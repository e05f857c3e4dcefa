"""The suite: every task by name, on a folder of question sets, as scores with standard errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agent_forge.config import nearest
from agent_forge.errors import UsageError
from agent_forge.forge.evaluation.choices import answer_questions, questions_of
from agent_forge.forge.evaluation.scores import Score
from agent_forge.forge.evaluation.sets import (
    read_choices,
    read_gold_plans,
    read_problems,
    read_programs,
    read_requests,
)
from agent_forge.forge.evaluation.tasks import call_functions, solve_problems, write_plans, write_programs

Task = Callable[[Any, Any, Path, int], Score]


def _choices(name: str, model: Any, tokenizer: Any, data: Path, most: int) -> Score:
    first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    return answer_questions(model, questions_of(read_choices(name, data, most), tokenizer, first), name)


def _problems(name: str, model: Any, tokenizer: Any, data: Path, most: int) -> Score:
    return solve_problems(model, tokenizer, read_problems(name, data, most), name)


def _programs(name: str, model: Any, tokenizer: Any, data: Path, most: int) -> Score:
    return write_programs(model, tokenizer, read_programs(name, data, most), name)


def _calls(name: str, model: Any, tokenizer: Any, data: Path, most: int) -> Score:
    return call_functions(model, tokenizer, read_requests(name, data, most), name)


def _plans(name: str, model: Any, tokenizer: Any, data: Path, most: int) -> Score:
    return write_plans(model, tokenizer, read_gold_plans(name, data, most), name)


TASKS: dict[str, Task] = {
    "arc_easy": partial(_choices, "arc_easy"),
    "arc_challenge": partial(_choices, "arc_challenge"),
    "piqa": partial(_choices, "piqa"),
    "gsm8k": partial(_problems, "gsm8k"),
    "svamp": partial(_problems, "svamp"),
    "mbpp": partial(_programs, "mbpp"),
    "bfcl": partial(_calls, "bfcl"),
    "asynchow": partial(_plans, "asynchow"),
}


def evaluate_suite(
    model: Any, tokenizer: Any, data: Path, tasks: Sequence[str] = tuple(TASKS), most: int = 200
) -> list[Score]:
    """The scores of `tasks` on at most so many items each. Raises UsageError, DataError or SandboxError."""
    for name in tasks:
        if name not in TASKS:
            near = nearest(name, TASKS)
            raise UsageError(f"there is no task {name!r}", fix=f"did you mean {near!r}?" if near else ", ".join(TASKS))
    return [TASKS[name](model, tokenizer, data, most) for name in tasks]


def score_table(before: Sequence[Score], after: Sequence[Score]) -> str:
    """Both models side by side, as Markdown."""
    later = {score.task: score for score in after}
    lines = ["| task | n | chance | before | after |", "|---|---|---|---|---|"]
    for score in before:
        other = later.get(score.task)
        chance = f"{score.chance:.3f}" if score.chance else "0"
        lines.append(f"| {score.task} | {score.n} | {chance} | {_figure(score)} | {_figure(other) if other else ''} |")
    return "\n".join(lines)


def _figure(score: Score) -> str:
    return f"{score.value:.3f}" + ("" if score.stderr is None else f" ± {score.stderr:.3f}")
