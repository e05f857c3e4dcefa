"""What the routes share: where things are kept, opened when they are first needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_forge.home import home as home_folder
from agent_forge.server.hub import Hub
from agent_forge.server.settings import ServerSettings
from agent_forge.settings import trace_store

if TYPE_CHECKING:
    from agent_forge.forge.registry import Registry
    from agent_forge.runtime import Journal
    from agent_forge.traces import Recorder, Store

LAST = ("recorder", "telemetry", "registry", "traces")


@dataclass
class Context:
    """One server. Routes get it when they are made; what is heavy is opened by the first request that needs it.

    `parts` holds what a route module keeps for the life of the server, by name (see `part`); those with a `close`
    are closed with the server.
    """

    settings: ServerSettings
    hub: Hub = field(default_factory=Hub)
    parts: dict[str, Any] = field(default_factory=dict)
    _turn: threading.RLock = field(default_factory=threading.RLock, repr=False)

    @property
    def home(self) -> Path:
        """The home folder; made if it is not there."""
        place = self.settings.home
        return home_folder(None if place is not None and "://" in place else place)

    @property
    def place(self) -> str | Path:
        """Where traces and journal are kept: the database URL given as home, else the home folder."""
        place = self.settings.home
        return place if place is not None and "://" in place else self.home

    def part(self, name: str, make: Callable[[], Any]) -> Any:
        """What is kept under `name`, made by the first who asks. From any thread."""
        if (found := self.parts.get(name)) is not None:  # without waiting for another that is being made
            return found
        with self._turn:
            if name not in self.parts:
                self.parts[name] = make()
            return self.parts[name]

    @property
    def traces(self) -> Store:
        """The trace store."""
        found: Store = self.part("traces", self._open_traces)
        return found

    def _open_traces(self) -> Store:
        from agent_forge.traces import Store

        return Store.open(trace_store(self.place))

    @property
    def journal(self) -> Journal:
        """The journal of runs."""
        journal: Journal = self.part("journal", self._open_journal)
        return journal

    def _open_journal(self) -> Journal:
        from agent_forge.runtime import Journal

        return Journal.open(self.place)

    @property
    def registry(self) -> Registry:
        """The model registry."""

        def opened() -> Registry:
            from agent_forge.forge.registry import Registry

            return Registry(self.home)

        found: Registry = self.part("registry", opened)
        return found

    @property
    def recorder(self) -> Recorder:
        """Records the server's own work into the trace store."""

        def made() -> Recorder:
            from agent_forge.traces import Recorder

            return Recorder(self.traces, join=self.part("telemetry", self._telemetry) if endpoint else None)

        endpoint = self.settings.otlp_endpoint

        found: Recorder = self.part("recorder", made)
        return found

    def _telemetry(self) -> Any:
        from agent_forge.server.telemetry import provider

        return provider(self.settings.otlp_endpoint or "")

    def close(self) -> None:
        """Closes what was opened, what the others use last. Without the lock: they may ask for it until then."""
        used = [name for name in LAST if name in self.parts]
        for name in [*(name for name in reversed(list(self.parts)) if name not in LAST), *used]:
            part = self.parts.get(name)
            close = getattr(part, "close", None) or getattr(part, "shutdown", None)  # OpenTelemetry's word
            if close is not None:
                close()
        self.parts.clear()
