"""Phase 2, EvoMerge: specialists of one base merged by recipes that evolve, if that beats the best of them.

The first input is the base, the others its specialists. One that brought no gain was passed over in phase 1, and is the
base itself here: it counts once. Rows are those that the training phases held out, one half to select on, the other for
the gate. Without gain the best parent goes on.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent_forge.config import option
from agent_forge.errors import ConfigError
from agent_forge.forge.checkpoint import CARD, Checkpoint, Metric, finish, staging
from agent_forge.forge.contracts import Contract
from agent_forge.forge.corpus import Source, source_digests
from agent_forge.forge.evolution.report import write_report
from agent_forge.forge.evolution.run import Evolved, evolve
from agent_forge.forge.evolution.settings import Evolve, Search, TaskSource, Weights
from agent_forge.forge.evolution.tasks import share_of
from agent_forge.forge.evolution.verdict import METRIC
from agent_forge.forge.gates import NOT_MEASURED, GateResult
from agent_forge.forge.merging.engine import RECIPE
from agent_forge.forge.phases import Phase, PhaseOutcome, Work
from agent_forge.forge.phases.specialise import refuse_seen_documents


@dataclass(frozen=True)
class EvoMerge:
    """What is evolved on, and how. See `Evolve`; base and parents are the phase's inputs."""

    data: dict[str, TaskSource]
    held_out: float | None = option(
        0.05, help="the share that the training phases held out; only those rows are used", above=0, at_most=0.5
    )
    project: bool = option(True, help="read specialists with a changed configuration as the base's architecture")
    length: int = option(512, help="tokens in a row", at_least=8)
    most_tokens: int = option(4096, help="of one text, at most so many tokens are read", at_least=8)
    worst_loss: float = option(0.05, help="what a champion may lose on one task, as a share", at_least=0, at_most=1)
    weights: Weights = option(Weights())
    search: Search = option(Search())

    def __post_init__(self) -> None:
        if not self.data:
            raise ConfigError("name at least one task", where="data")


def run(work: Work) -> PhaseOutcome:
    parents = distinct(work)
    if len(parents) < 2:  # every specialist was passed over: there is nothing to merge
        return PhaseOutcome(None, GateResult(METRIC, None, None, None, NOT_MEASURED))
    given: EvoMerge = work.config
    for parent in (work.inputs[0], *parents):
        for name, task in given.data.items():
            refuse_seen_documents(parent, name, task.path, share_of(task, given.held_out))
    config = Evolve(
        parents=tuple(str(parent.path) for parent in parents),
        base=str(work.inputs[0].path),
        data=given.data,
        held_out=given.held_out,
        project=given.project,
        length=given.length,
        most_tokens=given.most_tokens,
        worst_loss=given.worst_loss,
        weights=given.weights,
        search=given.search,
        seed=work.seed,
    )
    folder = work.folder / "evolution"
    evolved = evolve(config, folder, work.tell, models=work.models)
    write_report(evolved, folder)
    made = save(work, evolved, folder)
    best = next(i for i, item in enumerate(work.inputs) if item.path == evolved.best_parent)
    return PhaseOutcome(made, evolved.verdict.gate, passes_on=best)


def distinct(work: Work) -> list[Checkpoint]:
    """The specialists, each model once; with fewer than two of them, the base stands in."""
    base, *others = work.inputs
    found = {item.digest: item for item in others if item.digest != base.digest}
    return [*found.values()] if len(found) >= 2 else [base, *found.values()]


def save(work: Work, evolved: Evolved, folder: Path) -> Checkpoint:
    """The champion as a checkpoint, with its recipe and the report."""
    champion = evolved.held_out["champion"]
    gate = evolved.verdict.gate
    how = "relative to the base; the error is of the difference from the best parent, paired by item"
    metrics = {"fitness": Metric(evolved.yardstick.fitness(champion), gate.stderr, how=how)}
    metrics["recipes_evaluated"] = Metric(float(len(evolved.history.members)))
    bits = evolved.history.champion.genome.bits
    notes = f"combination {bits}; the recipe is in champion.yaml, the models that it names are beside this one"
    card = work.card(digests(work.config.data), metrics, notes)
    with staging(work.models) as place:
        for file in evolved.champion.iterdir():
            if file.name != CARD:
                shutil.copy(file, place / file.name)
        for name in ("champion.yaml", "report.md", "fitness.svg"):
            shutil.copy(folder / name, place / name)
        for name in ("champion.yaml", "report.md", RECIPE):
            _name_parents_alone(place / name, work.models)
        return finish(place, card, work.models)


def _name_parents_alone(file: Path, models: Path) -> None:
    """Takes the place of this machine's models out: the same merge is the same checkpoint, wherever it was made."""
    if file.is_file():
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace(f"{models}{os.sep}", ""), encoding="utf-8")


def digests(data: Mapping[str, TaskSource]) -> dict[str, str]:
    """The digests of the files of every task."""
    sources = {name: Source(task.path) for name, task in data.items()}
    apart = {f"{name}, held out": Source(task.held_out) for name, task in data.items() if task.held_out is not None}
    return source_digests({**sources, **apart})


PHASE = Phase(
    name="evomerge",
    version=1,
    about="Evolve merges of the specialists",
    config=EvoMerge,
    takes=Contract(checkpoints=(2, 8), tokenizer=True, same_tokenizer=True, same_architecture=True),
    promises=Contract(),
    run=run,
    data=lambda config: digests(config.data),
)
