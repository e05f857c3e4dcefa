"""One model at work: a thread that keeps a batch running, and lets requests join and leave between two steps."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any

import torch

from agent_forge.errors import ModelError
from agent_forge.server.answers import Refused
from agent_forge.server.models.job import Job, Piece
from agent_forge.server.models.rows import Rows, rows_for, without
from agent_forge.server.models.sampling import choose

READ_AT_ONCE = 4096  # prompt tokens, padding included, that are read between two steps


class Engine:
    """Continuous batching for one model.

    Jobs wait in line, join the running batch as soon as there is a slot and memory for them, and leave it with their
    last token. A job that is cancelled leaves before the next step. What a job writes does not depend on the others.
    """

    def __init__(self, model: Any, *, slots: int, waiting: int, cache_bytes: int) -> None:
        self._model = model
        self._rows: Rows = rows_for(model)
        self.slots = min(slots, self._rows.most or slots)
        self._most_waiting = waiting
        self._cache_bytes = cache_bytes
        self._line: deque[Job] = deque()
        self._jobs: list[Job] = []  # by row
        self._next: list[int] = []  # the token each row goes on with
        self._turn = threading.Condition()
        self._closed = False
        self.steps = 0
        self._thread = threading.Thread(target=self._run, name="agent-forge-model", daemon=True)
        self._thread.start()

    # For the event loop

    def submit(self, jobs: Iterable[Job]) -> None:
        """Puts jobs in line. Raises Refused (429) if the line is too long."""
        jobs = list(jobs)
        with self._turn:
            if self._closed:
                raise Refused(503, "the model is being unloaded", code="model_unloaded", headers={"Retry-After": "1"})
            if len(self._line) + len(jobs) > self._most_waiting:
                raise Refused(
                    429,
                    f"{len(self._line)} requests wait for this model already",
                    code="queue_full",
                    fix="Try again in a second",
                    headers={"Retry-After": "1"},
                )
            self._line.extend(jobs)
            self._turn.notify()

    def cancel(self, jobs: Iterable[Job]) -> None:
        """Nobody reads these any more: they leave before the next step."""
        for job in jobs:
            job.cancelled = True

    @property
    def waiting(self) -> int:
        """Jobs in line."""
        return len(self._line)

    @property
    def running(self) -> int:
        """Jobs in the batch."""
        return len(self._jobs)

    def close(self) -> None:
        """Ends the thread after the step it is in; what is unfinished fails."""
        with self._turn:
            self._closed = True
            self._turn.notify()
        self._thread.join()

    # In the thread of the model

    def _run(self) -> None:
        with torch.inference_mode():
            while self._wait():
                try:
                    self._round()
                except Exception as error:  # a fault of the model must reach those who wait, not end the thread
                    self._give_up(self._jobs, ModelError(f"the model failed: {type(error).__name__}: {error}"))
        self._give_up([*self._jobs, *self._line], ModelError("the server was stopped"))

    def _wait(self) -> bool:
        with self._turn:
            while not self._closed and not self._line and not self._jobs:
                self._turn.wait()
            return not self._closed

    def _round(self) -> None:
        self._drop_cancelled()
        pieces = self._admit()
        if self._jobs:
            pieces += self._step()
        _deliver(pieces)

    def _drop_cancelled(self) -> None:
        gone = [row for row, job in enumerate(self._jobs) if job.cancelled]
        for row in gone:
            self._jobs[row].finish = "cancelled"
        self._leave(gone)

    def _leave(self, rows: list[int]) -> None:
        if rows:
            self._rows.leave(rows)
            without(self._jobs, rows)
            without(self._next, rows)

    def _step(self) -> list[tuple[Job, Piece]]:
        logits = self._rows.step(self._next)
        self.steps += 1
        return self._advance(logits, list(range(len(self._jobs))))

    def _admit(self) -> list[tuple[Job, Piece]]:
        """Lets jobs join the batch, as many as fit; their first tokens come with their prompts."""
        pieces: list[tuple[Job, Piece]] = []
        while fresh := self._next_in_line():
            rows = list(range(len(self._jobs), len(self._jobs) + len(fresh)))
            self._jobs += fresh
            self._next += [0] * len(fresh)
            logits = self._rows.join([job.prompt for job in fresh])
            pieces += self._advance(logits, rows)
            if sum(len(job.prompt) for job in fresh) >= READ_AT_ONCE:
                break  # those who write already come first again
        return pieces

    def _next_in_line(self) -> list[Job]:
        """The jobs to read together: the first in line, and those behind it while the batch has room."""
        fresh: list[Job] = []
        longest = 0
        with self._turn:
            while self._line:
                job = self._line[0]
                if job.cancelled:
                    self._line.popleft().finish = "cancelled"
                    continue
                longest = max(longest, len(job.prompt))
                if not self._has_room(fresh, job) or (fresh and longest * (len(fresh) + 1) > READ_AT_ONCE):
                    break
                fresh.append(self._line.popleft())
        for job in fresh:
            job.begin()
        return fresh

    def _has_room(self, fresh: list[Job], job: Job) -> bool:
        rows = len(self._jobs) + len(fresh) + 1
        if rows > self.slots:
            return False
        longest = max(len(one.prompt) + one.most for one in (*self._jobs, *fresh, job))
        return rows == 1 or self._rows.cells(rows, longest) <= self._cache_bytes

    def _advance(self, logits: Any, rows: list[int]) -> list[tuple[Job, Piece]]:
        """Chooses the next token of these rows; the finished ones leave."""
        jobs = [self._jobs[row] for row in rows]
        chosen = choose(logits, [job.sampling for job in jobs], [job.mask() for job in jobs])
        pieces = [(job, job.take(one)) for job, one in zip(jobs, chosen, strict=True)]
        for row, one in zip(rows, chosen, strict=True):
            self._next[row] = one.token
        self._leave([row for row, (_, piece) in zip(rows, pieces, strict=True) if piece.finish is not None])
        return pieces

    def _give_up(self, failed: list[Job], error: ModelError) -> None:
        """Fails these jobs and begins anew: what state the rows are in is not known."""
        self._jobs, self._next, self._rows = [], [], rows_for(self._model)
        _deliver([(job, job.fail(error)) for job in failed if not job.cancelled])


def _deliver(pieces: list[tuple[Job, Piece]]) -> None:
    """Hands pieces to the event loops that wait for them, one call a loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Job, Piece]]] = {}
    for job, piece in pieces:
        if not job.cancelled:
            by_loop.setdefault(job.loop, []).append((job, piece))
    for loop, some in by_loop.items():
        try:
            loop.call_soon_threadsafe(_put, some)
        except RuntimeError:  # the loop was closed: nobody waits any more
            continue


def _put(pieces: list[tuple[Job, Piece]]) -> None:
    for job, piece in pieces:
        job.outbox.put_nowait((job, piece))
