"""Phase 4, BitNet b1.58: the model on three levels, trained for by distillation, packed, and judged as packed.

`output: packed` passes the small model on; `output: dense` passes on its de-quantised form (the
levels themselves, not the shadow weights), for phases that train further. Training moves weights
off their levels again: quantise last.
"""

from __future__ import annotations

from agent_forge.forge.checkpoint import finish, load, staging
from agent_forge.forge.contracts import Contract
from agent_forge.forge.corpus import source_digests
from agent_forge.forge.phases import Phase, PhaseOutcome, Work
from agent_forge.forge.quantization.settings import QuantizeSettings


def run(work: Work) -> PhaseOutcome:
    from agent_forge.forge.quantization.job import quantise_folder

    with staging(work.models) as place:
        out = place / "quantized"
        report = quantise_folder(
            work.inputs[0],
            out,
            work.config,
            seed=work.seed,
            tell=work.tell,
            phase=work.name,
            resume=work.folder,
        )
        checkpoint = finish(out, load(out).card, work.models) if report.accepted else None
    return PhaseOutcome(checkpoint, report.gate)


PHASE = Phase(
    name="bitnet",
    version=3,
    about="Put the model on three levels and pack it",
    config=QuantizeSettings,
    takes=Contract(checkpoints=(1, 1), tokenizer=True),
    promises=Contract(tokenizer=True),
    run=run,
    data=lambda config: source_digests(config.sources),
)
