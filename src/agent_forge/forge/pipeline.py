"""The pipeline: phases as tasks of a Plan, run by the executor that runs an agent's tool calls.

A phase is addressed by its content: its name, version, resolved configuration, seed, and the digests of its inputs and
data. What was finished under that key is not done again, so a second run skips everything and a killed one goes on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_forge.config import as_dict, load, nearest, option
from agent_forge.config import build as build_config
from agent_forge.errors import ConfigError, UsageError
from agent_forge.forge.checkpoint import NAME, Checkpoint
from agent_forge.forge.phases import Phase, phase
from agent_forge.plans import Plan, PlanInvalid, Task

PRESETS = Path(__file__).with_name("presets")


@dataclass(frozen=True)
class Step:
    """One phase of a pipeline, with what it waits for and takes its checkpoints from."""

    phase: str
    after: tuple[str, ...] = ()
    config: dict[str, Any] = option({})


@dataclass(frozen=True)
class Pipeline:
    """Phases by name. `start` are model folders or digests for the phases that wait for nothing."""

    name: str
    phases: dict[str, Step]
    start: tuple[str, ...] = ()
    seed: int = option(42, at_least=0)
    parallel: int = option(1, help="most phases at once, as far as memory holds them", at_least=1)

    def plan(self) -> Plan:
        """The pipeline as a Plan: one task a phase."""
        return Plan(
            Task(name, phase(step.phase).about, action=step.phase, depends_on=step.after)
            for name, step in self.phases.items()
        )


def read_pipeline(name: str, sets: Iterable[str] = ()) -> Pipeline:
    """A preset (`nano`, `small`, `full`) or a pipeline file, checked whole. Raises ConfigError or UsageError."""
    path = Path(name)
    if not path.is_file():
        presets = sorted(file.stem for file in PRESETS.glob("*.yaml"))
        if name not in presets:
            near = nearest(name, presets)
            fix = f"did you mean {near!r}?" if near else f"the presets are {', '.join(presets)}"
            raise UsageError(f"{name!r} is neither a preset nor a file", fix=fix)
        path = PRESETS / f"{name}.yaml"
    pipeline = load(Pipeline, path, sets=sets)
    check(pipeline, str(path))
    return pipeline


def check(pipeline: Pipeline, where: str) -> None:
    """Refuses a pipeline that cannot work, before anything is done: names, configurations, and what is handed on."""
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
        given = len(step.after) or (len(pipeline.start) if high else 0)
        if not low <= given <= high:
            wanted = str(low) if low == high else f"{low} to {high}"
            faults.append(f"phases.{name}: {step.phase!r} takes {wanted} checkpoints, and is given {given}")
        faults.extend(_broken_handoffs(pipeline, name, step, kind))
    if pipeline.start and not any(phase(step.phase).takes.checkpoints[1] for step in _first(pipeline)):
        faults.append("start: no phase takes what is named there: each waits for another, or begins from nothing")
    try:
        pipeline.plan()
    except PlanInvalid as error:  # no phases, unknown names in `after`, cycles
        faults.append(f"phases: {error}")
    if faults:
        raise ConfigError("\n".join(faults), where=where)


def _first(pipeline: Pipeline) -> list[Step]:
    """The phases that wait for nothing."""
    return [step for step in pipeline.phases.values() if not step.after]


def _broken_handoffs(pipeline: Pipeline, name: str, step: Step, kind: Phase) -> Iterable[str]:
    """Handoffs that cannot succeed, by what the phases promise and take."""
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

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "state": self.state,
            "gate": self.gate,
            "checkpoint": self.checkpoint,
            "error": self.error,
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class Report:
    """How a session ended."""

    session: str
    state: str
    phases: tuple[PhaseReport, ...]
    trace: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "session": self.session,
            "state": self.state,
            "phases": [report.as_dict() for report in self.phases],
            "trace": self.trace,
        }


def phase_key(does: str, kind: Phase, config: Any, inputs: Sequence[Checkpoint], seed: int) -> str:
    """The content address of a piece of work. `does` is the phase as the pipeline names it, so that two modules which
    call their phase by the same name are two phases."""
    document = {
        "phase": [does, kind.name],
        "version": kind.version,
        "config": as_dict(config),
        "inputs": [item.digest for item in inputs],
        "data": dict(kind.data(config)),
        "seed": seed,
    }
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
