"""An event loop whose clock jumps: waiting takes no time, so a schedule of hours is tested exactly in milliseconds.

makespan = run_simulated(execute(plan, handler)).wall_s
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class NothingLeft(RuntimeError):
    """Everything waits and no timer is set: in real time this would wait forever."""


class _Jump(selectors.SelectSelector):
    """Instead of waiting for a timer, moves the clock to it."""

    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise NothingLeft("everything waits and no timer is set")
        ready = super().select(0)
        if not ready:
            self._loop.now += max(0.0, timeout)
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop on simulated time; `now` are the seconds since it was made."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Jump(self))

    def time(self) -> float:
        """The simulated time."""
        return self.now


def run_simulated(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end on simulated time. Raises NothingLeft where it would never end.

    >>> async def long() -> float:
    ...     await asyncio.sleep(3600)
    ...     return asyncio.get_running_loop().time()
    >>> run_simulated(long())
    3600.0
    """
    loop = SimulatedLoop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(work)
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=60))
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()
