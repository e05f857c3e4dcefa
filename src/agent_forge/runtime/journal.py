"""The journal: what a run has done, on disk, so that a process that dies loses nothing that was finished.

One row per run and an append-only log of its tasks. A result is committed before anything that depends on
it can be seen from outside; ends of tasks that took no time are committed together, once per turn of the
event loop. A task with side effects is written down as started, and committed, before its handler is called.

A run that is under way is claimed by its process: no other process can write to it, and the claim ends with
the process, however that ends. A run that is "running" and not claimed was interrupted.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any

from agent_forge.database import Claim, Schema, is_url, open_database
from agent_forge.errors import StoreError, UnknownRunError
from agent_forge.home import home as home_folder
from agent_forge.plans import Plan, PlanInvalid, Task
from agent_forge.runtime.job import Job
from agent_forge.runtime.result import RunResult, TaskResult, Usage
from agent_forge.runtime.stored import RunSummary, StoredRun, stored_run
from agent_forge.settings import trace_store

FILE = "runs.db"
FULL = 256  # rows that wait at most for the end of the turn
SCHEMA = Schema(
    name="run journal",
    application_id=0x4146726E,  # "AFrn"
    migrations=(
        (
            """CREATE TABLE runs (
                 id {serial}, run TEXT NOT NULL UNIQUE, state TEXT NOT NULL, created_s {real} NOT NULL, ended_s {real},
                 tasks {int}, plan TEXT, settings TEXT NOT NULL, error TEXT, trace_id TEXT)""",
            """CREATE TABLE task_log (
                 run {int} NOT NULL, seq {int} NOT NULL, task TEXT NOT NULL, item {int} NOT NULL, state TEXT NOT NULL,
                 effects {int} NOT NULL, attempts {int}, started_s {real}, ended_s {real}, result TEXT, more TEXT,
                 PRIMARY KEY (run, seq)) {packed}""",
        ),
        ("ALTER TABLE runs ADD COLUMN notes TEXT",),
    ),
    synced=False,
    page_size=4096,
)

_encode = json.JSONEncoder().encode
# Rows go in as statements of many rows that stay prepared: `sqlite3` gives the interpreter lock away around every step
# of a statement, and with one row per step that costs more than the row (docs/experiments.md).
_WIDTH = 11  # columns
_INSERTS = [
    (rows, f"INSERT INTO task_log VALUES {','.join(['(?,?,?,?,?,?,?,?,?,?,?)'] * rows)}")  # noqa: S608 (constants)
    for rows in (256, 64, 16, 4, 1)
]
_COUNT = "(SELECT count(DISTINCT task) FROM task_log WHERE run = runs.id AND item = -1 AND state {})"
_SUMMARY = (
    f"SELECT run, state, created_s, ended_s, tasks, {_COUNT.format('= ?')}, error, {_COUNT.format('IN (?, ?, ?, ?)')},"  # noqa: S608
    " trace_id, id, notes FROM runs"
)
_COUNTED = ("done", "failed", "timed_out", "denied", "in_doubt")


class Journal:
    """The journal in a SQLite file or, by URL, in a PostgreSQL database. Any thread may read it.

    >>> import tempfile
    >>> journal = Journal.open(tempfile.mkdtemp())
    >>> journal.runs()
    []
    >>> journal.close()
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        """Raises StoreError for a file or database that is not a sound journal."""
        self._database = open_database(place, SCHEMA)

    @classmethod
    def open(cls, home: str | os.PathLike[str] | None = None) -> Journal:
        """The journal at `home`, a folder or a `postgresql://` URL; else at the setting `store`; else in the home
        folder."""
        place = trace_store(home)
        return cls(place if place is not None and is_url(place) else home_folder(place) / FILE)

    @property
    def where(self) -> str:
        """The file or server of the journal, without any password."""
        return self._database.where

    # Reading

    def runs(self) -> list[RunSummary]:
        """Every run, the latest first."""
        return self._summaries("ORDER BY id DESC")

    def page(
        self, limit: int = 50, before: int | None = None, state: str | None = None
    ) -> tuple[list[RunSummary], int | None]:
        """Some runs, the latest first, and the cursor `before` of the next page (None: this is the last).

        `state` selects by what was written last; "running" includes what an ended process left behind.
        """
        conditions = {"id < ?": before, "state = ?": state}
        values = [value for value in conditions.values() if value is not None]
        where = " AND ".join(text for text, value in conditions.items() if value is not None)
        runs = self._summaries(f"{where and f'WHERE {where}'} ORDER BY id DESC LIMIT ?", *values, limit + 1)
        return runs[:limit], runs[limit - 1].number if len(runs) > limit else None

    def count(self) -> int:
        """How many runs there are."""
        return int(self._rows("SELECT count(*) FROM runs")[0][0])

    def summary(self, run: str) -> RunSummary:
        """One run in one line. Raises UnknownRunError if there is none of that name."""
        runs = self._summaries("WHERE run = ?", run)
        if not runs:
            fix = "`agent-forge runs ls` lists the runs"
            raise UnknownRunError(f"there is no run {run!r}", where=self.where, fix=fix)
        return runs[0]

    def of_trace(self, trace_id: str) -> str | None:
        """The run that left this trace, or None."""
        rows = self._rows("SELECT run FROM runs WHERE trace_id = ? ORDER BY id DESC LIMIT 1", trace_id)
        return str(rows[0][0]) if rows else None

    def version(self, run: str | None = None) -> str:
        """A text that changes whenever something is written about `run` (or any run), for those who wait for news."""
        if run is None:
            rows = self._rows("SELECT max(id), count(ended_s), coalesce(sum(tasks), 0) FROM runs")
            number = self._rows("SELECT max(id) FROM runs WHERE state = 'running'")[0][0]
        else:
            rows = self._rows("SELECT id, state, ended_s, tasks FROM runs WHERE run = ?", run)
            number = rows[0][0] if rows else None
        log = self._rows("SELECT max(seq) FROM task_log WHERE run = ?", number) if number else []
        return "-".join(str(value) for row in (*rows, *log) for value in row)

    def load(self, run: str) -> StoredRun:
        """One run with its tasks. Raises UnknownRunError if there is none of that name."""
        summary = self.summary(run)
        ((plan, settings),) = self._rows("SELECT plan, settings FROM runs WHERE id = ?", summary.number)
        log = self._rows("SELECT * FROM task_log WHERE run = ? ORDER BY seq", summary.number)
        with self._readable(run):
            return stored_run(summary, plan, settings, log)

    def _rows(self, sql: str, *values: Any) -> list[Sequence[Any]]:
        with self._database.read() as cursor:
            rows: list[Sequence[Any]] = cursor.execute(sql, values).fetchall()
            return rows

    def _summaries(self, rest: str, *values: Any) -> list[RunSummary]:
        runs = []
        for row in self._rows(f"{_SUMMARY} {rest}", *_COUNTED, *values):
            run, state, number, notes = row[0], row[1], row[9], row[10]
            if state == "running" and not self._database.is_claimed(number):
                state = "interrupted"
            with self._readable(run):
                document = json.loads(notes) if notes else self._notes_of_0_1(run)
            fields = [run, state, *row[2:10], document]
            runs.append(RunSummary(*fields))
        return runs

    def _notes_of_0_1(self, run: str) -> dict[str, Any]:
        """Until version 0.1 the notes of a run were a file beside the journal."""
        file = Path(self.where).with_name("runs") / f"{run}.json"
        if os.sep in run or self._database.dialect != "sqlite" or not file.is_file():
            return {}
        notes = json.loads(file.read_text(encoding="utf-8"))
        return notes if isinstance(notes, dict) else {}

    @contextmanager
    def _readable(self, run: str) -> Iterator[None]:
        """What cannot be read back was damaged or written by hand."""
        try:
            yield
        except (ValueError, TypeError, KeyError, IndexError, PlanInvalid) as error:
            raise StoreError(f"run {run!r} cannot be read: {error}", where=self.where) from error

    # Writing

    def begin(
        self, run: str, plan: Plan | None, settings: Mapping[str, Any], notes: Mapping[str, Any] | None = None
    ) -> RunLog:
        """Writes a new run down and claims it. Raises StoreError if there is one of that name."""
        document = None if plan is None else _plan_text(plan)
        size, described = None if plan is None else len(plan), json.dumps(settings)
        values = (run, "running", time.time(), size, document, described, json.dumps(notes or {}))
        claim = None
        try:
            with self._database.write() as cursor:
                added = cursor.execute(
                    "INSERT INTO runs (run, state, created_s, tasks, plan, settings, notes) VALUES (?,?,?,?,?,?,?)"
                    " ON CONFLICT (run) DO NOTHING",
                    values,
                ).rowcount
                if not added:
                    fix = "Resume it, or use another name"
                    raise StoreError(f"there is a run {run!r} already", where=self.where, fix=fix)
                number = int(cursor.execute("SELECT id FROM runs WHERE run = ?", (run,)).fetchone()[0])
                claim = self._claimed(run, number)  # before others can see the run
        except BaseException:
            if claim is not None:
                claim.release()
            raise
        return RunLog(claim, number, 0)

    def reopen(self, run: str) -> tuple[StoredRun, RunLog]:
        """Claims a run to continue it: what is stored of it, and its log. Raises StoreError if it is running."""
        number = self.summary(run).number
        claim = self._claimed(run, number)
        try:
            stored = self.load(run)  # only now: before the claim was ours, another process could have written
            with claim.write() as cursor:
                again = "UPDATE runs SET state = 'running', ended_s = NULL, error = NULL WHERE id = ?"
                cursor.execute(again, (number,))
        except BaseException:
            claim.release()
            raise
        return stored, RunLog(claim, number, stored.next_seq)

    def cancel(self, run: str) -> None:
        """Writes down that a run ends here. Raises StoreError if it is running."""
        number = self.summary(run).number
        claim = self._claimed(run, number)
        try:
            with claim.write() as cursor:
                ended = "UPDATE runs SET state = 'cancelled', ended_s = ?, error = ? WHERE id = ?"
                cursor.execute(ended, (time.time(), "it was asked to stop", number))
        finally:
            claim.release()

    def _claimed(self, run: str, number: int) -> Claim:
        claim = self._database.claim(number)
        if claim is None:
            fix = "Wait for its end, or end it"
            raise StoreError(f"run {run!r} is being run by another process", where=self.where, fix=fix)
        return claim

    def close(self) -> None:
        """Closes the connections."""
        self._database.close()


class RunLog:
    """The pages of one run in the journal."""

    def __init__(self, claim: Claim, number: int, seq: int) -> None:
        self._claim = claim
        self._number = number
        self._seq = seq
        self._values: list[Any] = []  # of the rows that wait, one after the other
        self._plan: Plan | None = None  # if it is to be stored (again)
        self.unsaved_ends = False
        self.origin = 0.0  # the clock at the start of the run

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

    def noted(self, job: Job, state: str) -> None:
        """What holds of a job until its end is written."""
        self._append(job, state, None)

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
            self._write()

    def end(self, result: RunResult) -> None:
        """Writes what waits and the end of the run."""
        error = result.error
        if error is not None:  # text that every database takes: a tool's error may hold lone surrogates and zeros
            error = error.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")
        values = (result.state, time.time(), error, result.trace_id, self._number)
        self._write("UPDATE runs SET state = ?, ended_s = ?, error = ?, trace_id = ? WHERE id = ?", values)

    def _write(self, last: str | None = None, last_values: Sequence[Any] = ()) -> None:
        values = self._values
        with self._claim.write() as cursor:
            at, left = 0, len(values) // _WIDTH
            for rows, insert in _INSERTS:
                while left >= rows:
                    cursor.execute(insert, values[at : at + rows * _WIDTH])
                    at, left = at + rows * _WIDTH, left - rows
            if self._plan is not None:
                document = (_plan_text(self._plan), len(self._plan), self._number)
                cursor.execute("UPDATE runs SET plan = ?, tasks = ? WHERE id = ?", document)
            if last is not None:
                cursor.execute(last, last_values)
        self._values, self._plan, self.unsaved_ends = [], None, False

    def close(self) -> None:
        """Releases the run."""
        self._claim.release()


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
    if task.args or task.meta or task.parent or task.for_each or task.limit is not None or task.control is not None:
        return _encode(task.as_dict())
    name, goal = encode_basestring_ascii(task.id), encode_basestring_ascii(task.goal)
    action = "" if task.action is None else f'"action": {encode_basestring_ascii(task.action)}, '
    needs = ", ".join(map(encode_basestring_ascii, task.depends_on))
    return f'{{"id": {name}, "goal": {goal}, {action}"depends_on": [{needs}]}}'
