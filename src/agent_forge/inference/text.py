"""Text from token ids, one at a time: whole characters only, and nothing of a stop sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

_UNFINISHED = "\ufffd"  # what an incomplete character decodes to


class TextWriter:
    """Turns tokens into pieces of text.

    A piece is held back while it ends in an incomplete character or in a possible prefix of a stop sequence. `text` is
    everything written; `stopped` is set once a stop sequence was reached (it is not part of the text).
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = [text for text in stop if text]
        self._ids: list[int] = []
        self._whole = 0  # ids whose text is complete
        self._before = 0  # ids decoded along with new ones: some tokenizers depend on the preceding token
        self._held = ""
        self.text = ""
        self.stopped = False

    def add(self, token: int) -> Iterator[str]:
        """The text completed by this token, if any."""
        self._ids.append(token)
        shorter = self._decode(self._ids[self._before : self._whole])
        longer = self._decode(self._ids[self._before :])
        if len(longer) <= len(shorter) or longer.endswith(_UNFINISHED):
            return
        self._before, self._whole = self._whole, len(self._ids)
        yield from self._release(self._held + longer[len(shorter) :])

    def rest(self) -> Iterator[str]:
        """The text still held back after the last token."""
        if self.stopped:
            return
        shorter = self._decode(self._ids[self._before : self._whole])
        held = self._held + self._decode(self._ids[self._before :])[len(shorter) :]
        self._held = ""
        if held:
            self.text += held
            yield held

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True)) if ids else ""

    def _release(self, text: str) -> Iterator[str]:
        at = min((at for at in (text.find(stop) for stop in self._stop) if at >= 0), default=-1)
        self.stopped = at >= 0
        free = at if self.stopped else len(text) - self._dangling(text)
        self._held = text[free:]
        if free:
            self.text += text[:free]
            yield text[:free]

    def _dangling(self, text: str) -> int:
        """How many characters at the end may begin a stop sequence."""
        lengths = range(min(len(text), max(map(len, self._stop), default=1) - 1), 0, -1)
        return next((n for n in lengths if any(stop.startswith(text[-n:]) for stop in self._stop)), 0)
