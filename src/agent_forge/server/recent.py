"""What is costly to work out and may be a few seconds old is kept for that long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_forge.server.context import Context

KEPT_S = 10.0


class Recent:
    """Values by name, each with the moment at which it becomes too old."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._values: dict[str, tuple[float, Any]] = {}
        self._turns: dict[str, threading.Lock] = {}
        self._turn = threading.Lock()

    def get(self, name: str, make: Callable[[], Any], kept_s: float = KEPT_S) -> Any:
        """The value, made anew where there is none or it is too old; by one thread, for which others wait.

        >>> recent = Recent()
        >>> recent.get("a", lambda: 1), recent.get("a", lambda: 2)
        (1, 1)
        """
        with self._turn:
            turn = self._turns.setdefault(name, threading.Lock())
        with turn:
            until, value = self._values.get(name, (-1.0, None))
            if self._clock() >= until:
                value = make()
                self._values[name] = (self._clock() + kept_s, value)
            return value


def recent(context: Context, name: str, make: Callable[[], Any], kept_s: float = KEPT_S) -> Any:
    """The server's value of that name, at most `kept_s` old."""
    found: Recent = context.part("recent", Recent)
    return found.get(name, make, kept_s)
