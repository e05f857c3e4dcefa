"""The journal as an onlooker reads it: runs a page at a time, and every task of one, however it ended or stands.

`Journal.load` keeps what a resumed run must know; this keeps what people want to see, and it never writes. Each call
opens the file for itself, so that any thread may ask while other processes run.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agent_forge.errors import StoreError, UnknownRunError
from agent_forge.home import home as home_folder
from agent_forge.plans import Plan, PlanInvalid, Task
from agent_forge.runtime.journal_file import APPLICATION_ID, FILE, RunLocks, store_errors

YOUNG_S = 2.0
_COLUMNS = "id, run, state, created_s, ended_s, tasks, error, trace_id"
_COUNT = "(SELECT count(DISTINCT task) FROM task_log WHERE run = runs.id AND item < 0 AND state {})"
_LINE = f"SELECT {_COLUMNS}, {_COUNT.format('= ?')}, {_COUNT.format('IN (?, ?, ?, ?)')} FROM runs"  # noqa: S608
_COUNTED = ("done", "failed", "timed_out", "denied", "in_doubt")


@dataclass(frozen=True, slots=True)
class RunLine:
    """A run in one line. `state` is "running" or "interrupted" for one that has not ended."""

    number: int  # in the order in which runs began
    run: str
    state: str
    created_s: float  # since the epoch
    ended_s: float | None
    tasks: int | None  # None: a streamed plan that is not whole yet
    error: str | None
    trace_id: str | None
    done: int
    failed: int


@dataclass(slots=True)
class TaskRecord:
    """What the journal last wrote of a task. Times are seconds since the run began."""

    state: str  # one of TASK_STATES, "running", or "waiting"
    started_s: float | None = None
    ended_s: float | None = None
    attempts: int = 0
    result: Any = None
    error: str | None = None
    same_as: str | None = None
    tokens: int | None = None
    cost: float | None = None
    side_effects: bool = False
    items: dict[int, TaskRecord] = field(default_factory=dict)  # of a `for_each` task, by element

    @property
    def duration_s(self) -> float | None:
        """None for a task that has not started or not ended."""
        return None if self.started_s is None or self.ended_s is None else self.ended_s - self.started_s


@dataclass(slots=True)
class RunRecord:
    """One run: its line, its plan as far as it is known, how it was set up, and its tasks in the order of the plan."""

    line: RunLine
    plan: Plan | None
    settings: dict[str, Any]
    tasks: dict[str, TaskRecord]


class History:
    """The runs under a home folder, for reading.

    >>> import tempfile
    >>> History.open(tempfile.mkdtemp()).page()
    ([], None)
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, home: str | os.PathLike[str] | None = None) -> History:
        """The runs under `home` (else $AGENT_FORGE_HOME). No file is made."""
        return cls(home_folder(home) / FILE)

    def page(
        self, limit: int = 50, before: int | None = None, state: str | None = None
    ) -> tuple[list[RunLine], int | None]:
        """Some runs, the latest first, and what `before` is for the next ones (None: there are no more).

        `state` keeps those that were last written so; "running" includes what an ended process left behind.
        """
        conditions = ["id < ?"] if before is not None else []
        conditions += ["state = ?"] if state is not None else []
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        values = [value for value in (before, state) if value is not None]
        rows = self._fetch(f"{_LINE}{where} ORDER BY id DESC LIMIT ?", (*_COUNTED, *values, limit + 1))
        lines = [self._line(row) for row in rows[:limit]]
        return lines, lines[-1].number if len(rows) > limit else None

    def count(self) -> int:
        """How many runs there are."""
        rows = self._fetch("SELECT count(*) FROM runs", ())
        return int(rows[0][0]) if rows else 0

    def find(self, run: str) -> RunLine | None:
        """The line of one run, or None."""
        rows = self._fetch(f"{_LINE} WHERE run = ?", (*_COUNTED, run))
        return self._line(rows[0]) if rows else None

    def of_trace(self, trace_id: str) -> str | None:
        """The run that left this trace, or None."""
        rows = self._fetch("SELECT run FROM runs WHERE trace_id = ? ORDER BY id DESC LIMIT 1", (trace_id,))
        return str(rows[0][0]) if rows else None

    def load(self, run: str) -> RunRecord:
        """One run with its tasks. Raises StoreError if there is none of that name, or it cannot be read."""
        line = self.find(run)
        if line is None:
            fix = "`agent-forge run --list` lists the runs"
            raise UnknownRunError(f"there is no run {run!r}", where=str(self.path), fix=fix)
        (plan, settings), *_ = self._fetch("SELECT plan, settings FROM runs WHERE id = ?", (line.number,))
        log = self._fetch("SELECT * FROM task_log WHERE run = ? ORDER BY seq", (line.number,))
        try:
            return _record(line, plan, json.loads(settings), log)
        except (ValueError, TypeError, KeyError, IndexError, PlanInvalid) as error:
            raise StoreError(f"run {run!r} cannot be read: {error}", where=str(self.path)) from error

    def version(self, run: str | None = None) -> str:
        """Changes whenever something is written about `run` (or any run): for those who wait for news."""
        if run is None:
            rows = self._fetch("SELECT max(id), count(ended_s), total(tasks) FROM runs", ())
            going = self._fetch("SELECT max(id) FROM runs WHERE state = 'running'", ())
            number = going[0][0] if going else None
        else:
            rows = self._fetch("SELECT id, state, ended_s, tasks FROM runs WHERE run = ?", (run,))
            number = rows[0][0] if rows else None
        written = self._fetch("SELECT max(seq) FROM task_log WHERE run = ?", (number,)) if number else []
        return "-".join(str(value) for row in (*rows, *written) for value in row)

    def _fetch(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        if not self.path.exists():
            return []
        with store_errors(str(self.path)), self._connected() as connection:
            return connection.execute(sql, values).fetchall()

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        address = f"{self.path.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=5.0)) as connection:
            if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
                raise StoreError("the file is not a journal of Agent Forge", where=str(self.path))
            yield connection

    def _line(self, row: tuple[Any, ...]) -> RunLine:
        line = RunLine(*row)
        # Asking takes the lock for a moment, and a run that is just being begun must find it free.
        if line.state != "running" or time.time() - line.created_s < YOUNG_S:
            return line
        locks = RunLocks(self.path.with_name(self.path.name + ".lock"))
        return replace(line, state="interrupted") if locks.is_free(line.number) else line


def _record(line: RunLine, plan: str | None, settings: dict[str, Any], log: list[tuple[Any, ...]]) -> RunRecord:
    planned = [Task(**json.loads(row[9])) for row in log if row[4] == "planned"]
    found: dict[str, TaskRecord] = {}
    parts: dict[str, dict[int, TaskRecord]] = {}
    for row in log:  # the last word counts
        if row[4] != "planned":
            name, item = row[2:4]
            if item < 0:
                found[name] = _task(row, line.state)
            else:
                parts.setdefault(name, {})[item] = _task(row, line.state)
    known = None
    if plan is not None:
        known = Plan(Task(**entry) for entry in json.loads(plan)["tasks"])
    elif planned:
        known = Plan(planned)
    names = list(known.leaves) if known is not None else list(found)
    tasks = {name: found.get(name) or TaskRecord("waiting") for name in names}
    for name, items in parts.items():
        if name in tasks:
            tasks[name].items = items
            if tasks[name].state == "waiting" and line.state == "running":
                tasks[name].state = "running"
    return RunRecord(line, known, settings, tasks)


def _task(row: tuple[Any, ...], run_state: str) -> TaskRecord:
    state, effects, attempts, started_s, ended_s, result, more = row[4:11]
    if state == "started":
        state = "running" if run_state == "running" else "in_doubt" if effects else "interrupted"
    extra = json.loads(more) if more else {}
    return TaskRecord(
        state,
        started_s,
        ended_s,
        attempts or 0,
        json.loads(result) if result else None,
        extra.get("error"),
        extra.get("same_as"),
        extra.get("tokens"),
        extra.get("cost"),
        bool(effects),
    )
