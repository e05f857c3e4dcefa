"""From a full-precision model to a packed one: baseline, training, recovery, and the gate on what is on disk."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from agent_forge.forge.evaluation.choices import Question, answer_questions
from agent_forge.forge.evaluation.scores import Score, retention
from agent_forge.forge.evaluation.text import TextScore, divergence, measure_text
from agent_forge.forge.quantization.bitlinear import INSIDE_BLOCKS, set_strength, settled, to_bitlinear
from agent_forge.forge.quantization.calibration import (
    calibrate,
    input_moments,
    input_squares,
    round_with_feedback,
)
from agent_forge.forge.quantization.distillation import distil
from agent_forge.forge.quantization.gate import Clause, Demands, check
from agent_forge.forge.quantization.levels import Format
from agent_forge.forge.quantization.material import Material
from agent_forge.forge.quantization.recipe import Recipe
from agent_forge.forge.training import Evaluation, PackedRows

CALIBRATION_ROWS = 64
STARTS = {
    "feedback": "post-training, error feedback",
    "fitted": "post-training, scales fitted to inputs",
    "plain": "post-training, scales fitted to weights",
}
Tell = Callable[..., None]


@dataclass(frozen=True)
class Measured:
    """A model on the held-out text and questions."""

    text: TextScore
    scores: tuple[Score, ...]

    def as_dict(self) -> dict[str, Any]:
        return {**self.text.as_dict(), "scores": [score.as_dict() for score in self.scores]}


@dataclass
class Quantisation:
    """A model on its way to few levels. `stages` holds what was measured after each step.

    The teacher is only read; the student is a copy of it.
    """

    teacher: Any
    material: Material
    format: Format = field(default_factory=Format)
    recipe: Recipe = field(default_factory=Recipe)
    demands: Demands = field(default_factory=Demands)
    layers: str = INSIDE_BLOCKS
    questions: dict[str, Sequence[Question]] = field(default_factory=dict)
    seed: int = 0
    folder: Path | None = None  # where the training keeps what it needs to resume
    tell: Tell = lambda **_: None
    stages: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.device = next(self.teacher.parameters()).device
        self.student: Any = copy.deepcopy(self.teacher)
        self.names = to_bitlinear(self.student, self.format, self.layers)
        self.steps = self.recipe.steps_for(self.teacher, self.device.type)
        self.started = time.monotonic()

    def run(self) -> None:
        """Everything up to the trained student: the original's figures, the baselines, training, recovery."""
        self.original = self.measure(self.teacher)
        self.note("original", self.original)
        self._baselines()
        self.train("trained", self.steps, rising=True)
        for number in range(self.recipe.recoveries):
            if all(clause.met for clause in self.clauses(self.latest, ratio=None)):
                break
            steps = max(1, round(self.recipe.recovery * self.steps))
            self.train(f"recovery {number + 1}", steps, rising=False)
        set_strength(self.student, 1.0)

    def measure(self, model: nn.Module) -> Measured:
        scores = tuple(answer_questions(model, asked, task) for task, asked in self.questions.items())
        return Measured(measure_text(model, self.material.judged), scores)

    def clauses(self, found: Measured, ratio: float | None) -> tuple[Clause, ...]:
        """The demands that can be judged: all of them, or those on quality where the size is not known yet."""
        kept = retention(self.original.scores, found.scores)
        times = found.text.perplexity / self.original.text.perplexity
        clauses = check(self.demands, times, None if kept is None else kept.share, ratio)
        return clauses if ratio is not None else tuple(c for c in clauses if "smaller" not in c.name)

    def note(self, stage: str, found: Measured, **more: Any) -> None:
        """Adds a stage to the report, and tells of it."""
        self.latest = found
        kept = retention(self.original.scores, found.scores)
        figures = {
            "stage": stage,
            "ppl": found.text.perplexity,
            "ppl_stderr": found.text.perplexity_stderr,
            "ppl_ratio": found.text.perplexity / self.original.text.perplexity,
            "bits_per_byte": found.text.bits_per_byte,
            "accuracy": {score.task: score.value for score in found.scores},
            "accuracy_kept": None if kept is None else kept.share,
            "accuracy_kept_stderr": None if kept is None else kept.stderr,
            "seconds": round(time.monotonic() - self.started, 1),
            **more,
        }
        self.stages.append(figures)
        self.tell(**{key: value for key, value in figures.items() if isinstance(value, int | float | str)})

    # ------------------------------------------------------------------------------------------------ steps

    def _baselines(self) -> None:
        """The levels without training: BitNet's rule as it is, and the best that can be done without (the start)."""
        plain = Format(**{**self.format.__dict__, "learn_scales": False})
        untrained = copy.deepcopy(self.teacher)
        to_bitlinear(untrained, plain, self.layers)
        with settled(untrained):
            self.note("post-training, mean |w|", self.measure(untrained))
        del untrained
        if self.format.learn_scales:
            with settled(self.student):
                self.note(self._start(), self.measure(self.student))

    def _start(self) -> str:
        """Puts the student on good levels before it learns, and says how."""
        kind = self.recipe.start
        few = PackedRows(self.material.rows.tokens[:CALIBRATION_ROWS], self.material.rows.documents[:CALIBRATION_ROWS])
        if kind == "feedback":
            round_with_feedback(self.student, input_moments(self.teacher, few, self.names))
        elif kind == "fitted":
            calibrate(self.student, input_squares(self.teacher, few, self.names))
        return STARTS[kind]

    def train(self, stage: str, steps: int, rising: bool) -> None:
        """Distils for `steps` steps and keeps the weights that were best on the watched text."""
        watch = Watch(self.material, self.student)
        recipe, pace = self.recipe, 1.0 if rising else 0.5

        def on_step(step: int) -> None:
            set_strength(self.student, recipe.strength_at(step, steps) if rising else 1.0)

        result = distil(
            self.student,
            self.teacher,
            self.material.rows,
            steps,
            settings=recipe.settings(
                steps,
                self.seed + (0 if rising else len(self.stages)),
                pace,
                save_every=0 if self.folder is None else max(1, steps // 4),
            ),
            hard=recipe.hard,
            hidden=recipe.hidden,
            temperature=recipe.temperature,
            folder=None if self.folder is None else self.folder / stage.replace(" ", "-"),
            evaluate=watch if recipe.evaluations else None,
            on_step=on_step,
            tell=self.tell,
        )
        watch.restore()
        set_strength(self.student, 1.0)
        with settled(self.student):
            found = self.measure(self.student)
        self.note(
            stage,
            found,
            steps=result.steps,
            tokens=result.tokens,
            stopped_early=result.stopped_early,
            tokens_per_s=result.tokens_per_s,
        )


class Watch:
    """Looks at the model as it will be stored, on text that is neither trained on nor judged on, and remembers the
    best weights it has seen."""

    def __init__(self, material: Material, model: nn.Module) -> None:
        self.material, self.model = material, model
        self.best = math.inf
        self.weights: dict[str, torch.Tensor] | None = None

    def __call__(self, model: nn.Module) -> Evaluation:
        with settled(model):
            found = measure_text(model, self.material.watched).as_evaluation()
        if found.bits_per_byte < self.best:
            self.best = found.bits_per_byte
            self.weights = {name: p.detach().to("cpu", copy=True) for name, p in model.named_parameters()}
        return found

    @torch.no_grad()
    def restore(self) -> None:
        if self.weights is not None:
            for name, parameter in self.model.named_parameters():
                parameter.copy_(self.weights[name])


def measure_folder(work: Quantisation, folder: Path) -> tuple[Measured, dict[str, Any]]:
    """The model as it lies on disk: loaded anew, then measured like the original, with its divergence from it."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.to(work.device)
    found = work.measure(model)
    return found, divergence(model, work.teacher, work.material.judged).as_dict()
