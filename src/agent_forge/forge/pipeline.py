"""The pipeline: phases as tasks of a Plan, run by the same executor as an agent's tool calls.

A phase is addressed by its content: name, version, resolved configuration, seed, and the digests of its inputs and
data. Work finished under that key is not repeated: a second run skips everything, and a killed one resumes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent_forge.config import as_dict, load, nearest, option
from agent_forge.config import build as build_config
from agent_forge.errors import ConfigError, UsageError
from agent_forge.forge.checkpoint import NAME, Checkpoint
from agent_forge.forge.phases import ALIASES, Phase, phase
from agent_forge.plans import Plan, PlanInvalid, Task

PRESETS = Path(__file__).with_name("presets")


@dataclass(frozen=True)
class PipelineStep:
    """One phase of a pipeline; `after` names the phases whose checkpoints it takes. `resources` (cpus, gpus, memory in
    bytes) is what it takes of a Ray cluster; local processes do not ask for it."""

    phase: str
    after: tuple[str, ...] = ()
    config: dict[str, Any] = option({})
    resources: dict[str, float] = option({})


@dataclass(frozen=True)
class Pipeline:
    """Phases by name. `start` holds model folders or digests for the phases that come first."""

    name: str
    phases: dict[str, PipelineStep]
    start: tuple[str, ...] = ()
    seed: int = option(0, at_least=0)
    parallel: int = option(1, help="Maximum number of phases at once, memory permitting", at_least=1)

    def plan(self) -> Plan:
        """The pipeline as a Plan: one task per phase."""
        return Plan(
            Task(name, phase(step.phase).about, action=step.phase, depends_on=step.after)
            for name, step in self.phases.items()
        )


def read_pipeline(name: str, sets: Iterable[str] = ()) -> Pipeline:
    """A preset (`nano`, `small`, `full`, `planner`) or a pipeline file, checked. Raises ConfigError or UsageError."""
    path = Path(name)
    if not path.is_file():
        presets = sorted(file.stem for file in PRESETS.glob("*.yaml"))
        if name not in presets:
            near = nearest(name, presets)
            fix = f"Did you mean {near!r}?" if near else f"The presets are {', '.join(presets)}"
            raise UsageError(f"{name!r} is neither a preset nor a file", fix=fix)
        path = PRESETS / f"{name}.yaml"
    pipeline = load(Pipeline, path, sets=sets)
    check(pipeline, str(path))
    return pipeline


def check(pipeline: Pipeline, where: str) -> None:
    """Raises ConfigError for a pipeline whose names, configurations or handoffs cannot work."""
    faults = [
        f"{name!r} cannot be part of a folder's name: use letters, digits, . _ and -"
        for name in (pipeline.name, *pipeline.phases)
        if not NAME.fullmatch(name)
    ]
    for name, step in pipeline.phases.items():
        kind = phase(step.phase)
        try:
            build_config(kind.config, step.config, f"phases.{name}.config")
        except ConfigError as error:
            faults.append(str(error))
        low, high = kind.takes.checkpoints
        count = len(step.after) or (len(pipeline.start) if high else 0)
        if not low <= count <= high:
            takes = str(low) if low == high else f"{low} to {high}"
            faults.append(f"phases.{name}: {step.phase!r} takes {takes} checkpoints, and is given {count}")
        faults.extend(_broken_handoffs(pipeline, name, step, kind))
    first = [step for step in pipeline.phases.values() if not step.after]
    if pipeline.start and not any(phase(step.phase).takes.checkpoints[1] for step in first):
        faults.append("start: no phase takes these: each follows another one or takes no checkpoint")
    try:
        pipeline.plan()
    except PlanInvalid as error:  # no phases, unknown names in `after`, cycles
        faults.append(f"phases: {error}")
    if faults:
        raise ConfigError("\n".join(faults), where=where)


def _broken_handoffs(pipeline: Pipeline, name: str, step: PipelineStep, kind: Phase) -> Iterable[str]:
    """Handoffs that cannot succeed, because one phase promises another architecture than the next one takes."""
    for source in step.after:
        if source in pipeline.phases and kind.takes.architectures:
            promised = phase(pipeline.phases[source].phase).promises.architectures
            if promised and not set(promised) & set(kind.takes.architectures):
                takes = " or ".join(kind.takes.architectures)
                yield f"phases.{name}: takes {takes}, and {source!r} promises {' or '.join(promised)}"


@dataclass(frozen=True)
class PhaseReport:
    """How a phase ended: completed, no gain, skipped, failed, or not run."""

    name: str
    state: str
    gate: Mapping[str, Any] | None = None
    checkpoint: str | None = None
    error: str | None = None
    seconds: float | None = None
    traceback: str | None = None  # the file that holds it, where a phase failed

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Report:
    """How a session ended, phase by phase."""

    session: str
    state: str
    phases: tuple[PhaseReport, ...]
    trace: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "phases": [report.as_dict() for report in self.phases]}


def phase_key(does: str, kind: Phase, config: Any, inputs: Sequence[Checkpoint], seed: int) -> str:
    """The content address of a piece of work. `does` is the phase as the pipeline file names it, so that two modules
    that give their phase the same name do not share a key."""
    document = {
        "phase": [ALIASES.get(does, does), kind.name],
        "version": kind.version,
        "config": as_dict(config),
        "inputs": [item.digest for item in inputs],
        "data": dict(kind.data(config)),
        "seed": seed,
    }
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
