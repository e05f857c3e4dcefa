"""Makes a planner small: layers removed, few levels trained by distillation on plans, packed, judged as packed.

    phase: agent_forge.learning.shrink          # in a pipeline, after agent_forge.learning.planner

The teacher is the phase's input, a plain planner (`output: dense`). Rows come from the same settings as in training.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from agent_forge.agents.planner.forged import CALIBRATION, PlanModel
from agent_forge.config import option
from agent_forge.errors import ConfigError
from agent_forge.forge.checkpoint import finish, staging
from agent_forge.forge.contracts import Contract
from agent_forge.forge.gates import NO_GAIN, PASSED, GateResult
from agent_forge.forge.phases import Phase, PhaseOutcome, Work
from agent_forge.forge.phases.cognate import device
from agent_forge.forge.pruning import keep_layers, layer_influence
from agent_forge.forge.quantization import Distillation, to_bitlinear, write_packed
from agent_forge.forge.quantization.bitlinear import set_strength
from agent_forge.forge.quantization.calibration import input_moments, round_with_feedback
from agent_forge.forge.quantization.settings import Format
from agent_forge.forge.training import TrainSettings, train
from agent_forge.inference.loading import load_model
from agent_forge.learning.judging import calibration
from agent_forge.learning.material import gather, public_groups
from agent_forge.learning.planner import (
    RIGHT,
    Judged,
    counts_of,
    data_digests,
    end_of,
    figures_of,
    sheets_of,
    training_settings,
)
from agent_forge.learning.settings import PlannerSettings
from agent_forge.learning.sheets import PlanSheets

ROUNDING_ROWS = 64  # that the first rounding looks at


@dataclass(frozen=True)
class ShrinkSettings(PlannerSettings):
    """The rows to distil on, and how small the planner becomes."""

    layers: int = option(0, help="Layers to keep, those that change most (0: all)", at_least=0)
    format: Format = field(default_factory=lambda: Format(levels="two_bit"))
    hard: float = option(0.3, help="Share of the loss that is the rows' own", at_least=0, at_most=1)
    least_kept: float = option(0.9, help="Share of the teacher's fully right plans that must be kept", at_least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reinforce or not self.epochs:
            what = "a planner is shrunk by supervised steps alone"
            raise ConfigError(what, where="planner", fix="Set epochs above 0, and reinforce in the phase before")


def run(work: Work) -> PhaseOutcome:
    config: ShrinkSettings = work.config
    source = work.inputs[0].path
    material = gather(config, work.seed)
    rows = material.held_out[: config.judged]
    teacher = load_model(source, dtype=torch.float32).eval().to(device())
    words = (source / "tokenizer.json").read_text(encoding="utf-8")
    data = sheets_of(material.train, words, config.length, end_of(teacher), public_groups(config, work.seed))
    student, _ = smaller(teacher, data, config.layers, config.format)
    settings = for_few_levels(training_settings(config, len(data), work.seed), config.lr)

    def note(record: dict[str, Any]) -> None:
        set_strength(student, strength(record["step"] / settings.steps))
        work.tell(**record, steps=settings.steps)

    set_strength(student, strength(0.0))
    loss = Distillation(teacher, hard=config.hard)
    trained = train(student, data, settings, work.folder / "training", on_record=note, progress=None, loss=loss)
    set_strength(student, 1.0)
    with staging(work.models) as place:
        write_packed(student.cpu(), source, place)
        before, after = Judged.of(rows, PlanModel(source)), Judged.of(rows, PlanModel(place))
        (place / CALIBRATION).write_text(json.dumps(calibration(after.sure, after.right)), encoding="utf-8")
        metrics = {**figures_of({"planner": after.figures, "teacher": before.figures}), **counts_of(material, trained)}
        checkpoint = finish(place, work.card(material.digests(), metrics), work.models)
    kept = after.figures.right >= config.least_kept * before.figures.right
    gate = GateResult(RIGHT, before.figures.right, after.figures.right, None, PASSED if kept else NO_GAIN)
    return PhaseOutcome(checkpoint, gate)


def smaller(teacher: Any, data: PlanSheets, layers: int, format: Format) -> tuple[Any, list[int]]:
    """A copy with so many layers (0: all) on few levels, its weights rounded so that each layer's output changes
    least; and which of the teacher's layers it has."""
    student, kept = copy.deepcopy(teacher), list(range(teacher.config.num_hidden_layers))
    if layers and layers < len(kept):
        influence = layer_influence(teacher, data.take(slice(0, 16)).inputs.to(teacher.device))
        kept = sorted(sorted(kept, key=lambda number: -influence[number])[:layers])
        keep_layers(student, kept)
    dense = copy.deepcopy(student)
    names = to_bitlinear(student, format)
    some = [getattr(data, name)[:ROUNDING_ROWS] for name in ("tokens", "documents", "positions", "learnt")]
    round_with_feedback(student, input_moments(dense, PlanSheets(*some), names))
    return student, kept


def for_few_levels(settings: TrainSettings, rate: float) -> TrainSettings:
    """What the shipped planner was distilled with: the matrices learn by Muon, the rest more slowly."""
    rates = {"matrix_rule": "muon", "lr": rate, "embedding_lr": rate / 5, "scalar_lr": rate / 5, "weight_decay": 0.0}
    return replace(settings, divergence=50.0, optimizer_changes={**settings.optimizer_changes, **rates})


def strength(past: float) -> float:
    """How firmly the levels hold after a share of the run: more in eight steps, in full from a sixth of it on.

    >>> [strength(past) for past in (0.0, 0.1, 0.175, 1.0)]
    [0.125, 0.625, 1.0, 1.0]
    """
    return min(1.0, 0.125 * (1 + int(40 * past)))


PHASE = Phase(
    name="shrink",
    version=2,  # the strength rises in steps
    about="Distil a planner onto few levels and pack it",
    config=ShrinkSettings,
    takes=Contract(checkpoints=(1, 1), formats=("dense",), tokenizer=True),
    promises=Contract(tokenizer=True),
    run=run,
    data=data_digests,
)
