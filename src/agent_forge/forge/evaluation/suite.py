"""The suite: every task by name, on a folder of question sets, as scores with standard errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent_forge.forge.evaluation.scores import TaskScore
from agent_forge.forge.evaluation.sets import (
    read_choices,
    read_gold_plans,
    read_problems,
    read_programs,
    read_requests,
)
from agent_forge.forge.evaluation.settings import EvaluateSettings
from agent_forge.forge.evaluation.tasks import (
    answer_choices,
    call_functions,
    solve_problems,
    write_plans,
    write_programs,
)
from agent_forge.forge.progress import Tell, silent
from agent_forge.plans import Task

Reader = Callable[[str, Path, int | None], Any]  # (task, data, most) -> items
Solver = Callable[..., TaskScore]  # (model, tokenizer, items, task, tell=)

TASKS: dict[str, tuple[Reader, Solver]] = {
    "arc_easy": (read_choices, answer_choices),
    "arc_challenge": (read_choices, answer_choices),
    "piqa": (read_choices, answer_choices),
    "gsm8k": (read_problems, solve_problems),
    "svamp": (read_problems, solve_problems),
    "mbpp": (read_programs, write_programs),
    "bfcl": (read_requests, call_functions),
    "asynchow": (read_gold_plans, write_plans),
}


def evaluate_suite(
    model: Any,
    tokenizer: Any,
    data: Path,
    tasks: Sequence[str] = tuple(TASKS),
    most: int | None = 200,
    tell: Tell = silent,
    begin: bool | None = None,
) -> list[TaskScore]:
    """The scores of `tasks` on at most `most` items each; without a tokenizer, `model` is the client of an endpoint.

    Raises UsageError, DataError or SandboxError.
    """
    EvaluateSettings(tuple(tasks))  # refuses an unknown task before any work
    scores = []
    for name in tasks:
        read, solve = TASKS[name]
        scores.append(solve(model, tokenizer, read(name, data, most), name, begin=begin, tell=tell))
    return scores


def evaluate_job(task: Task, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What a worker calls: one task of the suite on one model. It keeps the model for the next job."""
    from agent_forge.forge.opening import LoadSettings, find_model, load_model

    job = task.args
    if job["model"] not in _opened:
        _opened.clear()
        path = Path(job["model"])
        _opened[job["model"]] = load_model(find_model(path if path.is_dir() else job["digest"]), LoadSettings())
    model = _opened[job["model"]]
    place = Path(job["data"])
    (score,) = evaluate_suite(model.model, model.tokenizer, place, [job["task"]], job["most"], begin=job["begin"])
    return asdict(score)


_opened: dict[str, Any] = {}  # the model of this worker process


def score_from(document: Mapping[str, Any]) -> TaskScore:
    """A score that a worker sent."""
    plain = document["plain"]
    points, plain = tuple(document["points"]), None if plain is None else tuple(plain)
    return TaskScore(**{**document, "points": points, "plain": plain})


@dataclass(frozen=True)
class EvaluationReport:
    """The scores of a model by task."""

    model: str
    scores: Sequence[TaskScore]

    def as_dict(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        return {
            "model": self.model,
            "tasks": {score.task: score.accuracies() for score in self.scores},
            "scores": [score.as_dict() for score in self.scores],
        }
