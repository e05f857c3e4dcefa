"""When a failed attempt is tried again, and how long to wait before it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from agent_forge.errors import UsageError


@dataclass(frozen=True, slots=True)
class Retry:
    """Exponential backoff with jitter.

    `attempts` counts the first try too, so `Retry(1)` never retries. Before attempt n+1 it waits
    `first_s * factor**(n-1)`, at most `longest_s`, spread evenly over plus and minus `jitter` of it, so that tasks that
    failed together do not come back together. `on` limits the retry to these exceptions.

    >>> Retry(4, first_s=0.1, jitter=0.0).delays()
    [0.1, 0.2, 0.4]
    """

    attempts: int = 3
    first_s: float = 0.2
    factor: float = 2.0
    longest_s: float = 30.0
    jitter: float = 0.5
    on: tuple[type[BaseException], ...] = (Exception,)

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise UsageError(f"Retry: attempts must be at least 1, got {self.attempts}")
        if self.first_s < 0 or self.factor < 1 or self.longest_s < 0 or not 0 <= self.jitter <= 1:
            raise UsageError(
                f"Retry: first_s {self.first_s}, factor {self.factor}, longest_s {self.longest_s} and jitter "
                f"{self.jitter} do not fit together",
                fix="Use first_s and longest_s of at least 0, factor of at least 1, jitter from 0 to 1",
            )

    def delay_s(self, attempt: int, rng: random.Random) -> float:
        """Seconds to wait after attempt number `attempt` (from 1) failed."""
        plain = min(self.longest_s, self.first_s * self.factor ** min(attempt - 1, 64))
        return plain * (1.0 + self.jitter * rng.uniform(-1.0, 1.0)) if self.jitter else plain

    def delays(self, rng: random.Random | None = None) -> list[float]:
        """The waits of a task that never succeeds."""
        rng = rng or random.Random(0)
        return [self.delay_s(attempt, rng) for attempt in range(1, self.attempts)]


ONCE = Retry(1)
