"""The registry: which checkpoints there are, where they came from, and which sessions made them.

It is a database beside the `models` folder (SQLite under the home folder, PostgreSQL by URL). The bytes live in the
folders; a row is written only after its folder is complete and synced, and removed before its folder is.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_forge.database import Database, Schema, open_database
from agent_forge.errors import CheckpointError, UsageError
from agent_forge.forge import checkpoint as checkpoints
from agent_forge.forge.checkpoint import Checkpoint
from agent_forge.home import home as home_folder

DAY_S = 86_400.0
STATES = ("running", "completed", "failed", "paused")

SCHEMA = Schema(
    name="model registry",
    application_id=0x41467265,  # "AFre"
    migrations=(
        (
            """CREATE TABLE checkpoints (
                 digest TEXT NOT NULL PRIMARY KEY, path TEXT NOT NULL, phase TEXT NOT NULL, parameters {int},
                 bytes {int} NOT NULL, card TEXT NOT NULL, card_digest TEXT NOT NULL, created_s {real} NOT NULL,
                 pinned {int} NOT NULL DEFAULT 0)""",
            """CREATE TABLE lineage (
                 child TEXT NOT NULL REFERENCES checkpoints (digest) ON DELETE CASCADE, parent TEXT NOT NULL,
                 PRIMARY KEY (child, parent))""",
            """CREATE TABLE sessions (
                 id TEXT NOT NULL PRIMARY KEY, pipeline TEXT NOT NULL, state TEXT NOT NULL, started_s {real} NOT NULL,
                 ended_s {real}, host TEXT NOT NULL, pid {int} NOT NULL)""",
            """CREATE TABLE phases (
                 session TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE, name TEXT NOT NULL,
                 state TEXT NOT NULL, cache_key TEXT, gate TEXT, checkpoint TEXT, error TEXT, started_s {real},
                 ended_s {real}, PRIMARY KEY (session, name))""",
            "CREATE TABLE finished (cache_key TEXT NOT NULL PRIMARY KEY, outcome TEXT NOT NULL, at_s {real} NOT NULL)",
            """CREATE TABLE handoffs (
                 id {serial}, session TEXT, source TEXT NOT NULL, target TEXT NOT NULL, verdict TEXT NOT NULL,
                 clauses TEXT NOT NULL, at_s {real} NOT NULL)""",
            "CREATE INDEX checkpoints_created ON checkpoints (created_s)",
            "CREATE INDEX sessions_started ON sessions (started_s)",
        ),
    ),
)


@dataclass(frozen=True)
class Entry:
    """A row of the registry."""

    digest: str
    path: Path
    phase: str
    parameters: int | None
    bytes: int
    parents: tuple[str, ...]
    created_s: float
    card: Mapping[str, Any]


@dataclass(frozen=True)
class CleanupPolicy:
    """What `gc` keeps. A checkpoint that something points to is never removed, whatever its age."""

    completed_days: float = 30
    failed_days: float = 7
    sessions: int = 100
    keep: int = 5  # the newest checkpoints, of any age


@dataclass(frozen=True)
class Cleanup:
    """What a cleanup removes (or, dry, would remove)."""

    sessions: tuple[str, ...]
    checkpoints: tuple[str, ...]
    bytes: int


class Registry:
    """Checkpoints by digest, their lineage, sessions and handoffs.

    >>> import tempfile
    >>> registry = Registry(tempfile.mkdtemp())
    >>> registry.ls()
    []
    """

    def __init__(self, home: str | os.PathLike[str] | None = None, url: str | None = None) -> None:
        self.home = home_folder(home)
        self.models = self.home / "models"
        self.db: Database = open_database(url or self.home / "registry.db", SCHEMA)

    # --- checkpoints ---

    def add(self, checkpoint: Checkpoint) -> None:
        """Registers a finished checkpoint; once is enough, twice does no harm."""
        card = checkpoint.card.to_json()
        row = (
            checkpoint.digest,
            str(checkpoint.path.resolve()),
            checkpoint.card.phase,
            checkpoint.card.parameters,
            checkpoint.bytes(),
            card,
            _card_digest(checkpoint.path),
            time.time(),
        )
        with self.db.write() as cursor:
            cursor.execute(
                "INSERT INTO checkpoints (digest, path, phase, parameters, bytes, card, card_digest, created_s)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (digest) DO NOTHING",
                row,
            )
            for parent in checkpoint.card.inputs:
                cursor.execute(
                    "INSERT INTO lineage (child, parent) VALUES (?, ?) ON CONFLICT (child, parent) DO NOTHING",
                    (checkpoint.digest, parent),
                )

    def ls(self, phase: str | None = None) -> list[Entry]:
        """All checkpoints, the newest first."""
        with self.db.read() as cursor:
            rows = cursor.execute(
                "SELECT digest, path, phase, parameters, bytes, created_s, card FROM checkpoints"
                " ORDER BY created_s DESC, digest"
            ).fetchall()
            edges = cursor.execute("SELECT child, parent FROM lineage ORDER BY parent").fetchall()
        parents: dict[str, list[str]] = {}
        for child, parent in edges:
            parents.setdefault(child, []).append(parent)
        return [_entry(row, tuple(parents.get(row[0], ()))) for row in rows if phase in (None, row[2])]

    def find(self, name: str) -> Entry:
        """The checkpoint whose digest (or `phase-digest` name) starts with `name`. Raises UsageError."""
        wanted = name.rpartition("-")[2] if "-" in name else name
        found = [entry for entry in self.ls() if wanted and entry.digest.startswith(wanted)]
        if len(found) == 1:
            return found[0]
        what = f"{len(found)} checkpoints start with {name!r}" if found else f"there is no checkpoint {name!r}"
        raise UsageError(what, fix="`agent-forge models ls` lists them")

    def load(self, name: str) -> Checkpoint:
        """Opens a registered checkpoint, every byte checked. Raises CheckpointError if they do not match."""
        entry = self.find(name)
        loaded = checkpoints.load(entry.path, entry.digest)
        with self.db.read() as cursor:
            (expected,) = cursor.execute(
                "SELECT card_digest FROM checkpoints WHERE digest = ?", (entry.digest,)
            ).fetchone()
        if _card_digest(entry.path) != expected:
            raise CheckpointError("the card was changed after it was written", where=str(entry.path / checkpoints.CARD))
        return loaded

    def pin(self, name: str, pinned: bool = True) -> None:
        """Keeps a checkpoint whatever the cleanup policy says, or no longer."""
        with self.db.write() as cursor:
            cursor.execute("UPDATE checkpoints SET pinned = ? WHERE digest = ?", (int(pinned), self.find(name).digest))

    # --- finished phases ---

    def finished(self, key: str) -> dict[str, Any] | None:
        """The recorded outcome of the phase with this key, if it was finished and its checkpoint is still sound."""
        with self.db.read() as cursor:
            row = cursor.execute("SELECT outcome FROM finished WHERE cache_key = ?", (key,)).fetchone()
        if row is None:
            return None
        outcome: dict[str, Any] = json.loads(row[0])
        try:
            if outcome.get("checkpoint"):
                self.load(outcome["checkpoint"])
        except (CheckpointError, UsageError):  # removed or damaged: the phase must run again
            return None
        return outcome

    def finish(self, key: str, outcome: Mapping[str, Any]) -> None:
        """Records what a phase came to, so that it is not done again."""
        with self.db.write() as cursor:
            cursor.execute(
                "INSERT INTO finished (cache_key, outcome, at_s) VALUES (?, ?, ?)"
                " ON CONFLICT (cache_key) DO UPDATE SET outcome = excluded.outcome, at_s = excluded.at_s",
                (key, json.dumps(outcome, sort_keys=True), time.time()),
            )

    # --- sessions ---

    def start_session(self, session: str, pipeline: Mapping[str, Any]) -> None:
        """Begins a session, or takes up one that was interrupted."""
        with self.db.write() as cursor:
            cursor.execute(
                "INSERT INTO sessions (id, pipeline, state, started_s, host, pid) VALUES (?, ?, 'running', ?, ?, ?)"
                " ON CONFLICT (id) DO UPDATE SET state = 'running', ended_s = NULL, host = excluded.host,"
                " pid = excluded.pid",
                (session, json.dumps(pipeline), time.time(), socket.gethostname(), os.getpid()),
            )

    def end_session(self, session: str, state: str) -> None:
        if state not in STATES[1:]:
            raise ValueError(f"{state!r} is not how a session ends")
        with self.db.write() as cursor:
            cursor.execute("UPDATE sessions SET state = ?, ended_s = ? WHERE id = ?", (state, time.time(), session))

    def record_phase(self, session: str, name: str, **columns: Any) -> None:
        """Sets columns of a phase of a session: state, cache_key, gate, checkpoint, error, started_s, ended_s."""
        allowed = {"state", "cache_key", "gate", "checkpoint", "error", "started_s", "ended_s"}
        if not columns.keys() <= allowed:
            raise ValueError(f"no such column: {', '.join(sorted(columns.keys() - allowed))}")
        names = list(columns)
        values = [json.dumps(columns[key]) if key == "gate" else columns[key] for key in names]
        if "state" not in columns:
            raise ValueError("a phase has a state")
        with self.db.write() as cursor:
            cursor.execute(
                f"INSERT INTO phases (session, name, {', '.join(names)}) VALUES (?, ?{', ?' * len(names)})"  # noqa: S608
                f" ON CONFLICT (session, name) DO UPDATE SET {', '.join(f'{key} = excluded.{key}' for key in names)}",
                (session, name, *values),
            )

    def sessions(self) -> list[dict[str, Any]]:
        """All sessions, the newest first. One whose process died without a word is shown as it is: interrupted."""
        with self.db.read() as cursor:
            rows = cursor.execute(
                "SELECT id, pipeline, state, started_s, ended_s, host, pid FROM sessions ORDER BY started_s DESC, id"
            ).fetchall()
        return [_session(row) for row in rows]

    def phases(self, session: str) -> list[dict[str, Any]]:
        """The phases of a session in the order in which they were first recorded."""
        with self.db.read() as cursor:
            rows = cursor.execute(
                "SELECT name, state, gate, checkpoint, error, started_s, ended_s FROM phases WHERE session = ?"
                " ORDER BY started_s, name",
                (session,),
            ).fetchall()
        names = ("name", "state", "gate", "checkpoint", "error", "started_s", "ended_s")
        found = [dict(zip(names, row, strict=True)) for row in rows]
        return [{**phase, "gate": json.loads(phase["gate"]) if phase["gate"] else None} for phase in found]

    def record_handoff(
        self, session: str | None, source: str, target: str, verdict: str, clauses: Iterable[str]
    ) -> None:
        with self.db.write() as cursor:
            cursor.execute(
                "INSERT INTO handoffs (session, source, target, verdict, clauses, at_s) VALUES (?, ?, ?, ?, ?, ?)",
                (session, source, target, verdict, json.dumps(list(clauses)), time.time()),
            )

    def handoffs(self) -> list[dict[str, Any]]:
        names = ("session", "source", "target", "verdict", "clauses", "at_s")
        with self.db.read() as cursor:
            rows = cursor.execute(f"SELECT {', '.join(names)} FROM handoffs ORDER BY id").fetchall()  # noqa: S608
        found = [dict(zip(names, row, strict=True)) for row in rows]
        return [{**row, "clauses": json.loads(row["clauses"])} for row in found]

    # --- cleanup ---

    def gc(self, policy: CleanupPolicy | None = None, *, dry: bool = True, now_s: float | None = None) -> Cleanup:
        """Removes old sessions and the checkpoints that nothing points to any more; `dry` only says which."""
        policy, now = policy or CleanupPolicy(), time.time() if now_s is None else now_s
        sessions = _expired(self.sessions(), policy, now)
        entries = self.ls()
        kept = self._pointed_to(entries, sessions) | {entry.digest for entry in entries[: policy.keep]}
        for entry in entries:  # newest first: a child is seen before its parents
            if entry.digest in kept:
                kept.update(entry.parents)
        unkept = [entry for entry in entries if entry.digest not in kept and _older(entry, policy, now)]
        cleanup = Cleanup(
            tuple(sessions), tuple(entry.digest for entry in unkept), sum(entry.bytes for entry in unkept)
        )
        if not dry:
            self._remove(sessions, unkept)
        return cleanup

    def _pointed_to(self, entries: Sequence[Entry], expired: Sequence[str]) -> set[str]:
        with self.db.read() as cursor:
            pinned = cursor.execute("SELECT digest FROM checkpoints WHERE pinned = 1").fetchall()
            used = cursor.execute("SELECT session, checkpoint FROM phases WHERE checkpoint IS NOT NULL").fetchall()
        gone = set(expired)
        return {row[0] for row in pinned} | {digest for session, digest in used if session not in gone}

    def _remove(self, sessions: Sequence[str], entries: Sequence[Entry]) -> None:
        with self.db.write() as cursor:
            for session in sessions:
                cursor.execute("DELETE FROM handoffs WHERE session = ?", (session,))
                cursor.execute("DELETE FROM phases WHERE session = ?", (session,))
                cursor.execute("DELETE FROM sessions WHERE id = ?", (session,))
            for entry in entries:
                cursor.execute("DELETE FROM lineage WHERE child = ?", (entry.digest,))
                cursor.execute("DELETE FROM checkpoints WHERE digest = ?", (entry.digest,))
        models = self.models.resolve()
        for entry in entries:  # the rows are gone: a crash from here on leaves a folder, never a row without one
            if entry.path.resolve().parent == models:  # what a user imported from elsewhere is theirs
                shutil.rmtree(entry.path, ignore_errors=True)


def _entry(row: Sequence[Any], parents: tuple[str, ...]) -> Entry:
    digest, path, phase, parameters, size, created_s, card = row
    return Entry(digest, Path(path), phase, parameters, size, parents, created_s, json.loads(card))


def _card_digest(folder: Path) -> str:
    card = folder / checkpoints.CARD
    return checkpoints.file_digest(card) if card.is_file() else ""


def _session(row: Sequence[Any]) -> dict[str, Any]:
    session, pipeline, state, started_s, ended_s, host, pid = row
    if state == "running" and host == socket.gethostname() and not _alive(pid):
        state = "interrupted"
    return {
        "session": session,
        "pipeline": json.loads(pipeline),
        "state": state,
        "started_s": started_s,
        "ended_s": ended_s,
    }


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _expired(sessions: Sequence[Mapping[str, Any]], policy: CleanupPolicy, now: float) -> list[str]:
    """Sessions beyond their age, and the oldest beyond the number; never one that is running."""
    ended = [session for session in sessions if session["state"] != "running"]
    found = []
    for place, session in enumerate(ended):
        days = policy.completed_days if session["state"] == "completed" else policy.failed_days
        at = session["ended_s"] or session["started_s"]
        if session["state"] != "paused" and (now - at > days * DAY_S or place >= policy.sessions):
            found.append(session["session"])
    return found


def _older(entry: Entry, policy: CleanupPolicy, now: float) -> bool:
    return now - entry.created_s > min(policy.completed_days, policy.failed_days) * DAY_S
