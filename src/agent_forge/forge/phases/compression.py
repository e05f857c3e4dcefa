"""Phase 8, final compression: the model in as few bytes as its quality allows, judged from the
folder as shipped."""

from __future__ import annotations

from agent_forge.forge.checkpoint import finish, load, staging
from agent_forge.forge.compression.settings import CompressSettings
from agent_forge.forge.contracts import Contract
from agent_forge.forge.corpus import source_digests
from agent_forge.forge.gates import NO_GAIN, PASSED, GateResult
from agent_forge.forge.phases import Phase, PhaseOutcome, Work


def run(work: Work) -> PhaseOutcome:
    from agent_forge.forge.compression.job import compress_folder

    with staging(work.models) as place:
        out = place / "compressed"
        report = compress_folder(work.inputs[0], out, work.config, seed=work.seed, tell=work.tell, phase=work.name)
        checkpoint = finish(out, load(out).card, work.models) if report.accepted else None
    smaller = report.accepted and report.figures.bytes < report.bytes_before
    before, after = float(report.bytes_before), float(report.figures.bytes)
    return PhaseOutcome(checkpoint, GateResult("bytes", before, after, 0.0, PASSED if smaller else NO_GAIN))


PHASE = Phase(
    name="compression",
    version=2,
    about="Put the model in as few bytes as its quality allows",
    config=CompressSettings,
    takes=Contract(checkpoints=(1, 1), tokenizer=True),
    promises=Contract(),
    run=run,
    data=lambda config: source_digests(config.sources),
)
