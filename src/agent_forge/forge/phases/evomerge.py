"""Phase 2, EvoMerge: evolves merges of the specialists of one base, and passes one on if it beats the best of them.

The first input is the base, the others are its specialists. A specialist without gain was passed over in phase 1 and is
the base itself here; it counts once. The rows are those that the training phases held out: one half for selection, the
other for the gate. Without gain the best parent goes on.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from agent_forge.errors import ConfigError
from agent_forge.forge.checkpoint import CARD, Checkpoint, Metric, finish, staging
from agent_forge.forge.contracts import Contract
from agent_forge.forge.corpus import Source, source_digests
from agent_forge.forge.evolution.fitness import METRIC
from agent_forge.forge.evolution.report import write_report
from agent_forge.forge.evolution.run import Evolved, evolve
from agent_forge.forge.evolution.settings import Evolve, TaskSource
from agent_forge.forge.evolution.tasks import share_of
from agent_forge.forge.gates import NOT_MEASURED, GateResult
from agent_forge.forge.merging.engine import RECIPE
from agent_forge.forge.phases import Phase, PhaseOutcome, Work
from agent_forge.forge.phases.specialise import refuse_seen_documents


def run(work: Work) -> PhaseOutcome:
    config: Evolve = work.config
    if config.parents or config.base is not None or config.seed:
        raise ConfigError("parents, base and seed of this phase come from the pipeline", fix="Remove them")
    base, *specialists = work.inputs
    distinct = {item.digest: item for item in specialists if item.digest != base.digest}
    parents = [*distinct.values()] if len(distinct) >= 2 else [base, *distinct.values()]
    if len(parents) < 2:  # every specialist was passed over: there is nothing to merge
        return PhaseOutcome(None, GateResult(METRIC, None, None, None, NOT_MEASURED))
    for parent in (base, *parents):
        for name, task in config.data.items():
            refuse_seen_documents(parent, name, task.path, share_of(task, config.held_out))
    folders = tuple(str(parent.path) for parent in parents)
    config = replace(config, parents=folders, base=str(base.path), seed=work.seed)
    folder = work.folder / "evolution"
    evolved = evolve(config, folder, work.tell, models=work.models)
    write_report(evolved, folder)
    best = next(i for i, item in enumerate(work.inputs) if item.path == evolved.best_parent)
    return PhaseOutcome(_save(work, evolved, folder), evolved.verdict.gate, passes_on=best)


def _save(work: Work, evolved: Evolved, folder: Path) -> Checkpoint:
    """The champion as a checkpoint, with its recipe and the report."""
    champion, gate = evolved.held_out["champion"], evolved.verdict.gate
    how = "relative to the base; the error is of the difference from the best parent, paired by item"
    metrics = {"fitness": Metric(evolved.yardstick.fitness(champion), gate.stderr, how=how)}
    metrics["recipes_evaluated"] = Metric(float(len(evolved.history.members)))
    technique = evolved.history.champion.genome.technique
    notes = f"by {technique}; champion.yaml is the recipe, and the models that it names are beside this one"
    card = work.card(_digests(work.config.data), metrics, notes)
    with staging(work.models) as place:
        for file in evolved.champion.iterdir():
            if file.name != CARD:
                shutil.copy(file, place / file.name)
        for name in ("champion.yaml", "report.md"):
            shutil.copy(folder / name, place / name)
        for file in (place / name for name in ("champion.yaml", "report.md", RECIPE)):
            if file.is_file():  # without this machine's paths, the same merge is the same checkpoint anywhere
                text = file.read_text(encoding="utf-8").replace(f"{work.models}{os.sep}", "")
                file.write_text(text, encoding="utf-8")
        return finish(place, card, work.models)


def _digests(data: Mapping[str, TaskSource]) -> dict[str, str]:
    """The digests of the files of every task."""
    sources = {name: Source(task.path) for name, task in data.items()}
    gates = {f"{name}, held out": Source(task.held_out) for name, task in data.items() if task.held_out is not None}
    return source_digests({**sources, **gates})


PHASE = Phase(
    name="evomerge",
    version=2,
    about="Evolve merges of the specialists",
    config=Evolve,
    takes=Contract(checkpoints=(2, 8), tokenizer=True, same_tokenizer=True, same_architecture=True),
    promises=Contract(),
    run=run,
    data=lambda config: _digests(config.data),
)
