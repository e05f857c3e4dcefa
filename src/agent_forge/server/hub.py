"""Publish and subscribe, by topic."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

LONGEST = 1_000  # events that may wait for a slow reader; then the oldest are dropped and counted

Event = Mapping[str, Any]


class Subscription:
    """The unread events of one reader. Use it in a `with` block, and iterate over it."""

    def __init__(self, hub: Hub, topics: tuple[str, ...]) -> None:
        self._hub = hub
        self.topics = topics
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque(maxlen=LONGEST)
        self._news = asyncio.Event()
        self.missed = 0  # events dropped because this reader was too slow

    def put(self, event: Event) -> None:
        """Called by the hub, in whatever thread publishes."""
        if len(self._events) == LONGEST:
            self.missed += 1
        self._events.append(event)
        self._loop.call_soon_threadsafe(self._news.set)

    async def next(self, timeout_s: float | None = None) -> Event | None:
        """The next event, or None after the timeout."""
        while not self._events:
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), timeout_s)
            except asyncio.TimeoutError:
                return None
        return self._events.popleft()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self.next()) is not None:
            yield event

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *exception: object) -> None:
        self._hub.leave(self)


class Hub:
    """Topics are plain names: `runs` (events of all runs), `run:ID` (of one), `traces` (stored spans), `forge` (events
    of a forge run). An event is a mapping that can be written as JSON; `publish` adds its topic.

    >>> async def example():
    ...     hub = Hub()
    ...     with hub.subscribe("runs") as news:
    ...         hub.publish("runs", {"kind": "run_started"})
    ...         return await news.next()
    >>> asyncio.run(example())
    {'topic': 'runs', 'kind': 'run_started'}
    """

    def __init__(self) -> None:
        self._readers: dict[str, set[Subscription]] = {}
        self._lock = threading.Lock()
        self.relay: Callable[[str, Event], None] | None = None  # tells other servers what is published here

    def subscribe(self, *topics: str) -> Subscription:
        """A subscription to these topics, on the running event loop."""
        reader = Subscription(self, topics)
        with self._lock:
            for topic in topics:
                self._readers.setdefault(topic, set()).add(reader)
        return reader

    def leave(self, reader: Subscription) -> None:
        """Ends a subscription."""
        with self._lock:
            for topic in reader.topics:
                readers = self._readers.get(topic, set())
                readers.discard(reader)
                if not readers:
                    self._readers.pop(topic, None)

    def publish(self, topic: str, event: Event) -> None:
        """Sends an event to all subscribers of a topic. From any thread, and without waiting."""
        if self.relay is not None:
            self.relay(topic, event)
        self.deliver(topic, event)

    def deliver(self, topic: str, event: Event) -> None:
        """Sends an event to the subscribers here alone."""
        with self._lock:
            readers = list(self._readers.get(topic, ()))
        for reader in readers:
            reader.put({"topic": topic, **event})

    @property
    def readers(self) -> int:
        """The number of subscriptions."""
        with self._lock:
            return len(set().union(*self._readers.values())) if self._readers else 0
