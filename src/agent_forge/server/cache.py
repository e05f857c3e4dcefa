"""A cache for what is expensive to compute and may be a few seconds old."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_forge.server.context import Context

MAX_AGE_S = 10.0


class TimedCache:
    """Values by name, each with the time at which it expires."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._values: dict[str, tuple[float, Any]] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, name: str, compute: Callable[[], Any], max_age_s: float = MAX_AGE_S) -> Any:
        """The value, computed if it is missing or expired; by one thread, while the others wait for it.

        >>> cache = TimedCache()
        >>> cache.get("a", lambda: 1), cache.get("a", lambda: 2)
        (1, 1)
        """
        with self._lock:
            lock = self._locks.setdefault(name, threading.Lock())
        with lock:
            expires, value = self._values.get(name, (-1.0, None))
            if self._clock() >= expires:
                value = compute()
                self._values[name] = (self._clock() + max_age_s, value)
            return value


def cached(context: Context, name: str, compute: Callable[[], Any], max_age_s: float = MAX_AGE_S) -> Any:
    """The server's value of that name, at most `max_age_s` old."""
    cache: TimedCache = context.part("cache", TimedCache)
    return cache.get(name, compute, max_age_s)
