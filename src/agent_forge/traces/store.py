# ruff: noqa: S608 (statements are put together from names in this room, never from values)
"""The trace store: spans in SQLite or PostgreSQL, durable when `add` returns."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from agent_forge.database import MEMORY, Database, is_url, open_database
from agent_forge.errors import DataError, TraceError
from agent_forge.home import home
from agent_forge.traces.bulk import Insert
from agent_forge.traces.intern import Interned
from agent_forge.traces.migrations import SCHEMA
from agent_forge.traces.queries import Moment, cursor_of, spans_query, to_ns, traces_query
from agent_forge.traces.rollup import add_sums, add_traces, rebuild, rebuild_trace
from agent_forge.traces.rows import (
    ATTRIBUTES,
    COLUMNS,
    END,
    KIND,
    SOURCE,
    START,
    TRACE,
    Row,
    to_rows,
    to_span,
)
from agent_forge.traces.scores import JUDGE, judged_agents, trace_reward
from agent_forge.traces.span import Span, collection_paused
from agent_forge.traces.stats import Aggregate, Tick, aggregate, percentiles, timeline

FILE = "traces.db"
BATCH = 5_000  # spans per transaction when a long stream is added

_OPTIONAL = (
    ("error",),
    ("agent", "session"),
    ("inputs", "outputs"),
    ("provider", "otel_kind", "source"),
    ("category", "policy", "template", "cost", "reward", "links", "extra"),
)
INSERT = Insert("spans", COLUMNS, "ON CONFLICT (trace_id, span_id) DO NOTHING", _OPTIONAL)
_FINISH = (
    f"UPDATE spans SET {', '.join(f'{name} = ?' for name in COLUMNS[2:])}"
    " WHERE trace_id = ? AND span_id = ? AND end_ns IS NULL"
)
_SELECT = f"SELECT {', '.join(COLUMNS)} FROM spans"

T = TypeVar("T")


@dataclass(frozen=True)
class Page(Generic[T]):
    """Some results, and a cursor to the next ones (None if there are no more)."""

    items: list[T] = field(default_factory=list)
    next: str | None = None

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True)
class Summary:
    """A trace in one line. Name, kind, agent, category, status and error are those of its root; tokens and cost are
    summed over its model calls; the reward is the mean over its judges, otherwise the root's own, otherwise that of the
    last reward span."""

    trace_id: str
    start_ns: int
    end_ns: int | None
    spans: int
    errors: int
    unfinished: int
    name: str | None
    kind: str | None
    status: str | None
    error: str | None
    agent: str | None
    category: str | None
    session: str | None
    input_tokens: int | None
    output_tokens: int | None
    cost: float | None
    reward: float | None


class Credit(NamedTuple):
    """What a judged span says about one agent: its share of the credit, and the mean over the judges. Their product is
    the credit; over the agents of a span it adds up to the reward."""

    trace_id: str
    span_id: str
    agent: str
    model: str | None
    category: str | None
    start_ns: int  # of the trace
    share: float
    reward: float


class Store:
    """Spans in a database. Safe to use from several threads and processes.

    >>> from agent_forge.traces import Span, Store
    >>> store = Store.open(":memory:")
    >>> store.add([Span("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "hello", start_ns=1, end_ns=2)])
    1
    >>> [span.name for span in store.trace("0af7651916cd43dd8448eb211c80319c")]
    ['hello']
    """

    def __init__(self, database: Database, address: str = MEMORY) -> None:
        """`address`: what `open` takes, for another process to open the same store."""
        self._database, self.address = database, address
        self._interned = Interned(database)

    @classmethod
    def open(cls, place: str | os.PathLike[str] | None = None) -> Store:
        """The store at `place`: a folder (its traces.db), a file, a postgresql:// URL, ":memory:", or None for the
        home folder. Creates it if necessary. Raises StoreError for a file that is not a complete trace store.
        """
        text = os.fspath(place) if place is not None else ""
        address = text if text == MEMORY or is_url(text) else str(Path(_file(text)).resolve())
        return cls(open_database(address, SCHEMA), address)

    @property
    def where(self) -> str:
        """The file or server of the store, without any password."""
        return self._database.where

    # Writing

    def add(self, spans: Iterable[Span]) -> int:
        """Stores spans in one transaction and returns how many were new or newly finished. They are on disk by then.

        A span is identified by its trace and span id: sent again, it is not stored again. One that was stored
        unfinished is replaced when it is finished; a finished one never changes. Raises TraceError, with nothing
        stored, if a field has a value that no database takes; StoreError if the database fails.
        """
        with _values_at_fault(), collection_paused():
            rows = to_rows(spans)
        return self.add_rows(rows)

    def add_rows(self, rows: list[Row]) -> int:
        """Stores the spans of rows that `make_row` made, as `add` does: for requests, which are read to rows."""
        return self._write(self.numbered(rows)) if rows else 0

    def numbered(self, rows: list[Row]) -> list[Row]:
        """The same rows, with the numbers of their groups and sources."""
        with _values_at_fault(), collection_paused():
            self._interned.number(rows)
        return rows

    def _write(self, rows: list[Row]) -> int:
        """Stores rows in one transaction. Returns how many were new or newly finished."""
        finished: list[Row] = []
        with _values_at_fault(), self._database.write() as cursor, collection_paused():
            (last,) = cursor.execute("SELECT coalesce(max(seq), 0) FROM spans").fetchone()
            if INSERT.run(cursor, rows) < len(rows):
                rows, finished = _new_and_finished(cursor, rows, last)
            judged = {row[TRACE] for row in rows if row[KIND] == "reward" and JUDGE in (row[ATTRIBUTES] or "")}
            with getattr(cursor, "together", nullcontext)():
                add_sums(cursor, rows + finished)
                add_traces(cursor, rows)
                for trace_id in sorted({row[TRACE] for row in finished}):
                    rebuild_trace(cursor, trace_id)
                for trace_id in sorted(judged):  # a crash before `_settle` leaves it to be settled by `credits`
                    cursor.execute("INSERT INTO judged VALUES (?, 0) ON CONFLICT DO NOTHING", (trace_id,))
        if judged:
            self._settle(sorted(judged))
        return len(rows) + len(finished)

    def _settle(self, trace_ids: Sequence[str]) -> None:
        """Computes the rewards and the credits of judged traces from their spans."""
        updates, credits = [], []
        for trace_id in trace_ids:
            spans = self.trace(trace_id)
            finished = sum(span.end_ns is not None for span in spans)
            updates.append((trace_id, trace_reward(spans), finished))
            for one in judged_agents(spans):
                names = (trace_id, one.span_id, one.agent, one.model or "", one.category or "")
                credits.append((*names, spans[0].start_ns, one.share, one.reward))
        with self._database.write() as cursor:
            for trace_id, reward, finished in updates:
                own = "UPDATE traces SET root_reward = ?, given_reward = ? WHERE trace_id = ?"
                cursor.execute(own, (reward, reward, trace_id))
                cursor.execute("UPDATE judged SET finished = ? WHERE trace_id = ?", (finished, trace_id))
                cursor.execute("DELETE FROM credits WHERE trace_id = ?", (trace_id,))
            for row in credits:
                cursor.execute("INSERT INTO credits VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def add_many(
        self, spans: Iterable[Span], *, batch: int = BATCH, each: Callable[[int], object] | None = None
    ) -> int:
        """Adds a long stream, `batch` spans per transaction, and returns what `add` does. `each` is called with the
        size of each batch after it is stored.
        """
        stream = iter(spans)
        return self.add_batches((to_rows(part) for part in iter(lambda: list(islice(stream, batch)), [])), each=each)

    def add_batches(self, batches: Iterable[list[Row]], *, each: Callable[[int], object] | None = None) -> int:
        """Adds batches of rows as `add_rows` does, each in a transaction of its own. Returns like `add_many`.

        A second thread writes one batch while this one reads the next: SQLite works without the interpreter lock.
        """
        from concurrent.futures import Future, ThreadPoolExecutor

        added = 0
        waiting: deque[tuple[int, Future[int]]] = deque()

        def finish_one() -> int:
            size, future = waiting.popleft()
            count = future.result()
            if each is not None:
                each(size)
            return count

        with ThreadPoolExecutor(1, thread_name_prefix="agent-forge-traces") as writer:
            try:
                with _values_at_fault():
                    for rows in batches:
                        waiting.append((len(rows), writer.submit(self._write, self.numbered(rows))))
                        added += finish_one() if len(waiting) > 2 else 0
                while waiting:
                    added += finish_one()
            except BaseException:
                writer.shutdown(cancel_futures=True)
                raise
        return added

    # Reading

    def trace(self, trace_id: str) -> list[Span]:
        """All spans of a trace in order of start; empty if there is no such trace."""
        return self._spans(f"{_SELECT} WHERE trace_id = ? ORDER BY start_ns, seq", [trace_id])

    def trace_ids(self, beginning: str, *, limit: int = 10) -> list[str]:
        """The traces whose id begins with `beginning`, in order."""
        sql = "SELECT trace_id FROM traces WHERE trace_id >= ? AND trace_id < ? ORDER BY trace_id LIMIT ?"
        return [row[0] for row in self._fetch(sql, [beginning, beginning + "g", limit])]

    def span(self, trace_id: str, span_id: str) -> Span | None:
        """One span, or None."""
        spans = self._spans(f"{_SELECT} WHERE trace_id = ? AND span_id = ?", [trace_id, span_id])
        return spans[0] if spans else None

    def search(
        self, *, limit: int = 100, after: str | None = None, oldest_first: bool = False, **filters: Any
    ) -> Page[Span]:
        """A page of spans, newest first, that pass all filters (named in `queries.Where`).

        `after` is the `next` of the previous page. Pages neither overlap nor skip a span that existed when the first
        one was read, whatever is added meanwhile.
        """
        sql, values = spans_query(filters, COLUMNS, limit + 1, cursor_of(after), oldest_first)
        rows = self._fetch(sql, values)
        more, rows = len(rows) > limit, rows[:limit]
        return Page(self._decoded(rows), f"{rows[-1][START]}-{rows[-1][len(COLUMNS)]}" if more and rows else None)

    def traces(
        self, *, limit: int = 100, after: str | None = None, oldest_first: bool = False, **filters: Any
    ) -> Page[Summary]:
        """A page of traces, newest first. Filters are those of `search`: session, status, time and reward are the
        trace's own; the others must all be met by one of its spans.
        """
        sql, values = traces_query(filters, limit + 1, cursor_of(after, text=True), oldest_first)
        rows = self._fetch(sql, values)
        summaries = [Summary(*row) for row in rows[:limit]]
        more = len(rows) > limit and summaries
        return Page(summaries, f"{summaries[-1].start_ns}-{summaries[-1].trace_id}" if more else None)

    def slowest(self, limit: int = 50) -> list[Span]:
        """The spans with the longest durations, slowest first."""
        order = "ORDER BY end_ns - start_ns DESC LIMIT ?"
        return self._spans(f"{_SELECT} WHERE end_ns IS NOT NULL {order}", [limit])

    def each_trace(self, **filters: Any) -> Iterator[list[Span]]:
        """The spans of each trace that `traces` would list, oldest first, with one page in memory: for exports."""
        after: str | None = None
        while True:
            page = self.traces(limit=200, after=after, oldest_first=True, **filters)
            for summary in page:
                yield self.trace(summary.trace_id)
            if (after := page.next) is None:
                return

    def _fetch(self, sql: str, values: Sequence[Any]) -> list[Row]:
        with self._database.read() as cursor:
            rows: list[Row] = cursor.execute(sql, values).fetchall()
            return rows

    def _spans(self, sql: str, values: Sequence[Any]) -> list[Span]:
        return self._decoded(self._fetch(sql, values))

    def _decoded(self, rows: Sequence[Row]) -> list[Span]:
        sources = self._interned.sources({row[SOURCE] for row in rows} - {None})
        return [to_span(row, sources.get(row[SOURCE])) for row in rows]

    # Statistics, from the rollups

    def aggregate(
        self, by: Sequence[str] = ("agent",), *, since: Moment | None = None, until: Moment | None = None, **only: str
    ) -> list[Aggregate]:
        """Counts, errors, durations, tokens, cost and rewards of finished spans, grouped by any of agent, name, kind,
        model, category and status. `only` selects groups by value, as in `kind="model"`.
        """
        with self._database.read() as cursor:
            return aggregate(cursor, by, since, until, only)

    def percentiles(
        self,
        by: Sequence[str] = ("name",),
        *,
        of: Sequence[float] = (0.5, 0.95, 0.99),
        since: Moment | None = None,
        until: Moment | None = None,
        **only: str,
    ) -> dict[tuple[str | None, ...], list[float]]:
        """Duration percentiles in seconds of each group, within 10 % (buckets are a quarter octave wide)."""
        with self._database.read() as cursor:
            return percentiles(cursor, by, of, since, until, only)

    def timeline(
        self, *, minutes: int = 1, since: Moment | None = None, until: Moment | None = None, agent: str | None = None
    ) -> list[Tick]:
        """Finished spans and errors per step of `minutes`, without empty steps; for one agent, in whole hours."""
        with self._database.read() as cursor:
            return timeline(cursor, minutes, since, until, agent)

    def credits(self, *, since: Moment | None = None, until: Moment | None = None) -> list[Credit]:
        """What judges said about agents: one row per judged span and agent, model and category, in order of time.

        A trace that has grown since it was judged is computed again first.
        """
        grown = "SELECT j.trace_id FROM judged j JOIN traces t ON t.trace_id = j.trace_id"
        stale = self._fetch(f"{grown} WHERE t.spans - t.unfinished <> j.finished", [])
        if stale:
            self._settle([row[0] for row in stale])
        times = (to_ns(since) if since is not None else 0, to_ns(until) if until is not None else 2**63 - 1)
        sql = "SELECT trace_id, span_id, agent, model, category, start_ns, share, reward FROM credits"
        rows = self._fetch(f"{sql} WHERE start_ns >= ? AND start_ns < ? ORDER BY start_ns, trace_id, span_id", times)
        return [Credit._make((*row[:3], row[3] or None, row[4] or None, *row[5:])) for row in rows]

    # Maintenance

    def delete(self, *, before: Moment) -> int:
        """Deletes the traces whose last span started before a moment. Returns the number of deleted spans."""
        moment = to_ns(before)
        old = "(SELECT trace_id FROM traces t WHERE t.start_ns < ? AND NOT EXISTS"
        old += " (SELECT 1 FROM spans s WHERE s.trace_id = t.trace_id AND s.start_ns >= ?))"
        with self._database.write() as cursor:
            deleted = int(cursor.execute(f"DELETE FROM spans WHERE trace_id IN {old}", (moment, moment)).rowcount)
            cursor.execute("DELETE FROM traces WHERE start_ns < ? AND NOT EXISTS"
                           " (SELECT 1 FROM spans WHERE spans.trace_id = traces.trace_id)", (moment,))  # fmt: skip
            for table in ("judged", "credits"):
                cursor.execute(f"DELETE FROM {table} WHERE trace_id NOT IN (SELECT trace_id FROM traces)")
            if deleted:
                rebuild(cursor, moment)
        return deleted

    def count(self) -> int:
        """The number of spans."""
        return int(self._fetch("SELECT coalesce(sum(spans), 0) FROM traces", [])[0][0])

    def vacuum(self) -> tuple[int, int]:
        """Returns the space of deleted spans to the disk. Returns the size in bytes before and after."""
        before = self._database.size()
        self._database.vacuum()
        return before, self._database.size()

    def check(self) -> list[str]:
        """The faults of the database; empty if it is sound."""
        return self._database.check()

    def close(self) -> None:
        """Closes the connections. The store can be used again; it then opens new ones."""
        self._database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _new_and_finished(cursor: Any, rows: list[Row], last: int) -> tuple[list[Row], list[Row]]:
    """Of rows some of which were stored before: those that `INSERT` added after `last`, and those of unfinished spans,
    which are finished here."""
    added = {
        tuple(row) for row in cursor.execute("SELECT trace_id, span_id FROM spans WHERE seq > ?", (last,)).fetchall()
    }
    new: list[Row] = []
    finished: list[Row] = []
    for row in rows:
        if (key := tuple(row[:2])) in added:
            new.append(row)
            added.discard(key)
        elif row[END] is not None and cursor.execute(_FINISH, (*row[2:], *row[:2])).rowcount == 1:
            finished.append(row)
    return new, finished


def _file(text: str) -> str:
    if text and Path(text).suffix in (".db", ".sqlite", ".sqlite3") and not Path(text).is_dir():
        return text
    return str(home(text or None) / FILE)


@contextmanager
def _values_at_fault() -> Iterator[None]:
    try:
        yield
    except (DataError, TypeError, AttributeError, ValueError, OverflowError) as error:
        what = error.what if isinstance(error, DataError) else error
        raise TraceError(f"a span cannot be stored: {what}", fix="Its fields must have the types of Span") from error
