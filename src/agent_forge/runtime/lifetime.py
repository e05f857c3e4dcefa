"""What of a run is still going on: handlers in flight, chores beside them, timers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from agent_forge.runtime.job import Flight, Job, JobOwner

TIMEOUT = "timeout"  # the reasons to stop a handler
STOP = "stop"


class Lifetime:
    """The clock of a run and all that must be over before it is; `ended` is set when nothing is left running."""

    def __init__(self, run: JobOwner, grace_s: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.clock: Callable[[], float] = clock_of(self.loop)
        self.origin = self.clock()
        self.ended: asyncio.Future[None] = self.loop.create_future()
        self.warnings: list[str] = []
        self.flying: set[Job] = set()
        self._run = run
        self._grace_s = grace_s  # for a handler or a chore to obey its cancellation
        self._chores: set[asyncio.Task[None]] = set()
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def is_busy(self) -> bool:
        """Whether a handler or a chore is still going on."""
        return bool(self.flying or self._chores)

    def after(self, delay_s: float, call: Callable[..., object], *arguments: Any) -> None:
        """Calls something later, unless the run has ended by then."""
        self._timers.append(self.loop.call_later(delay_s, call, *arguments))

    def finish(self) -> None:
        """Nothing is left: whoever waits for the end is told."""
        for timer in self._timers:
            timer.cancel()
        self.ended.set_result(None)

    # Handlers in flight

    def take_off(self, job: Job, worker: asyncio.Task[None]) -> None:
        """A handler waits for something: from now on it can be timed out and cancelled."""
        job.flight = flight = Flight(worker)
        self.flying.add(job)
        if job.terms.timeout_s is not None:
            flight.timer = self.loop.call_at(job.began + job.terms.timeout_s, self._time_out, job, flight)

    def land(self, job: Job) -> str | None:
        """A handler has ended; the reason why it was stopped, if it was."""
        flight = job.flight
        if flight is None:
            return None
        job.flight = job.waiting = None
        self.flying.discard(job)
        if flight.timer is not None:
            flight.timer.cancel()
        return flight.reason

    def stop(self, job: Job) -> None:
        """Cancels the handler of a job, if it is in flight."""
        flight = job.flight
        if flight is not None:
            flight.stop(STOP)
            self.after(self._grace_s, self._abandon, job, flight)

    def _time_out(self, job: Job, flight: Flight) -> None:
        if job.flight is flight:
            flight.stop(TIMEOUT)
            flight.timer = self.loop.call_later(self._grace_s, self._abandon, job, flight)

    def _abandon(self, job: Job, flight: Flight) -> None:
        """The handler swallowed its cancellation. It cannot be killed, so the run goes on without it and says so."""
        if job.flight is flight:
            self.warnings.append(f"task {job.id!r} ignored its cancellation and was left running")
            self._run.abandoned(job, flight.worker)

    # Chores

    def chore(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs something beside the handlers that ends with the run: a stream, an approval, an update."""
        task = self.loop.create_task(work)
        self._chores.add(task)
        task.add_done_callback(self._chore_ended)
        return task

    def _chore_ended(self, task: asyncio.Task[None]) -> None:
        self._chores.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._run.break_off(error)
        self._run.check_end()

    def stop_chores(self) -> None:
        """Cancels the chores, except the one that asks for it, and gives up on those that will not stop."""
        mine = asyncio.current_task()
        for chore in self._chores:
            if chore is not mine:
                chore.cancel()
            self.after(self._grace_s, self.abandon_chore, chore)

    def abandon_chore(self, chore: asyncio.Task[None]) -> None:
        """Gives up on a chore, unless it has ended."""
        if chore not in self._chores:
            return
        self.warnings.append("a stream or a callback ignored its cancellation and was left running")
        self._chores.discard(chore)
        leave_behind(chore)
        self._run.check_end()


_LEFT_BEHIND: set[asyncio.Task[Any]] = set()  # kept, so that they are not collected while they wait


def leave_behind(task: asyncio.Task[Any]) -> None:
    """Gives up on a task that ignores its cancellation. It cannot be killed, only no longer waited for.

    `asyncio.run` waits forever for every task that it can see, so the task is taken out of its sight.
    """
    _LEFT_BEHIND.add(task)
    task.add_done_callback(_LEFT_BEHIND.discard)
    asyncio._unregister_task(task)


def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """The clock of a loop, without the method around it where that only asks the system's."""
    plain = getattr(type(loop), "time", None) is asyncio.BaseEventLoop.time
    return time.monotonic if plain else loop.time
