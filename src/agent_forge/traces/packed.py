"""Spans that have been read from a request as rows, and are made only if somebody looks at them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent_forge.traces.rows import SOURCE, Row, to_span
from agent_forge.traces.span import FIELDS, Span
from agent_forge.traces.values import from_json

_SLOTS = tuple(Span.__slots__)


class Packed(Span):
    """A span that is still its row, as otlp_rows.c makes them.

    The store takes the row as it is. Reading or setting any field but the trace makes the whole span first, and from
    then on it is like any other; a copy of it is an ordinary span.
    """

    # The row has its group's names and its source's text (in a list of one) where their numbers will be.
    __slots__ = ("row",)
    row: Row | None

    def __getattr__(self, name: str) -> Any:
        if name not in _SLOTS or self.row is None:
            raise AttributeError(f"a span has no field {name!r}")
        self._unpack()
        return getattr(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if self.row is not None:
            self._unpack()
        object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Span):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in FIELDS)

    __hash__ = None  # type: ignore[assignment]  # a span can change

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.plain().__reduce_ex__(protocol)

    def _unpack(self) -> None:
        plain = self.plain()
        for name in _SLOTS:
            object.__setattr__(self, name, getattr(plain, name))
        object.__setattr__(self, "row", None)

    def plain(self) -> Span:
        """An ordinary span that says the same."""
        if self.row is None:
            found = Span.__new__(Span)
            for name in _SLOTS:
                setattr(found, name, getattr(self, name))
            return found
        return to_span(self.row, from_json(self.row[SOURCE][0]))


def plain_spans(spans: Sequence[Span]) -> list[Span]:
    """Ordinary spans that say the same."""
    return [span.plain() if type(span) is Packed else span for span in spans]
