"""What happens during a forge run, told to whoever listens: phase started, progress, finished, no gain, failed.

Sinks are plain functions. Only the JSONL file is always there; TensorBoard and Weights & Biases (offline) are sinks
for those who have them installed.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_forge.errors import MissingExtraError

KINDS = ("started", "progress", "finished", "no gain", "skipped", "failed")


@dataclass(frozen=True)
class Event:
    """One thing that happened to a phase. The fields of a progress event are numbers, by metric name."""

    kind: str
    phase: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    at_s: float = field(default_factory=time.time)

    def as_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "phase": self.phase, "at_s": self.at_s, **self.fields}


Sink = Callable[[Event], None]


class Bus:
    """Delivers events to sinks, in order, in the thread that tells them."""

    def __init__(self, *sinks: Sink) -> None:
        self.sinks = list(sinks)
        self._turn = threading.Lock()

    def tell(self, kind: str, phase: str, **fields: Any) -> None:
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is not a kind of event")
        event = Event(kind, phase, fields)
        with self._turn:
            for sink in self.sinks:
                sink(event)


def jsonl_sink(path: Path) -> Sink:
    """Appends each event as a line. A line is written with one call, so several processes may share the file."""
    path.parent.mkdir(parents=True, exist_ok=True)

    def write(event: Event) -> None:
        with open(path, "ab", buffering=0) as file:
            file.write(json.dumps(event.as_dict(), default=str).encode() + b"\n")

    return write


def read_events(path: Path) -> list[Event]:
    """The events of a JSONL file; a torn last line (the writer was killed) is left out."""
    events = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            document = json.loads(line)
        except ValueError:
            continue
        events.append(Event(document.pop("kind"), document.pop("phase"), at_s=document.pop("at_s"), fields=document))
    return events


def tensorboard_sink(folder: Path) -> Sink:
    """Writes the numbers of progress events as TensorBoard scalars, by phase and step."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtraError("the TensorBoard log", "forge") from error
    writer = SummaryWriter(str(folder))

    def write(event: Event) -> None:
        step = event.fields.get("step")
        if event.kind == "progress" and isinstance(step, int):
            for name, value in _numbers(event).items():
                writer.add_scalar(f"{event.phase}/{name}", value, step)
            writer.flush()

    return write


def wandb_sink(folder: Path, session: str) -> Sink:
    """Writes the numbers of progress events to an offline Weights & Biases run. Nothing leaves the machine."""
    try:
        import wandb
    except ImportError as error:
        raise MissingExtraError("the Weights & Biases log", "forge") from error
    run = wandb.init(project="agent-forge", name=session, dir=str(folder), mode="offline")

    def write(event: Event) -> None:
        if event.kind == "progress":
            run.log({f"{event.phase}/{name}": value for name, value in _numbers(event).items()})

    return write


def _numbers(event: Event) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in event.fields.items()
        if name != "step" and isinstance(value, (int, float)) and not isinstance(value, bool)
    }
