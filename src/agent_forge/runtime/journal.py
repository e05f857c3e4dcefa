"""The journal: what a run has done, on disk, so that a process that dies loses nothing that was finished.

One row a run and an append-only log of its tasks. A result is committed before anything that depends on it can be seen
from outside; ends of tasks that took no time are committed together, once in a turn of the event loop. A task with side
effects is written down as started, and committed, before its handler is called.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_forge.errors import StoreError, UnknownRunError
from agent_forge.home import home as home_folder
from agent_forge.plans import Plan, Task
from agent_forge.runtime.budget import Budget
from agent_forge.runtime.journal_file import FILE, RunLocks, open_file, store_errors
from agent_forge.runtime.result import RunResult, TaskResult, Usage
from agent_forge.runtime.retry import Retry

if TYPE_CHECKING:
    from agent_forge.runtime.job import Job

FULL = 256  # rows that wait at most for the end of the turn
_encode = json.JSONEncoder().encode
# Rows go in as statements of many rows that stay prepared: `sqlite3` gives the interpreter lock away around every step
# of a statement, and with one row a step that costs more than the row (docs/experiments.md).
_WIDTH = 11  # columns
_INSERTS = [
    (rows, f"INSERT INTO task_log VALUES {','.join(['(?,?,?,?,?,?,?,?,?,?,?)'] * rows)}")  # noqa: S608 (constants)
    for rows in (256, 64, 16, 4, 1)
]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A line of the list of runs. `state` is "running" or "interrupted" for one that has not ended."""

    run: str
    state: str
    created_s: float  # since the epoch
    ended_s: float | None
    tasks: int | None
    done: int
    error: str | None = None


@dataclass(slots=True)
class StoredRun:
    """What the journal knows of a run: its plan as far as it was written, and how its tasks ended."""

    run: str
    number: int
    state: str
    plan: Plan | None
    settings: dict[str, Any]
    ended: dict[str, TaskResult] = field(default_factory=dict)  # what will not be done again
    items: dict[str, dict[int, TaskResult]] = field(default_factory=dict)  # the same, of elements of `for_each` tasks
    usage: Usage = field(default_factory=Usage)
    next_seq: int = 0

    @property
    def results(self) -> dict[str, Any]:
        """The results by task."""
        return {name: outcome.result for name, outcome in self.ended.items() if outcome.state == "done"}

    @property
    def in_doubt(self) -> list[str]:
        """Tasks with side effects that were running when the process died."""
        return [name for name, outcome in self.ended.items() if outcome.state == "in_doubt"]


class Journal:
    """The journal in a home folder.

    >>> import tempfile
    >>> journal = Journal.open(tempfile.mkdtemp())
    >>> journal.runs()
    []
    >>> journal.close()
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = open_file(path)
        self._locks = RunLocks(path.with_name(path.name + ".lock"))

    @classmethod
    def open(cls, home: str | os.PathLike[str] | None = None) -> Journal:
        """The journal under `home` (else $AGENT_FORGE_HOME). Raises StoreError for a file that is not a journal."""
        return cls(home_folder(home) / FILE)

    def runs(self) -> list[RunSummary]:
        """Every run, the latest first."""
        done = "(SELECT count(DISTINCT task) FROM task_log WHERE run = runs.id AND state = 'done' AND item < 0)"
        with store_errors(str(self.path)):
            rows = self._connection.execute(
                f"SELECT run, state, created_s, ended_s, tasks, {done}, error, id FROM runs ORDER BY id DESC"  # noqa: S608
            ).fetchall()
        return [RunSummary(row[0], self._state(row[1], row[7]), *row[2:7]) for row in rows]

    def _state(self, state: str, number: int) -> str:
        return "interrupted" if state == "running" and self._locks.is_free(number) else state

    def load(self, run: str) -> StoredRun:
        """A run as it is on disk. Raises StoreError if there is none of that name."""
        with store_errors(str(self.path)):
            row = self._connection.execute(
                "SELECT id, state, plan, settings FROM runs WHERE run = ?", (run,)
            ).fetchone()
            if row is None:
                raise UnknownRunError(
                    f"there is no run {run!r}", where=str(self.path), fix="`agent-forge run --list` lists them"
                )
            number, state, plan, settings = row
            log = self._connection.execute("SELECT * FROM task_log WHERE run = ? ORDER BY seq", (number,)).fetchall()
        with _readable(self.path, run):
            stored = StoredRun(run, number, self._state(state, number), None, _settings(json.loads(settings)))
            return _replay(stored, plan, log)

    def begin(self, run: str, plan: Plan | None, settings: dict[str, Any]) -> RunLog:
        """Writes a new run down. Raises StoreError if there is one of that name."""
        document = None if plan is None else _plan_text(plan)
        values = (run, "running", time.time(), None if plan is None else len(plan), document, json.dumps(settings))
        with store_errors(str(self.path)):
            try:
                cursor = self._connection.execute(
                    "INSERT INTO runs (run, state, created_s, tasks, plan, settings) VALUES (?,?,?,?,?,?)", values
                )
            except sqlite3.IntegrityError:
                raise StoreError(
                    f"there is a run {run!r} already", where=str(self.path), fix="resume it, or use another name"
                ) from None
        return self._locked(run, int(cursor.lastrowid or 0), 0)

    def reopen(self, run: str) -> tuple[StoredRun, RunLog]:
        """Goes on with a run: what is known of it, and where to write on. Raises StoreError if it is running."""
        number = self.load(run).number
        log = self._locked(run, number, 0)
        try:
            stored = self.load(run)  # once more: before the lock was ours, another process could have written
            log.go_on(stored.next_seq)
        except BaseException:
            log.close()
            raise
        return stored, log

    def _locked(self, run: str, number: int, seq: int) -> RunLog:
        if not self._locks.take(number):
            raise StoreError(
                f"run {run!r} is being run by another process", where=str(self.path), fix="wait for its end, or end it"
            )
        return RunLog(self._connection, self._locks, number, seq, str(self.path))

    def close(self) -> None:
        """Closes the file."""
        with suppress(sqlite3.Error):
            self._connection.close()


class RunLog:
    """The pages of one run in the journal."""

    def __init__(self, connection: sqlite3.Connection, locks: RunLocks, number: int, seq: int, where: str) -> None:
        self._connection = connection
        self._locks = locks
        self._number = number
        self._seq = seq
        self._where = where
        self._values: list[Any] = []  # of the rows that wait, one after the other
        self._plan: Plan | None = None
        self.unsaved_ends = False
        self.origin = 0.0

    @property
    def full(self) -> bool:
        """Whether so many rows wait that they should be committed."""
        return len(self._values) >= FULL * _WIDTH

    def started(self, job: Job) -> None:
        """A handler is about to be called, or waits for the first time."""
        self._append(job, "started", None)

    def ended(self, job: Job) -> bool:
        """A job has ended. Whether so many rows wait now that they should be committed."""
        self.unsaved_ends = True
        self._append(job, job.state, _text(job.result) if job.state == "done" else None)
        return len(self._values) >= FULL * _WIDTH

    def _append(self, job: Job, state: str, result: str | None) -> None:
        origin, started, ended, fan = self.origin, job.started, job.ended, job.fan
        rare = job.usage is not None or job.error is not None or job.same_as is not None
        self._values += (
            self._number,
            self._seq,
            job.id if fan is None else fan.whole.id,
            job.item,
            state,
            1 if job.terms.side_effects else 0,
            job.attempts,
            None if started is None else started - origin,
            None if ended is None else ended - origin,
            result,
            _more(job) if rare else None,
        )
        self._seq += 1

    def known(self, name: str, outcome: TaskResult) -> None:
        """A result that was there before the run."""
        self._note(name, outcome.state, outcome.result)

    def planned(self, task: Task) -> None:
        """A task came from a stream."""
        self._note(task.id, "planned", task.as_dict())

    def _note(self, task: str, state: str, value: Any) -> None:
        self._values += (self._number, self._seq, task, -1, state, 0, 0, None, None, _text(value), None)
        self._seq += 1

    def replanned(self, plan: Plan) -> None:
        """The plan is whole now, or another one."""
        self._plan = plan

    def commit(self) -> None:
        """Writes what waits, as one transaction."""
        if self._values or self._plan is not None:
            with store_errors(self._where):
                self._transaction()
            self._values, self._plan, self.unsaved_ends = [], None, False

    def _transaction(self, *more: tuple[str, tuple[Any, ...]]) -> None:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            at, left = 0, len(self._values) // _WIDTH
            for rows, insert in _INSERTS:
                while left >= rows:
                    connection.execute(insert, self._values[at : at + rows * _WIDTH])
                    at, left = at + rows * _WIDTH, left - rows
            if self._plan is not None:
                document = (_plan_text(self._plan), len(self._plan), self._number)
                connection.execute("UPDATE runs SET plan = ?, tasks = ? WHERE id = ?", document)
            for statement, values in more:
                connection.execute(statement, values)
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

    def end(self, result: RunResult) -> None:
        """Writes the end of the run."""
        values = (result.state, time.time(), result.error, result.trace_id, self._number)
        with store_errors(self._where):
            self._transaction(("UPDATE runs SET state = ?, ended_s = ?, error = ?, trace_id = ? WHERE id = ?", values))
        self._values, self._plan = [], None

    def go_on(self, seq: int) -> None:
        """Marks the run as running again, to be continued after row `seq`."""
        self._seq = seq
        with store_errors(self._where):
            self._connection.execute(
                "UPDATE runs SET state = 'running', ended_s = NULL, error = NULL WHERE id = ?", (self._number,)
            )

    def close(self) -> None:
        """Lets go of the run."""
        self._locks.give(self._number)


def _replay(stored: StoredRun, plan: str | None, log: list[tuple[Any, ...]]) -> StoredRun:
    """Reads the log from the beginning: for each task and element the last word counts."""
    planned: list[Task] = []
    last: dict[tuple[str, int], tuple[Any, ...]] = {}
    for row in log:
        _, seq, task, item, state, *_ = row
        stored.next_seq = seq + 1
        if state == "planned":
            planned.append(Task(**json.loads(row[9])))
        else:
            last[task, item] = row
    if plan is not None:
        stored.plan = Plan(Task(**entry) for entry in json.loads(plan)["tasks"])
    elif planned:
        stored.plan = Plan(planned)
    for (task, item), row in last.items():
        more = json.loads(row[10]) if row[10] else {}
        stored.usage.add(more.get("tokens"), more.get("cost"), row[6] if row[4] != "started" else 0)
        outcome = _outcome(row, more)
        if outcome is not None:
            if item < 0:
                stored.ended[task] = outcome
            else:
                stored.items.setdefault(task, {})[item] = outcome
    return stored


def _outcome(row: tuple[Any, ...], more: dict[str, Any]) -> TaskResult | None:
    """How a task stands after a crash; None when it is to be run (again)."""
    state, effects, attempts, started_s, ended_s, result = row[4:10]
    used = more.get("tokens"), more.get("cost")
    outcome = TaskResult(
        state,
        started_s=started_s,
        ended_s=ended_s,
        attempts=attempts,
        same_as=more.get("same_as"),
        reused=True,
        usage=None if used == (None, None) else Usage(0, *used),
    )
    if state == "done":
        outcome.result = json.loads(result)
    elif not effects or (started_s is None and state != "started"):
        return None  # nothing happened that must not happen twice
    elif state == "failed":
        outcome.error = more.get("error")
    else:
        outcome.state = "in_doubt"
        outcome.error = "it was running when an earlier process ended: whether its side effect happened is not known"
    return outcome


def _more(job: Job) -> str:
    """What few rows have."""
    usage = job.usage or Usage()
    values = {"error": job.error, "same_as": job.same_as, "tokens": usage.tokens, "cost": usage.cost}
    return _encode({name: value for name, value in values.items() if value is not None})


def _text(value: Any) -> str:
    """A value as JSON; the commonest kinds without the price of a whole encoder."""
    if value is None:
        return "null"
    kind = type(value)
    if kind is str:
        return encode_basestring_ascii(value)
    return str(value) if kind is int else _encode(value)


def _plan_text(plan: Plan) -> str:
    return f'{{"tasks": [{", ".join(map(_task_text, plan))}]}}'


def _task_text(task: Task) -> str:
    """A task as JSON: the encoding of `as_dict`, put together by hand where there is little in it."""
    if task.action is not None or task.args or task.meta or task.parent or task.for_each or task.limit is not None:
        return _encode(task.as_dict())
    name, goal = encode_basestring_ascii(task.id), encode_basestring_ascii(task.goal)
    needs = ", ".join(map(encode_basestring_ascii, task.depends_on))
    return f'{{"id": {name}, "goal": {goal}, "depends_on": [{needs}]}}'


def _settings(document: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run from their JSON."""
    if document.get("budget") is not None:
        document["budget"] = Budget(**document["budget"])
    if document.get("retry") is not None:
        document["retry"] = Retry(**document["retry"])
    return document


@contextmanager
def _readable(path: Path, run: str) -> Iterator[None]:
    """What cannot be read back was damaged or written by hand."""
    try:
        yield
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise StoreError(f"run {run!r} cannot be read: {error}", where=str(path)) from error
