"""Text out of token ids, one at a time: whole characters only, and nothing of a stop text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

_UNFINISHED = "\ufffd"  # what half a character decodes to


class TextWriter:
    """Turns tokens into pieces of text.

    A piece is held back while it ends in half a character, or in what may be the beginning of a stop text. `text` is
    all that was written; `stopped` says that a stop text came, which is not part of it.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = [text for text in stop if text]
        self._ids: list[int] = []
        self._whole = 0  # ids whose text is complete
        self._before = 0  # ids decoded along with new ones, because some tokenizers look at what comes before
        self._held = ""
        self.text = ""
        self.stopped = False

    def add(self, token: int) -> Iterator[str]:
        """The text that this token completes, if any."""
        self._ids.append(token)
        known = self._decode(self._ids[self._before : self._whole])
        longer = self._decode(self._ids[self._before :])
        if len(longer) <= len(known) or longer.endswith(_UNFINISHED):
            return
        self._before, self._whole = self._whole, len(self._ids)
        yield from self._let_go(self._held + longer[len(known) :])

    def rest(self) -> Iterator[str]:
        """What was still held back when the tokens ended."""
        if self.stopped:
            return
        known = self._decode(self._ids[self._before : self._whole])
        held = self._held + self._decode(self._ids[self._before :])[len(known) :]
        self._held = ""
        if held:
            self.text += held
            yield held

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True)) if ids else ""

    def _let_go(self, text: str) -> Iterator[str]:
        at = min((found for found in (text.find(stop) for stop in self._stop) if found >= 0), default=-1)
        self.stopped = at >= 0
        free = at if self.stopped else len(text) - self._dangling(text)
        self._held = text[free:]
        if free:
            self.text += text[:free]
            yield text[:free]

    def _dangling(self, text: str) -> int:
        """How many characters at the end may be the beginning of a stop text."""
        lengths = range(min(len(text), max(map(len, self._stop), default=1) - 1), 0, -1)
        return next((n for n in lengths if any(stop.startswith(text[-n:]) for stop in self._stop)), 0)
