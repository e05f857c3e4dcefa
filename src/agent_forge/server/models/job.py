"""One answer in the making, as the scheduler sees it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_forge.agents.models.text import TextWriter
from agent_forge.server.models.sampling import Chosen, Sampling

if TYPE_CHECKING:
    from agent_forge.server.models.constraint import Constraint

Outbox = asyncio.Queue[tuple["Job", "Piece"]]


@dataclass(frozen=True, slots=True)
class Piece:
    """What a step brought: some text (it may be none yet), the token, and at the end why it ended."""

    text: str
    chosen: Chosen | None = None
    finish: str | None = None
    error: Exception | None = None


@dataclass(slots=True, eq=False)
class Job:
    """A prompt and how it is to be continued. Pieces go to `outbox`, which several jobs may share."""

    prompt: Sequence[int]
    most: int  # tokens to write at most
    sampling: Sampling
    writer: TextWriter
    ends: frozenset[int]
    outbox: Outbox
    loop: asyncio.AbstractEventLoop  # where the outbox is read
    constraint: Constraint | None = None
    index: int = 0
    cancelled: bool = False
    written: int = 0
    queued_s: float = field(default_factory=time.monotonic)
    started_s: float | None = None  # when it joined the batch
    first_s: float | None = None  # when its first token came
    ended_s: float | None = None
    finish: str | None = None

    def begin(self) -> None:
        """It joins the batch."""
        self.started_s = time.monotonic()

    def take(self, chosen: Chosen) -> Piece:
        """Adds a token and says what came of it."""
        self.written += 1
        if self.first_s is None:
            self.first_s = time.monotonic()
        if chosen.token in self.ends:
            return self._end("stop", "".join(self.writer.rest()), chosen)
        text = "".join(self.writer.add(chosen.token))
        if self.writer.stopped:
            return self._end("stop", text, chosen)
        if self.constraint is not None and self.constraint.take(chosen.token):
            return self._end("stop", text + "".join(self.writer.rest()), chosen)
        if self.written >= self.most:
            return self._end("length", text + "".join(self.writer.rest()), chosen)
        return Piece(text, chosen)

    def _end(self, finish: str, text: str, chosen: Chosen) -> Piece:
        self.finish, self.ended_s = finish, time.monotonic()
        return Piece(text, chosen, finish)

    def fail(self, error: Exception) -> Piece:
        """Ends the job with an error."""
        self.finish, self.ended_s = "error", time.monotonic()
        return Piece("", finish="error", error=error)

    def mask(self) -> Any:
        """What may be written next, or None for anything."""
        return None if self.constraint is None else self.constraint.mask()
