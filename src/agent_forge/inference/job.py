"""One answer being decoded, as the scheduler sees it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_forge.inference.sampling import SampledToken, Sampling
from agent_forge.inference.text import TextWriter

if TYPE_CHECKING:
    from agent_forge.inference.grammar import GrammarWalk

Outbox = asyncio.Queue[tuple["DecodeJob", "OutputPiece"]]


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """The output of one step: text (possibly none yet), the token, and at the end the finish reason."""

    text: str
    token: SampledToken | None = None
    finish: str | None = None
    error: Exception | None = None


@dataclass(slots=True, eq=False)
class DecodeJob:
    """A prompt and how to continue it. Pieces go to `outbox`, which several jobs may share."""

    prompt: Sequence[int]
    max_tokens: int
    sampling: Sampling
    writer: TextWriter
    ends: frozenset[int]
    outbox: Outbox
    loop: asyncio.AbstractEventLoop  # where the outbox is read
    walk: GrammarWalk | None = None
    index: int = 0
    adapter: str | None = None  # of `Engine.add_adapter`; None is the model itself
    cancelled: bool = False
    written: int = 0
    queued_s: float = field(default_factory=time.monotonic)
    started_s: float | None = None  # when it joined the batch
    first_s: float | None = None  # when its first token came
    ended_s: float | None = None
    finish: str | None = None

    def begin(self) -> None:
        """Called when the job joins the batch."""
        self.started_s = time.monotonic()

    def take(self, token: SampledToken) -> OutputPiece:
        """Adds a token and returns the piece it makes."""
        self.written += 1
        if self.first_s is None:
            self.first_s = time.monotonic()
        if token.id in self.ends:
            return self._end("stop", "".join(self.writer.rest()), token)
        text = "".join(self.writer.add(token.id))
        if self.writer.stopped:
            return self._end("stop", text, token)
        if self.walk is not None:
            self.walk.advance(token.id)
            if self.walk.finished:
                return self._end("stop", text + "".join(self.writer.rest()), token)
        if self.written >= self.max_tokens:
            return self._end("length", text + "".join(self.writer.rest()), token)
        return OutputPiece(text, token)

    def _end(self, finish: str, text: str, token: SampledToken) -> OutputPiece:
        self.finish, self.ended_s = finish, time.monotonic()
        return OutputPiece(text, token, finish)

    def fail(self, error: Exception) -> OutputPiece:
        """Ends the job with an error."""
        self.finish, self.ended_s = "error", time.monotonic()
        return OutputPiece("", finish="error", error=error)

    def mask(self) -> Any:
        """The tokens that may come next, or None for any."""
        return None if self.walk is None else self.walk.allowed()
