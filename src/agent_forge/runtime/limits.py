"""Concurrency, rates and retries: for all tasks together and for each tool."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from agent_forge.errors import UsageError

ANY = "*"  # the rules of every tool that has none of its own


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


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `calls` starts in any window of `per_s` seconds (a sliding window, so a burst is `calls` and no more)."""

    calls: int
    per_s: float = 1.0

    def __post_init__(self) -> None:
        if self.calls < 1 or not self.per_s > 0:
            raise UsageError(f"Rate: {self.calls} calls in {self.per_s} s is not a rate", fix="Use positive numbers")

    @classmethod
    def of(cls, rate: Rate | float) -> Rate:
        """A rate from calls per second.

        >>> Rate.of(10), Rate.of(0.5)
        (Rate(calls=10, per_s=1.0), Rate(calls=1, per_s=2.0))
        """
        if isinstance(rate, Rate):
            return rate
        if not rate > 0:
            raise UsageError(f"Rate: {rate} calls per second is not a rate", fix="Use a positive number")
        calls = max(1, math.floor(rate))
        return cls(calls, calls / rate)


@dataclass(frozen=True, slots=True)
class ToolRules:
    """What holds for every task whose `action` is this tool. What a task's own `meta` says goes first.

    `side_effects`: at most once, never shared, never retried unless the task says so. `memo=False`: identical calls are
    all made. `approval`: each task waits for an approval.
    """

    concurrency: int | None = None
    rate: Rate | float | None = None
    timeout_s: float | None = None
    retry: Retry | None = None
    side_effects: bool = False
    memo: bool = True
    approval: bool = False

    def __post_init__(self) -> None:
        if self.concurrency is not None and self.concurrency < 1:
            raise UsageError(f"ToolRules: concurrency must be at least 1, got {self.concurrency}")

    @property
    def is_limit(self) -> bool:
        """Whether the rules ever hold a task back."""
        return self.concurrency is not None or self.rate is not None


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a run, or of many runs together: tasks at once, and the rules of each tool (`"*"`: every other tool).

    >>> Limits(concurrency=8, tools={"search": ToolRules(concurrency=2, rate=5)}).rules("search").concurrency
    2
    """

    concurrency: int | None = None
    tools: Mapping[str, ToolRules] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.concurrency is not None and self.concurrency < 1:
            raise UsageError(f"Limits: concurrency must be at least 1, got {self.concurrency}")

    def rules(self, tool: str | None) -> ToolRules | None:
        """The rules of a tool, if there are any."""
        if tool is None:
            return None
        return self.tools.get(tool) or self.tools.get(ANY)


class Gate:
    """The live state of one tool's limits. `allowance` says how many more may start now."""

    __slots__ = ("_free", "_rate", "_starts", "name")

    def __init__(self, name: str, rules: ToolRules) -> None:
        self.name = name
        self._free: float = math.inf if rules.concurrency is None else rules.concurrency
        self._rate = None if rules.rate is None else Rate.of(rules.rate)
        self._starts: deque[float] = deque()

    def allowance(self, now: float) -> float:
        """How many may start at `now`: free places, and starts left in the window."""
        if self._rate is None:
            return self._free
        while self._starts and now >= self._starts[0] + self._rate.per_s:
            self._starts.popleft()
        return min(self._free, self._rate.calls - len(self._starts))

    def enter(self, now: float) -> None:
        """Takes a place."""
        self._free -= 1
        if self._rate is not None:
            self._starts.append(now)

    def leave(self) -> None:
        """Gives the place back; the start still counts in its window."""
        self._free += 1

    def opens_at(self) -> float | None:
        """When the window next lets one start; None when only a free place can."""
        if self._rate is None or self._free < 1 or len(self._starts) < self._rate.calls:
            return None
        return self._starts[0] + self._rate.per_s
