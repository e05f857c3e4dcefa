"""A circuit breaker: after several failures in a row an agent gets no tasks for a while, then a single probe."""

from __future__ import annotations

import time
from collections.abc import Callable


class CircuitBreaker:
    """Closed (normal) until `failures` in a row, then open for `cooldown_s`, then half-open: one probe may pass.

    If the probe succeeds it closes, if it fails it opens for another `cooldown_s`.

    >>> now = [0.0]
    >>> breaker = CircuitBreaker(failures=2, cooldown_s=60, clock=lambda: now[0])
    >>> breaker.record(False); breaker.record(False); breaker.state
    'open'
    >>> now[0] = 60.0
    >>> breaker.state, breaker.is_free
    ('half_open', True)
    """

    def __init__(
        self, failures: int = 5, cooldown_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.failures = failures
        self.cooldown_s = cooldown_s
        self._clock = clock
        self._in_a_row = 0
        self._opened_s: float | None = None
        self._probing = False

    @property
    def state(self) -> str:
        """`closed`, `open` or `half_open`."""
        if self._opened_s is None:
            return "closed"
        return "open" if self._clock() < self._opened_s + self.cooldown_s else "half_open"

    @property
    def is_free(self) -> bool:
        """Whether a task may pass now: not while open, and while half-open only if no probe is running."""
        state = self.state
        return state == "closed" or (state == "half_open" and not self._probing)

    @property
    def retry_s(self) -> float:
        """Seconds until a probe may pass; 0 unless open."""
        if self._opened_s is None:
            return 0.0
        return max(0.0, self._opened_s + self.cooldown_s - self._clock())

    def begin(self) -> None:
        """Lets a task pass; in the half-open state it is the probe."""
        self._probing = self.state == "half_open"

    def record(self, success: bool | None) -> None:
        """Records how a task ended; None (cancelled) says nothing about the agent."""
        was_probe, self._probing = self._probing, False
        if success is None:
            return
        if success:
            self._in_a_row, self._opened_s = 0, None
            return
        self._in_a_row += 1
        if was_probe or self._in_a_row >= self.failures:
            self._opened_s = self._clock()
