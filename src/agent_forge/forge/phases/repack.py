"""A phase that follows a ternary one trains on its dense form, and hands back a packed one.

The handoff unpacks; here what the phase made is put on the same levels again, by the settings on the card of the packed
input, with the phase's own model as the teacher. So a phase passes only if its gain is worth having in the packed form:
if the demands of those settings are not met, there is no gain, and the packed input goes on.
"""

from __future__ import annotations

from dataclasses import replace

from agent_forge.config import as_dict, build
from agent_forge.errors import ConfigError
from agent_forge.forge.checkpoint import Checkpoint, finish, load, staging
from agent_forge.forge.contracts import format_of
from agent_forge.forge.gates import NO_GAIN
from agent_forge.forge.handoff import ADAPTED
from agent_forge.forge.phases import Phase, PhaseOutcome, Work
from agent_forge.forge.phases.carrying import carry_thoughts
from agent_forge.forge.quantization.settings import QuantizeSettings

PACKING = "packing"  # in the configuration on the card of what was packed again: the settings, for the next phase


def run_phase_on(kind: Phase, work: Work) -> PhaseOutcome:
    """Runs the phase; what it made from an unpacked ternary input is packed again, and thinks as its input did."""
    existing = set(work.models.glob("*"))
    return carry_thoughts(kind, work, packed_again(work, kind.run(work)), existing)


def packed_again(work: Work, outcome: PhaseOutcome) -> PhaseOutcome:
    settings = packing_of(work.inputs[0]) if work.inputs else None
    made = outcome.checkpoint
    if settings is None or made is None or not outcome.gate.passed or format_of(made.path) != "dense":
        return outcome
    from agent_forge.forge.quantization.job import quantise_folder

    with staging(work.models) as place:
        out = place / "packed"
        report = quantise_folder(
            made, out, settings, seed=work.seed, tell=work.tell, phase=work.name, resume=work.folder / "packing"
        )
        if not report.accepted:
            return PhaseOutcome(None, replace(outcome.gate, verdict=NO_GAIN))
        card = load(out).card
        card = replace(
            made.card,
            config={**made.card.config, PACKING: as_dict(settings)},
            metrics={**made.card.metrics, **card.metrics},
            data={**made.card.data, **card.data},
        )
        return replace(outcome, checkpoint=finish(out, card, work.models))


def packing_of(checkpoint: Checkpoint) -> QuantizeSettings | None:
    """How the ternary model was packed that this is the dense form of; None if it is not one."""
    config = checkpoint.card.config
    asked = config.get(PACKING) or {name: value for name, value in config.items() if name != ADAPTED}
    if config.get(ADAPTED) != {"format": "dense"} or "recipe" not in asked:
        return None
    try:
        settings: QuantizeSettings = build(QuantizeSettings, asked)
    except ConfigError:  # packed by something else, such as the compression
        return None
    return replace(settings, output="packed")
