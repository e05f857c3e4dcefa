"""Phase 2, EvoMerge: evolves merges of the specialists of one base, and passes one on if it beats the best of them.

The first input is the base, the others are its specialists. A specialist without gain was passed over in phase 1 and is
the base itself here; it counts once. The rows are those that the training phases held out: one half for selection, the
other for the gate. Without gain the best parent goes on.
"""

from __future__ import annotations

import shutil

from agent_forge.errors import ConfigError
from agent_forge.forge.checkpoint import finish, load, staging
from agent_forge.forge.contracts import Contract
from agent_forge.forge.evolution.settings import Evolve, task_digests
from agent_forge.forge.gates import NOT_MEASURED, GateResult
from agent_forge.forge.lineage import refuse_seen_documents
from agent_forge.forge.phases import Phase, PhaseOutcome, Work


def run(work: Work) -> PhaseOutcome:
    from agent_forge.forge.evolution.fitness import METRIC
    from agent_forge.forge.evolution.job import evolve_models
    from agent_forge.forge.evolution.tasks import share_of

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
    report = evolve_models(
        base,
        parents,
        work.folder / "evolution",
        config,
        seed=work.seed,
        phase=work.name,
        models=work.models,
        tell=work.tell,
    )
    best = next(i for i, item in enumerate(work.inputs) if item.path == report.evolved.best_parent)
    with staging(work.models) as place:
        shutil.copytree(report.out, place / "champion")
        checkpoint = finish(place / "champion", load(report.out).card, work.models)
    return PhaseOutcome(checkpoint, report.gate, passes_on=best)


PHASE = Phase(
    name="evomerge",
    version=3,
    about="Evolve merges of the specialists",
    config=Evolve,
    takes=Contract(checkpoints=(2, 8), tokenizer=True, same_tokenizer=True, same_architecture=True),
    promises=Contract(),
    run=run,
    data=lambda config: task_digests(config.data),
)
