"""Events between servers, through Redis or, without it, through their PostgreSQL database.

Two servers behind one address share the database and this: a page that one of them serves is told at once what the
other does, the events of a run are read by whichever server is asked, and a request about a run reaches the server that
has it. The carrier may be away: servers go on without it, pages then learn from the database every two seconds, and
what was published meanwhile is sent when it is back, as far as there is room for it.
"""

from __future__ import annotations

import logging
import queue
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol
from urllib.parse import urlsplit

from agent_forge.database import is_url
from agent_forge.errors import StoreError, UsageError
from agent_forge.server.hub import Event

REDIS = ("redis", "rediss", "unix")
WAITING = 10_000  # events that may wait for the carrier
TOGETHER = 100  # events in one request to it
RETRY_S = 1.0
LAST_S = 10.0  # for waiting events when the server shuts down

log = logging.getLogger("agent_forge.server")


class Carrier(Protocol):
    """What carries events between servers. Everything raises StoreError while it is away."""

    where: str

    def send(self, sender: str, items: Sequence[tuple[str, Event]]) -> None: ...
    def begin(self, topic: str) -> None: ...
    def has_begun(self, topic: str) -> bool: ...
    def past(self, topic: str, after: str) -> list[tuple[str, Event]]: ...
    def subscribe(self) -> None: ...
    def heard(self, timeout_s: float) -> list[tuple[str, str, Event]]: ...
    def close(self) -> None: ...


def carrier_at(url: str) -> Carrier:
    """The carrier at a redis:// or postgresql:// URL, not contacted yet. Raises UsageError, MissingExtraError."""
    if is_url(url):
        from agent_forge.server.postgres_events import PostgresCarrier

        return PostgresCarrier(url)
    scheme = urlsplit(url).scheme
    if scheme not in REDIS:
        fix = "Write redis://[user:password@]host[:port]/number or postgresql://…"
        raise UsageError(f"events cannot go to {scheme or 'a place without scheme'}://…", fix=fix)
    from agent_forge.server.redis_events import RedisCarrier

    return RedisCarrier(url)


class ServerEvents:
    """A connection to the other servers. `deliver(topic, event)` is called for what they publish."""

    def __init__(self, url: str, deliver: Callable[[str, Event], None]) -> None:
        """Raises UsageError for a URL that cannot be used; MissingExtraError."""
        self._carrier = carrier_at(url)
        self._deliver = deliver
        self._name = uuid.uuid4().hex  # whose events these are: our own are delivered already
        self._waiting: queue.Queue[tuple[str, Event] | None] = queue.Queue(WAITING)
        self._ended = threading.Event()
        self._reachable = True
        self.dropped = 0  # events that found no room to wait
        self._subscribed = threading.Event()
        self._threads = [threading.Thread(target=work, name="agent-forge-events", daemon=True)
                         for work in (self._send_all, self._listen)]  # fmt: skip
        for thread in self._threads:
            thread.start()

    def publish(self, topic: str, event: Event) -> None:
        """Sends an event to the other servers, without waiting."""
        try:
            self._waiting.put_nowait((topic, event))
        except queue.Full:
            self.dropped += 1

    def begin(self, topic: str) -> None:
        """Tells other servers that events of this topic will come; waits until they can know."""
        with suppress(StoreError):
            self._carrier.begin(topic)

    def has_begun(self, topic: str) -> bool:
        """Whether a server has begun this topic within the last day."""
        with suppress(StoreError):
            return self._carrier.has_begun(topic)
        return False

    def past(self, topic: str, after: str = "") -> list[tuple[str, Event]]:
        """The kept events of a topic, each with its place, later than the place `after`. Raises StoreError."""
        return self._carrier.past(topic, after)

    # In threads of their own

    def _send_all(self) -> None:
        item: tuple[str, Event] | None = ("", {})
        while item is not None and not self._ended.is_set():
            items = [item := self._waiting.get()]
            with suppress(queue.Empty):
                while item is not None and len(items) < TOGETHER:
                    items.append(item := self._waiting.get_nowait())
            while not self._sent([one for one in items if one is not None]) and not self._ended.wait(RETRY_S):
                pass

    def _sent(self, items: list[tuple[str, Event]]) -> bool:
        if items:
            try:
                self._carrier.send(self._name, items)
            except StoreError as error:
                self._is_away(error)
                return False
        self._reachable = True
        return True

    def _listen(self) -> None:
        while not self._ended.is_set():
            try:
                self._carrier.subscribe()
                self._subscribed.set()
                while not self._ended.is_set():
                    for sender, topic, event in self._carrier.heard(1.0):
                        if sender != self._name:
                            self._deliver(topic, event)
            except StoreError as error:
                self._is_away(error)
                self._ended.wait(RETRY_S)
            except ValueError:  # closed, by us
                return

    def _is_away(self, error: Exception) -> None:
        if self._reachable and not self._ended.is_set():
            log.warning("events do not reach other servers: %s", error)
        self._reachable = False

    def close(self) -> None:
        """Sends what waits, if the carrier takes it now, and ends."""
        patience = LAST_S if self._reachable else 0.1
        with suppress(queue.Full):
            self._waiting.put(None, timeout=patience)
        self._threads[0].join(patience)
        self._ended.set()
        for thread in self._threads:
            thread.join(LAST_S)
        self._carrier.close()
