"""Phase 8, final compression: the model in as few bytes as its quality allows, judged from the
folder as shipped: by perplexity, by questions from held-out text, and by the evaluation suite where tasks are named."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agent_forge.errors import ConfigError
from agent_forge.forge.checkpoint import Card, Metric, finish, load, staging, write_card
from agent_forge.forge.compression.settings import FinalCompression
from agent_forge.forge.contracts import Contract
from agent_forge.forge.corpus import source_digests
from agent_forge.forge.gates import NO_GAIN, PASSED, GateResult
from agent_forge.forge.phases import Phase, PhaseOutcome, Work

if TYPE_CHECKING:
    from agent_forge.forge.evaluation.scores import TaskScore

SCORE_BYTES = 500  # of the card, per task: two scores


def run(work: Work) -> PhaseOutcome:
    from agent_forge.forge.compression.job import compress_folder

    source, config = work.inputs[0], work.config
    tasks, limit = config.evaluation.suite, config.most_bytes
    before = suite_scores(source.path, config, work) if tasks else []
    if tasks and limit is not None:  # the budget is for the whole folder, and the card grows
        config = replace(config, budget=limit - SCORE_BYTES * len(tasks), budget_mb=None)
    with staging(work.models) as place:
        out = place / "compressed"
        report = compress_folder(source, out, config, seed=work.seed, tell=work.tell, phase=work.name)
        checkpoint, able, size = None, True, report.figures.bytes
        if report.accepted:
            choices, left = report.before.choices, report.figures.above_chance
            if choices is not None and choices.clear and left is not None:
                able = left >= config.least_kept * choices.above_chance
            if before:
                metrics = suite_metrics(before, suite_scores(out, config, work))
                able = able and ("suite_kept" not in metrics or metrics["suite_kept"].value >= config.least_kept)
                size = add_metrics(out, metrics)
            checkpoint = finish(out, load(out).card, work.models)
    verdict = PASSED if report.accepted and size < report.bytes_before and able else NO_GAIN
    return PhaseOutcome(checkpoint, GateResult("bytes", float(report.bytes_before), float(size), 0.0, verdict))


def add_metrics(folder: Path, metrics: Mapping[str, Metric]) -> int:
    """Puts them onto the card; returns the size of the folder, which the card says too."""
    card = load(folder).card

    def with_size(size: int) -> Card:
        bytes_now = replace(card.metrics["bytes"], value=float(size))
        return replace(card, metrics={**card.metrics, **metrics, "bytes": bytes_now})

    return write_card(folder, with_size)


def suite_scores(folder: Path, config: FinalCompression, work: Work) -> list[TaskScore]:
    """The model in a folder on the suite's tasks."""
    from agent_forge.forge.evaluation.suite import evaluate_suite
    from agent_forge.forge.opening import LoadSettings, load_model

    asked, model = config.evaluation, load_model(folder, LoadSettings())
    work.tell(stage=f"suite: {', '.join(asked.suite)}")
    return evaluate_suite(
        model.model, model.tokenizer, questions_of(config), asked.suite, asked.most, work.tell, asked.begin
    )


def suite_metrics(before: Sequence[TaskScore], after: Sequence[TaskScore]) -> dict[str, Metric]:
    """The scores for the card, and the share that is kept of what is above chance, where anything clearly is."""
    from agent_forge.forge.evaluation.scores import retention

    metrics = {}
    for one, two in zip(before, after, strict=True):
        metrics[f"{one.task} before"] = Metric(one.value, one.stderr, one.n, one.how)
        metrics[one.task] = Metric(two.value, two.stderr, two.n, two.how)
    if (kept := retention(before, after)) is not None:
        metrics["suite_kept"] = Metric(kept.share, kept.stderr, how=f"of what is above chance: {', '.join(kept.tasks)}")
    return metrics


def questions_of(config: FinalCompression) -> Path:
    """The folder of the suite's questions. Raises ConfigError."""
    data = config.evaluation.data or os.environ.get("AGENT_FORGE_DATA")
    if data is None or not (place := Path(os.path.expandvars(data)).expanduser()).exists():
        fix = "Set `evaluation.data`, or AGENT_FORGE_DATA, to a folder with the questions of every task"
        raise ConfigError("there are no questions for the suite", where="evaluation", fix=fix)
    return place


def data_digests(config: FinalCompression) -> dict[str, str]:
    if config.evaluation.suite:
        questions_of(config)  # missed before the work
    return source_digests(config.sources)


PHASE = Phase(
    name="compression",
    version=3,
    about="Put the model in as few bytes as its quality allows",
    config=FinalCompression,
    takes=Contract(checkpoints=(1, 1), tokenizer=True),
    promises=Contract(),
    run=run,
    data=data_digests,
    drops_thoughts="the result is judged by its bytes, and they would add to them",
)
