"""Daemon threads for blocking functions, off the event loop.

asyncio.to_thread is not enough: its pool has about as many threads as the machine has cores, so twenty tools waiting
for a disk would queue behind each other; and the interpreter joins its threads at exit, so one hanging tool would keep
the whole program from ending.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

_Job = Callable[[], None]


class DaemonThreads:
    """Up to `most` threads, started on demand, reused, and never joined at exit."""

    def __init__(self, most: int = 128, name: str = "agent-forge-tool") -> None:
        self.most = most
        self.name = name
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        self._idle = 0

    async def call(self, function: Callable[[], Any]) -> Any:
        """Runs the function in a thread, with this task's context variables, and returns its result.

        When the awaiting task is cancelled, a call that has not started never does; one that has cannot be stopped,
        and its result is dropped.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def job() -> None:
            if future.cancelled():
                return
            try:
                outcome, failed = context.run(function), False
            except BaseException as error:
                outcome, failed = error, True
            with suppress(RuntimeError):  # the loop has been closed: nobody waits for the result
                loop.call_soon_threadsafe(_settle, future, outcome, failed)

        self._submit(job)
        return await future

    def _submit(self, job: _Job) -> None:
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            elif self._started < self.most:
                self._started += 1
                threading.Thread(target=self._work, name=f"{self.name}-{self._started}", daemon=True).start()
        self._jobs.put(job)

    def _work(self) -> None:
        while True:
            self._jobs.get()()
            with self._lock:
                self._idle += 1


def _settle(future: asyncio.Future[Any], outcome: Any, failed: bool) -> None:
    if future.cancelled():
        return
    if not failed:
        future.set_result(outcome)
    elif isinstance(outcome, Exception) and not isinstance(outcome, StopIteration):
        future.set_exception(outcome)
    else:  # SystemExit must not end the whole program, and a future cannot carry StopIteration
        future.set_exception(RuntimeError(f"the function raised {outcome!r}"))


THREADS = DaemonThreads()
