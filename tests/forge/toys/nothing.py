"""A phase that makes nothing."""

from dataclasses import dataclass

from agent_forge.forge.contracts import Contract
from agent_forge.forge.gates import NO_GAIN, GateResult
from agent_forge.forge.phases import Phase, PhaseOutcome


@dataclass(frozen=True)
class Nothing:
    """No settings."""


PHASE = Phase(
    "nothing",
    1,
    "Make nothing",
    Nothing,
    Contract(),
    Contract(),
    lambda work: PhaseOutcome(None, GateResult("none", 1.0, 1.0, 0.0, NO_GAIN)),
    lambda config: {},
)
