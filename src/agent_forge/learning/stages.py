"""A training run as the dashboard shows it: a session of the registry whose phases are the stages of the run.

Events go to `events.jsonl` in the session's folder, and to TensorBoard's files beside it where that is installed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from agent_forge.errors import MissingExtraError
from agent_forge.forge.events import Bus, jsonl_sink, tensorboard_sink
from agent_forge.forge.registry import Registry


class RunStages:
    """The stages of a run and their events."""

    def __init__(self, registry: Registry, session: str) -> None:
        self.registry, self.session = registry, session
        self.folder: Path = registry.home / "sessions" / session
        self.bus = Bus(jsonl_sink(self.folder / "events.jsonl"))
        with suppress(MissingExtraError):
            self.bus.sinks.append(tensorboard_sink(self.folder / "tensorboard"))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """A stage at work."""
        started = time.time()
        self.registry.record_phase(self.session, name, state="running", started_s=started)
        try:
            yield
        except BaseException as error:
            state = "paused" if isinstance(error, KeyboardInterrupt) else "failed"
            self.registry.record_phase(self.session, name, state=state, error=str(error), ended_s=time.time())
            raise
        self.registry.record_phase(self.session, name, state="completed", ended_s=time.time())

    def judged(self, stage: str, gate: Mapping[str, Any], checkpoint: str) -> None:
        """What a stage ended with: the verdict on it, and the digest of what was registered."""
        self.registry.record_phase(
            self.session, stage, state="completed", gate=dict(gate), checkpoint=checkpoint, ended_s=time.time()
        )

    def tell(self, stage: str, **fields: Any) -> None:
        """Passes figures of a stage on."""
        self.bus.tell("progress", stage, **fields)


@contextmanager
def shown_as_session(
    home: str | os.PathLike[str] | None, session: str, name: str, steps: Mapping[str, int], seed: int
) -> Iterator[RunStages]:
    """A session while the block runs; the same name continues it. `steps` has the stages in order, and their length."""
    registry = Registry(home)
    before = [None, *steps]
    phases = {
        stage: {"phase": stage, "after": [earlier] if earlier else [], "config": {"steps": count}}
        for earlier, (stage, count) in zip(before, steps.items(), strict=False)
    }
    registry.start_session(session, {"name": name, "seed": seed, "parallel": 1, "phases": phases})
    try:
        yield RunStages(registry, session)
    except BaseException as error:
        registry.end_session(session, "paused" if isinstance(error, KeyboardInterrupt) else "failed")
        raise
    registry.end_session(session, "completed")
