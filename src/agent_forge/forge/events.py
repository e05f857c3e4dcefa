"""Events of a forge run: a phase started, made progress, finished, brought no gain, failed.

Sinks are plain functions. The JSONL file is always written; TensorBoard and Weights & Biases (offline) are sinks for
those who have them installed.
"""

from __future__ import annotations

import json
import math
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_forge.errors import MissingExtraError

KINDS = ("started", "progress", "finished", "no gain", "skipped", "failed")


@dataclass(frozen=True)
class PhaseEvent:
    """Something that happened to a phase. The fields of a progress event are numbers, by metric name."""

    kind: str
    phase: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    at_s: float = field(default_factory=time.time)

    def as_dict(self) -> dict[str, Any]:
        return {**self.fields, "kind": self.kind, "phase": self.phase, "at_s": self.at_s}


Sink = Callable[[PhaseEvent], None]


class Bus:
    """Delivers events to sinks, in order, in the thread that sends them.

    A sink that raises is removed with a warning: a failing log must not end a training run.
    """

    def __init__(self, *sinks: Sink) -> None:
        self.sinks = list(sinks)
        self._turn = threading.Lock()

    def tell(self, kind: str, phase: str, **fields: Any) -> None:
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is not a kind of event")
        event = PhaseEvent(kind, phase, fields)
        with self._turn:
            for sink in list(self.sinks):
                try:
                    sink(event)
                except Exception as error:
                    self.sinks.remove(sink)
                    warnings.warn(f"an event sink failed and is removed: {error!r}", RuntimeWarning, stacklevel=2)


def jsonl_sink(path: Path) -> Sink:
    """Appends each event as a line, written in one call, so that several processes may share the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b") as file:
        file.seek(-min(1, file.tell()), 2)
        if file.read() not in (b"", b"\n"):  # a killed writer left half a line
            file.write(b"\n")

    def write(event: PhaseEvent) -> None:
        document = {  # JSON has no NaN
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in event.as_dict().items()
        }
        with open(path, "ab", buffering=0) as file:
            file.write(json.dumps(document, default=str).encode() + b"\n")

    return write


def read_events(path: Path) -> list[PhaseEvent]:
    """The events of a JSONL file, without lines torn by a killed writer."""
    return list(_parsed(path.read_bytes())) if path.exists() else []


class Tail:
    """Follows a growing JSONL file: every `read` returns the new events."""

    def __init__(self, path: Path) -> None:
        self.path, self._at = path, 0

    def read(self) -> list[PhaseEvent]:
        """The events completed since the last call."""
        if not self.path.exists():
            return []
        with open(self.path, "rb") as file:
            file.seek(self._at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        return list(_parsed(whole))


def _parsed(data: bytes) -> Iterator[PhaseEvent]:
    for line in data.split(b"\n"):
        try:
            document = json.loads(line)
            kind, phase, at_s = (document.pop(name) for name in ("kind", "phase", "at_s"))
        except (ValueError, KeyError, AttributeError, TypeError):
            continue
        yield PhaseEvent(kind, phase, document, at_s)


def tensorboard_sink(folder: Path) -> Sink:
    """Writes the numbers of progress events as TensorBoard scalars, by phase and step."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise _missing("the TensorBoard log", "tensorboard") from error
    writer = SummaryWriter(str(folder))

    def write(event: PhaseEvent) -> None:
        step = event.fields.get("step")
        if event.kind == "progress" and isinstance(step, int):
            for name, value in _numbers(event).items():
                writer.add_scalar(f"{event.phase}/{name}", value, step)
            writer.flush()

    return write


def wandb_sink(folder: Path, session: str) -> Sink:
    """Writes the numbers of progress events to an offline Weights & Biases run. Nothing leaves the machine."""
    try:
        import wandb  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise _missing("the Weights & Biases log", "wandb") from error
    run = wandb.init(project="agent-forge", name=session, dir=str(folder), mode="offline")

    def write(event: PhaseEvent) -> None:
        if event.kind == "progress":
            figures = {**_numbers(event), "step": event.fields.get("step")}  # wandb's own step counts calls
            run.log({f"{event.phase}/{name}": value for name, value in figures.items()})

    return write


def _missing(feature: str, package: str) -> MissingExtraError:
    """These packages are in none of our extras: nothing needs them."""
    error = MissingExtraError(feature, "forge")
    error.fix = f"pip install {package}"
    return error


def _numbers(event: PhaseEvent) -> dict[str, float]:
    """The figures of an event by name, those of an evaluation as `evaluation/name`."""
    flat: dict[str, Any] = {}
    for name, value in event.fields.items():
        parts = {f"{name}/{part}": figure for part, figure in value.items()} if isinstance(value, dict) else {}
        flat |= parts or {name: value}
    return {
        name: float(value)
        for name, value in flat.items()
        if name not in ("step", "steps") and isinstance(value, (int, float)) and not isinstance(value, bool)
    }
