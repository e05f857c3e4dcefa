"""A merge by a recipe, in mergekit's configuration language: the models before it are input1, input2 …

It is judged on held-out text against the best of them, so it needs `sources`. Without gain the best input goes on.
"""

from __future__ import annotations

from agent_forge.errors import ConfigError
from agent_forge.forge.checkpoint import finish, load, staging
from agent_forge.forge.contracts import Contract
from agent_forge.forge.corpus import source_digests
from agent_forge.forge.merging.settings import MergeSettings
from agent_forge.forge.phases import Phase, PhaseOutcome, Work


def run(work: Work) -> PhaseOutcome:
    from agent_forge.forge.merging.job import merge_models

    with staging(work.models) as place:
        out = place / "merged"
        report = merge_models(work.inputs, out, work.config, phase=work.name, beside=work.models)
        checkpoint = finish(out, load(out).card, work.models)
    assert report.gate is not None
    return PhaseOutcome(checkpoint, report.gate, passes_on=report.best_input)


def data(config: MergeSettings) -> dict[str, str]:
    """The digests of the text to judge on. Raises ConfigError where there is none, before any work."""
    if not config.sources:
        fix = "Name the text to judge on, e.g. `sources: {stories: {path: stories}}`"
        raise ConfigError("a merge in a pipeline is judged", where="sources", fix=fix)
    return source_digests(config.sources)


PHASE = Phase(
    name="merge",
    version=1,
    about="Merge models by a recipe",
    config=MergeSettings,
    takes=Contract(checkpoints=(1, 16), tokenizer=True),
    promises=Contract(),
    run=run,
    data=data,
)
