"""Events for whoever looks on: publish by topic, subscribe by topic."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any

LONGEST = 1_000  # events that wait for one slow reader; older ones are dropped, and the reader is told how many

Event = Mapping[str, Any]


class Subscription:
    """What one reader has not read yet. Use it in a `with` block; iterate over it for the events."""

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
        """The next event; None when none came in time."""
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
    """Topics are plain names: `runs` (every run's events), `run:ID` (one run's), `traces` (what the intake stored),
    `forge` (what a forge run tells). An event is a mapping that can be written as JSON; `publish` adds its topic.

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
        self._turn = threading.Lock()

    def subscribe(self, *topics: str) -> Subscription:
        """A subscription to these topics, on the running event loop."""
        reader = Subscription(self, topics)
        with self._turn:
            for topic in topics:
                self._readers.setdefault(topic, set()).add(reader)
        return reader

    def leave(self, reader: Subscription) -> None:
        """Ends a subscription."""
        with self._turn:
            for topic in reader.topics:
                readers = self._readers.get(topic, set())
                readers.discard(reader)
                if not readers:
                    self._readers.pop(topic, None)

    def publish(self, topic: str, event: Event) -> None:
        """Tells everyone who has subscribed to the topic. From any thread; nobody is waited for."""
        with self._turn:
            readers = list(self._readers.get(topic, ()))
        for reader in readers:
            reader.put({"topic": topic, **event})

    @property
    def readers(self) -> int:
        """How many subscriptions there are."""
        with self._turn:
            return len(set().union(*self._readers.values())) if self._readers else 0
