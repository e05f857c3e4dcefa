"""What the routes share: stores and settings, opened when they are first needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_forge.database import is_url
from agent_forge.home import home as home_folder
from agent_forge.server.hub import Event, Hub
from agent_forge.server.settings import ServerSettings
from agent_forge.settings import trace_store

if TYPE_CHECKING:
    from agent_forge.forge.registry import Registry
    from agent_forge.runtime import Journal
    from agent_forge.server.events import ServerEvents
    from agent_forge.traces import Recorder, Store

ASK, REPLY = "ask", "reply"  # topics between servers: a request about a run to whoever has it, and what became of it
CLOSED_LAST = ("recorder", "telemetry", "registry", "traces", "events")  # the others use them to the end


@dataclass
class Context:
    """One server. What is expensive is opened by the first request that needs it.

    `parts` holds what the route modules keep for the life of the server, by name (see `part`); parts with a `close`
    method are closed with the server.
    """

    settings: ServerSettings
    hub: Hub = field(default_factory=Hub)
    parts: dict[str, Any] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def __post_init__(self) -> None:
        if self.events is not None:
            self.hub.relay = self.events.publish

    @property
    def events(self) -> ServerEvents | None:
        """The events of other servers, through Redis or the PostgreSQL store; None for a server that is alone."""
        url = self.settings.events or str(trace_store(self.place))
        if self.settings.events is None and not is_url(url):
            return None
        from agent_forge.server.events import ServerEvents

        events: ServerEvents = self.part("events", lambda: ServerEvents(url, self._heard))
        return events

    def _heard(self, topic: str, event: Event) -> None:
        """What another server published: news for readers here, or a question about a run."""
        if topic not in (ASK, REPLY):
            self.hub.deliver(topic, event)
        elif (runs := self.parts.get("runs")) is not None:  # without runs of its own, it is not meant
            runs.heard(topic, event)

    @property
    def home(self) -> Path:
        """The home folder, created if needed."""
        home = self.settings.home
        return home_folder(None if home is not None and "://" in home else home)

    @property
    def place(self) -> str | Path:
        """Where traces and journal are stored: a database URL given as home, else the home folder."""
        home = self.settings.home
        return home if home is not None and "://" in home else self.home

    def part(self, name: str, make: Callable[[], Any]) -> Any:
        """The part called `name`, made on first use. From any thread."""
        if (part := self.parts.get(name)) is not None:  # without waiting while another part is being made
            return part
        with self._lock:
            if name not in self.parts:
                self.parts[name] = make()
            return self.parts[name]

    @property
    def traces(self) -> Store:
        """The trace store."""

        def open_store() -> Store:
            from agent_forge.traces import Store

            return Store.open(trace_store(self.place))

        store: Store = self.part("traces", open_store)
        return store

    @property
    def journal(self) -> Journal:
        """The journal of runs."""

        def open_journal() -> Journal:
            from agent_forge.runtime import Journal

            return Journal.open(self.place)

        journal: Journal = self.part("journal", open_journal)
        return journal

    @property
    def registry(self) -> Registry:
        """The model registry."""

        def open_registry() -> Registry:
            from agent_forge.forge.registry import Registry

            return Registry(self.home)

        registry: Registry = self.part("registry", open_registry)
        return registry

    @property
    def recorder(self) -> Recorder:
        """The recorder of the server's own work, which writes to the trace store."""

        def make_recorder() -> Recorder:
            from agent_forge.server.telemetry import provider
            from agent_forge.traces import Recorder

            endpoint = self.settings.otlp_endpoint
            join = self.part("telemetry", lambda: provider(endpoint)) if endpoint else None
            return Recorder.from_settings(self.traces, mask=self.settings.mask, sample=self.settings.sample, join=join)

        recorder: Recorder = self.part("recorder", make_recorder)
        return recorder

    def close(self) -> None:
        """Closes all parts. Without the lock, since parts may still need each other until they are closed."""
        last = [name for name in CLOSED_LAST if name in self.parts]
        for name in [*(name for name in reversed(list(self.parts)) if name not in CLOSED_LAST), *last]:
            part = self.parts.get(name)
            close = getattr(part, "close", None) or getattr(part, "shutdown", None)  # OpenTelemetry calls it so
            if close is not None:
                close()
        self.parts.clear()
