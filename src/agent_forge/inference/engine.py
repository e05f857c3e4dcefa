"""One model at work: a thread that keeps a batch running, and lets requests join and leave between two steps."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_forge.errors import ModelError
from agent_forge.inference.job import DecodeJob, OutputPiece
from agent_forge.inference.rows import Rows, rows_for, without
from agent_forge.inference.sampling import choose
from agent_forge.refusal import Refusal

if TYPE_CHECKING:
    from agent_forge.inference.adapters import AdapterBank

READ_AT_ONCE = 4096  # prompt tokens, padding included, to read between two steps


class Engine:
    """Continuous batching for one model.

    Jobs wait in a queue, join the running batch as soon as there is a slot and memory for them, and leave it with their
    last token. A cancelled job leaves before the next step. The output of a job does not depend on the others, nor on
    which adapters they use.
    """

    def __init__(self, model: Any, *, slots: int, waiting: int, cache_bytes: int) -> None:
        self._model = model
        self._rows: Rows = rows_for(model)
        self.slots = min(slots, self._rows.most or slots)
        self._max_waiting = waiting
        self._cache_bytes = cache_bytes
        self._queue: deque[DecodeJob] = deque()
        self._jobs: list[DecodeJob] = []  # by row
        self._next: list[int] = []  # the token that each row continues with
        self._changed = threading.Condition()
        self._closed = False
        self._adapters: AdapterBank | None = None
        self.steps = 0
        self._thread = threading.Thread(target=self._run, name="agent-forge-model", daemon=True)
        self._thread.start()

    # For the event loop

    def submit(self, jobs: Iterable[DecodeJob]) -> None:
        """Queues jobs. Raises Refusal (429) if the queue is full."""
        jobs = list(jobs)
        with self._changed:
            if self._closed:
                raise Refusal(503, "the model is being unloaded", code="model_unloaded", headers={"Retry-After": "1"})
            if len(self._queue) + len(jobs) > self._max_waiting:
                raise Refusal(
                    429,
                    f"{len(self._queue)} requests are already waiting for this model",
                    code="queue_full",
                    fix="Try again in a second",
                    headers={"Retry-After": "1"},
                )
            self._queue.extend(jobs)
            self._changed.notify()

    def add_adapter(self, name: str, folder: str | Path) -> None:
        """Loads an adapter that jobs can name; one that is there stays. Raises CheckpointError, ModelError."""
        from agent_forge.inference.adapters import AdapterBank

        with self._changed:
            if self._adapters is None:
                self._adapters = AdapterBank(self._model)
        self._adapters.add(name, folder)

    def has_adapter(self, name: str) -> bool:
        return self._adapters is not None and name in self._adapters

    def cancel(self, jobs: Iterable[DecodeJob]) -> None:
        """Removes jobs before the next step: nobody reads them any more."""
        for job in jobs:
            job.cancelled = True

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return len(self._queue)

    @property
    def running(self) -> int:
        """Jobs in the batch."""
        return len(self._jobs)

    def close(self) -> None:
        """Stops after the current step; unfinished jobs fail."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    # In the thread of the model

    def _run(self) -> None:
        while self._wait():
            try:
                self._round()
            except Exception as error:  # an error of the model must reach the clients, not end the thread
                self._fail(self._jobs, ModelError(f"the model failed: {type(error).__name__}: {error}"))
        self._fail([*self._jobs, *self._queue], ModelError("the server was stopped"))

    def _wait(self) -> bool:
        with self._changed:
            while not self._closed and not self._queue and not self._jobs:
                self._changed.wait()
            return not self._closed

    def _round(self) -> None:
        self._drop_cancelled()
        pieces = self._admit()
        if self._jobs:
            self._choose_adapters(self._jobs)
            logits = self._rows.step(self._next)
            self.steps += 1
            pieces += self._advance(logits, list(range(len(self._jobs))))
        _deliver(pieces)

    def _drop_cancelled(self) -> None:
        cancelled = [row for row, job in enumerate(self._jobs) if job.cancelled]
        for row in cancelled:
            self._jobs[row].finish = "cancelled"
        self._leave(cancelled)

    def _leave(self, rows: list[int]) -> None:
        if rows:
            self._rows.leave(rows)
            without(self._jobs, rows)
            without(self._next, rows)

    def _admit(self) -> list[tuple[DecodeJob, OutputPiece]]:
        """Lets as many jobs join the batch as fit; reading their prompts yields their first tokens."""
        pieces: list[tuple[DecodeJob, OutputPiece]] = []
        while fresh := self._take_queued():
            rows = list(range(len(self._jobs), len(self._jobs) + len(fresh)))
            self._jobs += fresh
            self._next += [0] * len(fresh)
            self._choose_adapters(fresh)
            logits = self._rows.join([job.prompt for job in fresh])
            pieces += self._advance(logits, rows)
            if sum(len(job.prompt) for job in fresh) >= READ_AT_ONCE:
                break  # first let the running jobs advance again
        return pieces

    def _choose_adapters(self, jobs: Sequence[DecodeJob]) -> None:
        if self._adapters is not None:
            self._adapters.use([job.adapter for job in jobs])

    def _take_queued(self) -> list[DecodeJob]:
        """The jobs to read together: the first in the queue, and those behind it while the batch has room."""
        fresh: list[DecodeJob] = []
        longest = 0
        with self._changed:
            while self._queue:
                job = self._queue[0]
                if job.cancelled:
                    self._queue.popleft().finish = "cancelled"
                    continue
                longest = max(longest, len(job.prompt))
                if not self._has_room(fresh, job) or (fresh and longest * (len(fresh) + 1) > READ_AT_ONCE):
                    break
                fresh.append(self._queue.popleft())
        for job in fresh:
            job.begin()
        return fresh

    def _has_room(self, fresh: list[DecodeJob], job: DecodeJob) -> bool:
        rows = len(self._jobs) + len(fresh) + 1
        if rows > self.slots:
            return False
        longest = max(len(one.prompt) + one.max_tokens for one in (*self._jobs, *fresh, job))
        return rows == 1 or self._rows.cells(rows, longest) <= self._cache_bytes

    def _advance(self, logits: Any, rows: list[int]) -> list[tuple[DecodeJob, OutputPiece]]:
        """Chooses the next token of these rows; finished rows leave."""
        jobs = [self._jobs[row] for row in rows]
        tokens = choose(logits, [job.sampling for job in jobs], [job.mask() for job in jobs])
        pieces = [(job, job.take(token)) for job, token in zip(jobs, tokens, strict=True)]
        for row, token in zip(rows, tokens, strict=True):
            self._next[row] = token.id
        self._leave([row for row, (_, piece) in zip(rows, pieces, strict=True) if piece.finish is not None])
        return pieces

    def _fail(self, failed: list[DecodeJob], error: ModelError) -> None:
        """Fails these jobs and starts over: the state of the rows is unknown."""
        self._jobs, self._next, self._rows = [], [], rows_for(self._model)
        _deliver([(job, job.fail(error)) for job in failed if not job.cancelled])


def _deliver(pieces: list[tuple[DecodeJob, OutputPiece]]) -> None:
    """Hands pieces to the event loops that wait for them, one call per loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[DecodeJob, OutputPiece]]] = {}
    for job, piece in pieces:
        if not job.cancelled:
            by_loop.setdefault(job.loop, []).append((job, piece))
    for loop, some in by_loop.items():
        try:
            loop.call_soon_threadsafe(_put, some)
        except RuntimeError:  # the loop was closed: nobody waits any more
            continue


def _put(pieces: list[tuple[DecodeJob, OutputPiece]]) -> None:
    for job, piece in pieces:
        job.outbox.put_nowait((job, piece))
