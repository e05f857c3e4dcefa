"""Events through Redis: pub/sub for pages that are open, a stream for each run. Needs redis."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast
from urllib.parse import urlsplit

from agent_forge.errors import MissingExtraError, StoreError
from agent_forge.server.hub import Event

LIVE = "agent-forge:live"  # the channel of all events
STREAM = "agent-forge:events:"  # before the topic; the stream of what is kept of it
BEGUN = "agent-forge:begun:"  # before the topic; there from the moment that its first event may come
KEPT = "run:"  # topics whose events are kept
MOST = 20_000  # events of a stream
DAY_S = 86_400  # how long a stream is kept after its last event


class RedisCarrier:
    """A Redis server, for `ServerEvents`."""

    def __init__(self, url: str) -> None:
        try:
            import redis
        except ImportError as error:
            raise MissingExtraError("events in Redis", "scale") from error
        parts = urlsplit(url)
        self.where = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
        self._fault = redis.RedisError
        client = redis.Redis.from_url(url, socket_connect_timeout=5, decode_responses=True)
        self._client = cast(Any, client)  # which is typed in part
        self._listening = self._client.pubsub(ignore_subscribe_messages=True)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except (self._fault, OSError) as error:
            raise StoreError(f"Redis cannot be reached: {error}", where=self.where) from error

    def send(self, sender: str, items: Sequence[tuple[str, Event]]) -> None:
        """Sends events, all or none."""
        with self._reached(), self._client.pipeline(transaction=True) as pipe:
            for topic, event in items:
                body = json.dumps(event)
                if topic.startswith(KEPT):  # first, so that whoever is told finds it
                    pipe.xadd(STREAM + topic, {"event": body}, maxlen=MOST)
                    pipe.expire(STREAM + topic, DAY_S)
                pipe.publish(LIVE, json.dumps([sender, topic]) + "\n" + body)
            pipe.execute()

    def begin(self, topic: str) -> None:
        """Makes `has_begun` true for a day."""
        with self._reached():
            self._client.set(BEGUN + topic, 1, ex=DAY_S)

    def has_begun(self, topic: str) -> bool:
        with self._reached():
            return bool(self._client.exists(BEGUN + topic))

    def past(self, topic: str, after: str) -> list[tuple[str, Event]]:
        """The kept events of a topic, with their places in its stream, later than the place `after`."""
        with self._reached():
            rows = self._client.xrange(STREAM + topic, min=f"({after}" if after else "-")
        return [(place, json.loads(fields["event"])) for place, fields in rows]

    def subscribe(self) -> None:
        with self._reached():
            self._listening.subscribe(LIVE)

    def heard(self, timeout_s: float) -> list[tuple[str, str, Event]]:
        """What servers, this one included, have sent meanwhile: (sender, topic, event)."""
        with self._reached():
            message = self._listening.get_message(timeout=timeout_s)
        if message is None:
            return []
        head, _, body = str(message["data"]).partition("\n")
        with suppress(ValueError, TypeError):  # not one of ours
            sender, topic = json.loads(head)
            return [(sender, topic, json.loads(body))]
        return []

    def close(self) -> None:
        self._listening.close()
        self._client.close()
