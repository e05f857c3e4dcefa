"""From a full-precision model to a packed one: baseline, training, recovery, and the gate on what
is on disk."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from agent_forge.forge.evaluation.choices import ChoiceQuestion, answer_questions
from agent_forge.forge.evaluation.scores import TaskScore, retention
from agent_forge.forge.evaluation.text import Divergence, TextScore, compare, live_goals, measure_text
from agent_forge.forge.progress import Tell, silent
from agent_forge.forge.quantization.bitlinear import set_strength, settled, to_bitlinear
from agent_forge.forge.quantization.calibration import (
    calibrate,
    input_moments,
    input_squares,
    round_with_feedback,
)
from agent_forge.forge.quantization.distillation import distil
from agent_forge.forge.quantization.gate import DemandCheck, check
from agent_forge.forge.quantization.material import Material
from agent_forge.forge.quantization.settings import QuantizeSettings
from agent_forge.forge.training import Evaluation, PackedRows
from agent_forge.inference.loading import load_model

CALIBRATION_ROWS = 64
STARTS = {
    "feedback": "post-training, error feedback",
    "fitted": "post-training, scales fitted to inputs",
    "plain": "post-training, scales fitted to weights",
}


@dataclass(frozen=True)
class Measurement:
    """A model on the held-out text and questions."""

    text: TextScore
    scores: tuple[TaskScore, ...]


@dataclass
class Quantisation:
    """A model in training for few levels. `stages` holds what was measured after each step.

    The teacher is only read; the student is a copy of it.
    """

    teacher: Any
    material: Material
    settings: QuantizeSettings = field(default_factory=QuantizeSettings)
    questions: Mapping[str, Sequence[ChoiceQuestion]] = field(default_factory=dict)
    seed: int = 0
    folder: Path | None = None  # where the training keeps what it needs to resume
    tell: Tell = silent
    stages: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.device = next(self.teacher.parameters()).device
        self.student: Any = copy.deepcopy(self.teacher)
        self.names = to_bitlinear(self.student, self.settings.format, self.settings.layers)
        self.steps = self.settings.recipe.steps_for(self.teacher, self.device.type)
        self.started = time.monotonic()

    def run(self) -> None:
        """Everything up to the trained student: the original's figures, the baselines, training, recovery."""
        recipe = self.settings.recipe
        self.original = self.measure(self.teacher, "original")
        self.note("original", self.original)
        self._baselines()
        self.train("trained", self.steps, rising=True)
        for number in range(recipe.recoveries):
            if all(check.met for check in self.checks(self.latest, ratio=None)):
                break
            self.train(f"recovery {number + 1}", max(1, round(recipe.recovery * self.steps)), rising=False)
        set_strength(self.student, 1.0)

    def measure(self, model: nn.Module, stage: str) -> Measurement:
        """The model on text and questions."""
        return Measurement(measure_text(model, self.material.judged, stage=stage, tell=self.tell), self._scores(model))

    def _scores(self, model: nn.Module) -> tuple[TaskScore, ...]:
        return tuple(answer_questions(model, of, task, tell=self.tell) for task, of in self.questions.items())

    def measure_folder(self, folder: Path) -> tuple[Measurement, Divergence]:
        """The model on disk: loaded anew, then measured like the original, with its divergence from it."""
        model = load_model(folder)
        model.to(self.device)
        judged = self.material.judged
        comparison = compare(model, live_goals(self.teacher, judged), judged, stage="packed", tell=self.tell)
        return Measurement(comparison.text, self._scores(model)), comparison.divergence

    def checks(self, measurement: Measurement, ratio: float | None) -> tuple[DemandCheck, ...]:
        """All demands, or those on quality while the size is not known yet."""
        left = retention(self.original.scores, measurement.scores)
        times = measurement.text.perplexity / self.original.text.perplexity
        demands = self.settings.demands if ratio is not None else replace(self.settings.demands, ratio=0.0)
        return check(demands, times, None if left is None else left.share, ratio)

    def note(self, stage: str, measurement: Measurement, **more: Any) -> None:
        """Adds a stage to the report, and tells of it."""
        self.latest = measurement
        text, left = measurement.text, retention(self.original.scores, measurement.scores)
        figures = {
            "stage": stage,
            "ppl": text.perplexity,
            "ppl_stderr": text.perplexity_stderr,
            "ppl_ratio": text.perplexity / self.original.text.perplexity,
            "bits_per_byte": text.bits_per_byte,
            "accuracy": {score.task: score.value for score in measurement.scores},
            "accuracy_kept": None if left is None else left.share,
            "accuracy_kept_stderr": None if left is None else left.stderr,
            "seconds": round(time.monotonic() - self.started, 1),
            **more,
        }
        self.stages.append(figures)
        self.tell(**{key: value for key, value in figures.items() if isinstance(value, int | float | str)})

    def _baselines(self) -> None:
        """The levels without training: BitNet's rule as it is, and the best start."""
        plain = replace(self.settings.format, learn_scales=False)
        untrained = copy.deepcopy(self.teacher)
        to_bitlinear(untrained, plain, self.settings.layers)
        name = "post-training, mean |w|"
        with settled(untrained):
            self.note(name, self.measure(untrained, name))
        del untrained
        if self.settings.format.learn_scales:
            name = self._start()
            with settled(self.student):
                self.note(name, self.measure(self.student, name))

    def _start(self) -> str:
        """Puts the student on good levels before it learns; returns the name of the stage."""
        kind, rows = self.settings.recipe.start, self.material.rows
        few = PackedRows(rows.tokens[:CALIBRATION_ROWS], rows.documents[:CALIBRATION_ROWS])
        if kind == "feedback":
            moments = input_moments(self.teacher, few, self.names, tell=self.tell)
            round_with_feedback(self.student, moments, tell=self.tell)
        elif kind == "fitted":
            calibrate(self.student, input_squares(self.teacher, few, self.names, tell=self.tell))
        return STARTS[kind]

    def train(self, stage: str, steps: int, rising: bool) -> None:
        """Distils for `steps` steps and keeps the weights that were best on the watched text."""
        recipe, best = self.settings.recipe, BestWeights(self.material, self.student)

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
                1.0 if rising else 0.5,
                save_every=0 if self.folder is None else max(1, steps // 4),
            ),
            hard=recipe.hard,
            hidden=recipe.hidden,
            temperature=recipe.temperature,
            folder=None if self.folder is None else self.folder / stage.replace(" ", "-"),
            evaluate=best if recipe.evaluations else None,
            on_step=on_step,
            stage=stage,
            tell=self.tell,
        )
        best.restore()
        set_strength(self.student, 1.0)
        with settled(self.student):
            measurement = self.measure(self.student, stage)
        self.note(
            stage,
            measurement,
            steps=result.steps,
            tokens=result.tokens,
            stopped_early=result.stopped_early,
            tokens_per_s=result.tokens_per_s,
        )


class BestWeights:
    """Evaluates the model as it will be stored, on text that is neither trained on nor judged on,
    and keeps the best weights."""

    def __init__(self, material: Material, model: nn.Module) -> None:
        self.material, self.model = material, model
        self.best = math.inf
        self.weights: dict[str, torch.Tensor] | None = None

    def __call__(self, model: nn.Module) -> Evaluation:
        with settled(model):
            evaluation = measure_text(model, self.material.watched).as_evaluation()
        if evaluation.bits_per_byte < self.best:
            self.best = evaluation.bits_per_byte
            self.weights = {name: p.detach().to("cpu", copy=True) for name, p in model.named_parameters()}
        return evaluation

    @torch.no_grad()
    def restore(self) -> None:
        if self.weights is not None:
            for name, parameter in self.model.named_parameters():
                parameter.copy_(self.weights[name])
