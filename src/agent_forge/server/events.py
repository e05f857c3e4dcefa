"""Events between servers, by the URL of a Redis server: pub/sub for pages that are open, a stream for each run.

Two servers behind one address share the database and this: a page that one of them serves is told at once what the
other does, and the events of a run are read from its stream by whichever server is asked. Redis may be away: servers
go on without it, pages then learn from the database every two seconds, and what was published meanwhile is sent when
Redis is back, as far as there is room for it.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast
from urllib.parse import urlsplit

from agent_forge.errors import MissingExtraError, StoreError, UsageError
from agent_forge.server.hub import Event

SCHEMES = ("redis", "rediss", "unix")
LIVE = "agent-forge:live"  # the channel of all events
STREAM = "agent-forge:events:"  # before the topic; the stream of what is kept of it
BEGUN = "agent-forge:begun:"  # before the topic; there from the moment that its first event may come
KEPT = "run:"  # topics whose events are kept
MOST = 20_000  # events of a stream
DAY_S = 86_400  # how long a stream is kept after its last event
WAITING = 10_000  # events that may wait for Redis
TOGETHER = 100  # events in one request to Redis
RETRY_S = 1.0
LAST_S = 10.0  # for waiting events when the server shuts down

log = logging.getLogger("agent_forge.server")


class RedisEvents:
    """A connection to the other servers. `deliver(topic, event)` is called for what they publish."""

    def __init__(self, url: str, deliver: Callable[[str, Event], None]) -> None:
        """Raises UsageError for a URL that is not of Redis; MissingExtraError."""
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES:
            fix = "Write redis://[user:password@]host[:port]/number"
            raise UsageError(f"events cannot go to {parts.scheme or 'a place without scheme'}://…", fix=fix)
        try:
            import redis
        except ImportError as error:
            raise MissingExtraError("events in Redis", "scale") from error
        self.where = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
        self._fault = redis.RedisError
        client = redis.Redis.from_url(url, socket_connect_timeout=5, decode_responses=True)
        self._client = cast(Any, client)  # which is typed in part
        self._deliver = deliver
        self._name = uuid.uuid4().hex  # whose events these are: our own are delivered already
        self._waiting: queue.Queue[tuple[str, Event] | None] = queue.Queue(WAITING)
        self._ended = threading.Event()
        self._reachable = True
        self.dropped = 0  # events that found no room to wait
        self._listening = self._client.pubsub(ignore_subscribe_messages=True)
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
        with suppress(self._fault):
            self._client.set(BEGUN + topic, 1, ex=DAY_S)

    def has_begun(self, topic: str) -> bool:
        """Whether a server has begun this topic within the last day."""
        with suppress(self._fault):
            return bool(self._client.exists(BEGUN + topic))
        return False

    def past(self, topic: str, after: str = "-") -> list[tuple[str, Event]]:
        """The kept events of a topic, with their places in its stream, later than the place `after`. Raises
        StoreError."""
        try:
            rows = self._client.xrange(STREAM + topic, min=after if after == "-" else f"({after}")
        except self._fault as error:
            raise StoreError(f"Redis cannot be reached: {error}", where=self.where) from error
        return [(place, json.loads(fields["event"])) for place, fields in rows]

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
        try:
            with self._client.pipeline(transaction=True) as pipe:
                for topic, event in items:
                    body = json.dumps(event)
                    if topic.startswith(KEPT):  # first, so that whoever is told finds it
                        pipe.xadd(STREAM + topic, {"event": body}, maxlen=MOST)
                        pipe.expire(STREAM + topic, DAY_S)
                    pipe.publish(LIVE, json.dumps([self._name, topic]) + "\n" + body)
                pipe.execute()
        except self._fault as error:
            self._is_away(error)
            return False
        self._reachable = True
        return True

    def _listen(self) -> None:
        while not self._ended.is_set():
            try:
                self._listening.subscribe(LIVE)
                self._subscribed.set()
                while not self._ended.is_set():
                    self._receive(self._listening.get_message(timeout=1.0))
            except self._fault as error:
                self._is_away(error)
                self._ended.wait(RETRY_S)
            except (ValueError, OSError):  # closed, by us
                return

    def _receive(self, message: Mapping[str, Any] | None) -> None:
        if message is None:
            return
        head, _, body = str(message["data"]).partition("\n")
        with suppress(ValueError, TypeError):  # not one of ours
            name, topic = json.loads(head)
            if name != self._name:
                self._deliver(topic, json.loads(body))

    def _is_away(self, error: Exception) -> None:
        if self._reachable and not self._ended.is_set():
            log.warning("Redis at %s cannot be reached: %s", self.where, error)
        self._reachable = False

    def close(self) -> None:
        """Sends what waits, if Redis takes it now, and ends."""
        patience = LAST_S if self._reachable else 0.1
        with suppress(queue.Full):
            self._waiting.put(None, timeout=patience)
        self._threads[0].join(patience)
        self._ended.set()
        for thread in self._threads:
            thread.join(LAST_S)
        self._listening.close()
        self._client.close()
