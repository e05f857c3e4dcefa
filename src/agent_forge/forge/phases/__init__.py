"""The phases: what each takes, what it promises, and how it runs. One module or package per phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from agent_forge.config import as_dict, nearest
from agent_forge.errors import UsageError
from agent_forge.forge.checkpoint import Card, Checkpoint, Metric
from agent_forge.forge.contracts import Contract
from agent_forge.forge.gates import GateResult


@dataclass(frozen=True)
class Work:
    """What a phase works with: configuration, inputs, a folder that survives a crash, and a callback for progress."""

    name: str
    config: Any
    inputs: Sequence[Checkpoint]
    seed: int
    folder: Path  # the phase's own; after a crash the same work finds the same folder
    models: Path  # where finished checkpoints go
    tell: Callable[..., None] = lambda **_: None  # tell(step=…, loss=…): progress

    def card(self, data: Mapping[str, str], metrics: Mapping[str, Metric], notes: str = "") -> Card:
        """The card of the result, with the inputs, configuration, data and seed it came from."""
        inputs = tuple(item.digest for item in self.inputs)
        return Card(self.name, as_dict(self.config), inputs, data, self.seed, metrics=metrics, notes=notes)


@dataclass(frozen=True)
class PhaseOutcome:
    """The result of a phase. Without a checkpoint of its own, or without gain, it passes on one of its inputs."""

    checkpoint: Checkpoint | None
    gate: GateResult
    passes_on: int = 0  # index of that input


@dataclass(frozen=True)
class Phase:
    """A kind of work on checkpoints. `version` changes when the same configuration would give another result."""

    name: str
    version: int
    about: str
    config: type[Any]
    takes: Contract
    promises: Contract
    run: Callable[[Work], PhaseOutcome]
    data: Callable[[Any], Mapping[str, str]]  # the digests of the data that a configuration names
    drops_thoughts: str = ""  # why the result does not think even if the input does; otherwise it does


# By name: the module that holds it as PHASE. A phase of your own goes by the dotted name of its module.
MODULES = {
    "cognate": "agent_forge.forge.phases.cognate",
    "specialise": "agent_forge.forge.phases.specialise",
    "merge": "agent_forge.forge.phases.merge",
    "evomerge": "agent_forge.forge.phases.evomerge",
    "quietstar": "agent_forge.forge.phases.quietstar",
    "experts": "agent_forge.forge.phases.experts",
    "curriculum": "agent_forge.forge.phases.curriculum",
    "bitnet": "agent_forge.forge.phases.bitnet",
    "baking": "agent_forge.forge.phases.baking",
    "compression": "agent_forge.forge.phases.compression",
}
# What the specification calls some of them.
ALIASES = {"forge": "curriculum", "edge": "experts", "final_compression": "compression"}


def phase(name: str) -> Phase:
    """The phase of that name or alias, or the `PHASE` of the module with that dotted name. Raises UsageError."""
    name = ALIASES.get(name, name)
    if name not in MODULES and "." not in name:
        near = nearest(name, MODULES)
        fix = f"Did you mean {near!r}?" if near else f"The phases are {', '.join(MODULES)}, or a module of yours"
        raise UsageError(f"there is no phase {name!r}", fix=fix)
    try:
        kind: Phase = import_module(MODULES.get(name, name)).PHASE
    except (ImportError, AttributeError, TypeError, ValueError) as error:  # the last two: for names like "..x" and "."
        raise UsageError(f"the phase {name!r} cannot be loaded: {error}") from error
    return kind
