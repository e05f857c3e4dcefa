"""The asyncio tasks that carry out jobs.

One asyncio task for each job would cost more than a small job itself. Here a worker runs the first step of a handler
directly; if the handler ends without waiting for anything, the worker takes the next job, and no asyncio task was made
for this one. Only when a handler waits is another worker called to go on with what is ready. Each handler runs in its
own copy of the caller's context, and `asyncio.current_task()` in it is the worker, which carries this handler alone
until it ends: timeouts and cancel scopes inside of handlers work as usual.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import Context
from typing import Any

from agent_forge.runtime.agenda import Agenda
from agent_forge.runtime.budget import Ledger
from agent_forge.runtime.job import Job, JobOwner
from agent_forge.runtime.lifetime import clock_of, leave_behind
from agent_forge.runtime.options import RunSettings

SLICE_S = 0.005  # how long jobs that never wait may keep the event loop to themselves
SLICE_JOBS = 256


class Rest:
    """What is left of a coroutine after its first step, awaited by a worker but run in the coroutine's own context."""

    __slots__ = ("_awaited", "_context", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], context: Context, awaited: Any) -> None:
        self._coroutine = coroutine
        self._context = context
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, Any]:
        run, coroutine, awaited = self._context.run, self._coroutine, self._awaited
        try:
            while True:
                try:
                    answer = yield awaited
                except GeneratorExit:
                    run(coroutine.close)
                    raise
                except BaseException as error:
                    awaited = run(coroutine.throw, error)
                else:
                    awaited = run(coroutine.send, answer)
        except StopIteration as stop:
            return stop.value


class Crew:
    """The workers, slots and budget that runs share."""

    def __init__(self, settings: RunSettings, *, shared: bool = False) -> None:
        self.ledger = None if settings.budget is None else Ledger(settings.budget)
        self.agenda = Agenda(
            settings.all_limits,
            shared=shared,
            first_come=settings.order == "fifo",
            budgeted=self.ledger is not None,
        )
        self.agenda.rouse = self.cover
        self.runs: list[JobOwner] = []
        self._workers: set[asyncio.Task[None]] = set()
        self._coming = False  # a worker was made and has not begun yet
        self._loop = asyncio.get_running_loop()

    def cover(self) -> None:
        """Makes sure that a worker takes what is ready. To be called whenever a job was queued outside of a worker."""
        if not self._coming and self.agenda.has_work():
            self._coming = True
            # Not loop.create_task: an eager task factory would begin the worker here, one inside the other.
            worker = asyncio.Task(self._work(), loop=self._loop)
            self._workers.add(worker)
            worker.add_done_callback(self._left)

    async def close(self) -> None:
        """Waits until every worker has gone, except abandoned ones."""
        self.agenda.close()
        while self._workers:
            await asyncio.wait(self._workers)

    def abandon(self, worker: asyncio.Task[None]) -> None:
        """Gives up on a worker whose handler will not stop."""
        self._workers.discard(worker)
        leave_behind(worker)

    def _left(self, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        if not worker.cancelled() and (error := worker.exception()) is not None:
            for run in self.runs:  # a worker itself broke: that must end the runs, not hang them
                run.break_off(error)
        self.cover()

    async def _work(self) -> None:
        self._coming = False
        me = asyncio.current_task()
        assert me is not None
        clock, take = clock_of(self._loop), self.agenda.take
        jobs, until = 0, clock() + SLICE_S
        while (job := take()) is not None:
            run = job.run
            context = run.context.copy()
            try:
                value = context.run(run.call, job)
            except BaseException as error:
                _settle(job, error)
            else:
                if job.waiting is None:
                    run.returned(job, value)
                else:
                    run.suspended(job, me)
                    self.cover()
                    if not await self._see_through(job, Rest(job.waiting, context, value)):
                        return  # this asyncio task was cancelled for the job's sake, so it is not used for another
                    jobs, until = 0, clock() + SLICE_S
                    continue
            jobs += 1
            if jobs >= SLICE_JOBS or (job.ended or clock()) > until:
                await asyncio.sleep(0)
                jobs, until = 0, clock() + SLICE_S

    @staticmethod
    async def _see_through(job: Job, rest: Rest) -> bool:
        """Waits for the handler to end. False when the worker was cancelled meanwhile."""
        flight = job.flight
        assert flight is not None
        try:
            value = await rest
        except GeneratorExit:
            raise  # the event loop was closed over it
        except BaseException as error:
            if job.flight is flight:  # else it was abandoned and has been settled
                _settle(job, error)
            return flight.reason is None and not isinstance(error, asyncio.CancelledError)
        if job.flight is flight:
            job.run.returned(job, value)
        return flight.reason is None


def _settle(job: Job, error: BaseException) -> None:
    job.run.raised(job, error)
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        raise error
