"""What keeps a run alive, and how its end is brought about: timers, chores, handlers in flight."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from agent_forge.runtime.result import error_text

if TYPE_CHECKING:
    from agent_forge.runtime.job import Job


class Lifetime(ABC):
    """The part of a run that knows when it is over; `ended` is set when nothing of it is left running."""

    def __init__(self, grace_s: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.clock: Callable[[], float] = clock_of(self.loop)
        self.ended: asyncio.Future[None] = self.loop.create_future()
        self.growing = False  # tasks may still come
        self.stopping: str | None = None  # the state the run will end in, once it must end early
        self.error: str | None = None
        self.exception: BaseException | None = None
        self.warnings: list[str] = []
        self.flying: set[Job] = set()
        self._grace_s = grace_s
        self._chores: set[asyncio.Task[None]] = set()
        self._timers: list[asyncio.TimerHandle] = []

    @abstractmethod
    def is_open(self) -> bool:
        """Whether a task has not ended, or more may come."""

    @abstractmethod
    def stop(self, state: str, why: str) -> None:
        """Ends the run early."""

    def after(self, delay_s: float, call: Callable[..., object], *arguments: Any) -> None:
        """Calls something later, unless the run has ended by then."""
        self._timers.append(self.loop.call_later(delay_s, call, *arguments))

    def end_in(self, wall_s: float) -> None:
        """Sets the wall time after which the run is stopped."""
        self.after(wall_s, self.stop, "timed_out", f"the wall time of {wall_s:g} s is used up")

    def break_off(self, error: BaseException) -> None:
        """Ends the run because what carries it broke: the journal, or the executor itself."""
        self.exception = self.exception or error
        try:
            self.stop("failed", error_text(error))
        except Exception as worse:  # then there is no telling how each task ended; raising beats waiting for ever
            if not self.ended.done():
                self.ended.set_exception(worse)

    def chore(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs something beside the handlers that ends with the run: a stream, a question, an update."""
        task = self.loop.create_task(work)
        self._chores.add(task)
        task.add_done_callback(self._chore_ended)
        return task

    def _chore_ended(self, task: asyncio.Task[None]) -> None:
        self._chores.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.break_off(error)
        self.check_end()

    def stop_chores(self) -> None:
        """Cancels the chores, but not the one that asks for it, and gives up on those that will not stop."""
        mine = asyncio.current_task()
        for chore in self._chores:
            if chore is not mine:
                chore.cancel()
        self.after(self._grace_s, self._abandon_chores)

    def _abandon_chores(self) -> None:
        for chore in list(self._chores):
            self.abandon_chore(chore)

    def abandon_chore(self, chore: asyncio.Task[None]) -> None:
        """Gives up on a chore that will not stop."""
        self.warnings.append("a stream or a callback ignored its cancellation and was left running")
        self._chores.discard(chore)
        leave_behind(chore)
        self.check_end()

    def check_end(self) -> None:
        """Ends the run when nothing of it is left."""
        if self.flying or self._chores or self.is_open() or self.ended.done():
            return
        for timer in self._timers:
            timer.cancel()
        self.ended.set_result(None)


_LEFT_BEHIND: set[asyncio.Task[Any]] = set()  # kept, so that they are not collected while they wait


def leave_behind(task: asyncio.Task[Any]) -> None:
    """Gives up on a task that ignores its cancellation. It cannot be killed, only no longer waited for.

    `asyncio.run` waits for every task that it can see, for ever if need be, so the task is taken out of its sight.
    """
    _LEFT_BEHIND.add(task)
    task.add_done_callback(_LEFT_BEHIND.discard)
    asyncio._unregister_task(task)


def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """The clock of a loop, without the method around it where that only asks the system's."""
    plain = getattr(type(loop), "time", None) is asyncio.BaseEventLoop.time
    return time.monotonic if plain else loop.time
