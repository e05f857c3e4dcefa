"""The registry: which checkpoints exist, where they came from, and which sessions made them.

It is a database beside the `models` folder (SQLite in the home folder, PostgreSQL by URL). The bytes are in the
folders; a row is written after its folder is complete and synced, and removed before its folder is.
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

from agent_forge.database import Cursor, Database, Schema, is_url, open_database
from agent_forge.errors import CheckpointError, UsageError
from agent_forge.files import file_digest
from agent_forge.forge import checkpoint as checkpoints
from agent_forge.forge.checkpoint import Checkpoint
from agent_forge.forge.cleanup import (
    DAY_S,
    Cleanup,
    CleanupPolicy,
    expired_sessions,
    mark,
    remove_leftovers,
    remove_marked,
    with_ancestors,
)
from agent_forge.forge.model_store import ModelStore
from agent_forge.forge.progress import Tell, silent
from agent_forge.home import home as home_folder

POLICIES = "policy"  # what stands for the phase of a trained policy
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


COLUMNS = ("digest", "path", "phase", "parameters", "bytes", "card", "card_digest")
ADD = (  # a checkpoint that is made again, with a new card, is as young as that card
    f"INSERT INTO checkpoints ({', '.join(COLUMNS)}, created_s) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
    f" ON CONFLICT (digest) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in COLUMNS)}, created_s ="
    " CASE WHEN checkpoints.card_digest = excluded.card_digest THEN checkpoints.created_s ELSE excluded.created_s END"
)


@dataclass(frozen=True)
class Entry:
    """A checkpoint in the registry."""

    digest: str
    path: Path
    phase: str
    parameters: int | None
    bytes: int
    parents: tuple[str, ...]
    created_s: float
    card: Mapping[str, Any]

    @property
    def name(self) -> str:
        """`phase-digest`, or `agent@version` for a policy."""
        made = self.card.get("config")
        if self.phase == POLICIES and isinstance(made, Mapping) and {"agent", "version"} <= made.keys():
            return f"{made['agent']}@{made['version']}"
        return f"{self.phase}-{self.digest[:12]}"


class Registry:
    """Checkpoints by digest, their lineage, sessions and handoffs.

    The database is `registry.db` in the home folder, or the one at `url` or $AGENT_FORGE_STORE. The checkpoints
    themselves are in the home folder either way; with a model store at `models` or $AGENT_FORGE_MODELS they are also
    there, and one that is not in the home folder is fetched when it is loaded.

    >>> import tempfile
    >>> registry = Registry(tempfile.mkdtemp())
    >>> registry.ls()
    []
    """

    def __init__(
        self, home: str | os.PathLike[str] | None = None, url: str | None = None, models: str | None = None
    ) -> None:
        self.home = home_folder(home)
        self.models = self.home / "models"
        place = models or os.environ.get("AGENT_FORGE_MODELS")
        self.store = ModelStore(place) if place else None
        store = url or os.environ.get("AGENT_FORGE_STORE") or ""
        self.db: Database = open_database(store if is_url(store) else self.home / "registry.db", SCHEMA)

    # --- checkpoints ---

    def add(self, checkpoint: Checkpoint) -> None:
        """Registers a finished checkpoint; repeating that does no harm.

        One that is registered at another path stays there as long as it is sound. It is sent to the model store first,
        so that whoever finds the row can fetch it. Raises CheckpointError if the folder has been removed meanwhile, and
        StoreError.
        """
        if self.store is not None and not self.store.has(checkpoint):
            self.store.push(checkpoint)
        path, card = checkpoint.path.resolve(), checkpoint.card
        figures = (card.phase, card.parameters, checkpoint.bytes(), card.to_json(), _card_digest(path), time.time())
        row = (checkpoint.digest, str(path), *figures)
        with self.db.write() as cursor:
            if not checkpoints.is_model(checkpoint.path):
                raise CheckpointError("the checkpoint has been removed meanwhile", where=str(checkpoint.path))
            if not _sound_elsewhere(cursor, checkpoint):
                cursor.execute(ADD, row)
            for parent in checkpoint.card.inputs:
                cursor.execute(
                    "INSERT INTO lineage (child, parent) VALUES (?, ?) ON CONFLICT (child, parent) DO NOTHING",
                    (checkpoint.digest, parent),
                )

    def ls(self, phase: str | None = None) -> list[Entry]:
        """All checkpoints, newest first."""
        with self.db.read() as cursor:
            return [entry for entry in _entries(cursor, self.models) if phase in (None, entry.phase)]

    def find(self, name: str) -> Entry:
        """The checkpoint whose digest (or `phase-digest` name) starts with `name`, whose name (`agent@version` for a
        policy) or folder it is; else what a session ended with, `SESSION` or `SESSION/PHASE`.

        Raises UsageError if there is none, or more than one.
        """
        matches = [entry for entry in self.ls() if _matches(entry, name)]
        if not matches:
            made = self._of_session(*name.split("/", 1))
            matches = [entry for entry in self.ls() if entry.digest == made]
        if len(matches) == 1:
            return matches[0]
        what = f"{len(matches)} checkpoints start with {name!r}" if matches else f"there is no checkpoint {name!r}"
        raise UsageError(what, fix="`agent-forge models ls` lists them")

    def _of_session(self, session: str, phase: str = "") -> str | None:
        """The digest that a phase of a session ended with, or the last of its phases. The session goes by its name, or
        is the newest one of the pipeline with that name."""
        known = [one["session"] for one in self.sessions() if session in (one["session"], one["pipeline"].get("name"))]
        phases = self.phases(known[0]) if known else []
        made = [each["checkpoint"] for each in phases if each["checkpoint"] and phase in ("", each["name"])]
        return made[-1] if made else None

    def load(self, name: str) -> Checkpoint:
        """Opens a registered checkpoint, or one of the model store, and checks every byte.

        Raises CheckpointError if the digests do not match, UsageError if there is none, and StoreError.
        """
        try:
            entry = self.find(name)
        except UsageError:
            if self.store is None:
                raise
            return self.pull(name)
        with self.db.read() as cursor:
            (expected,) = cursor.execute(
                "SELECT card_digest FROM checkpoints WHERE digest = ?", (entry.digest,)
            ).fetchone()
        if self.store is not None and not (entry.path.is_dir() and _card_digest(entry.path) == expected):
            self.store.pull(entry.digest, self.models)  # another machine made it, or measured it again
            entry = self.find(entry.digest)
        checkpoint = checkpoints.load(entry.path, entry.digest)
        if _card_digest(entry.path) != expected:
            raise CheckpointError("the card was changed after it was written", where=str(entry.path / checkpoints.CARD))
        return checkpoint

    def pull(self, name: str, tell: Tell = silent) -> Checkpoint:
        """Fetches a checkpoint from the model store and registers it.

        Raises UsageError, CheckpointError, StoreError.
        """
        if self.store is None:
            raise UsageError(
                "there is no model store", fix="Name one: --models s3://bucket/models, or AGENT_FORGE_MODELS"
            )
        checkpoint = self.store.pull(name, self.models, tell)
        self.add(checkpoint)
        return checkpoint

    def pin(self, name: str, pinned: bool = True) -> None:
        """Protects a checkpoint from cleanup, or stops protecting it."""
        with self.db.write() as cursor:
            cursor.execute("UPDATE checkpoints SET pinned = ? WHERE digest = ?", (int(pinned), self.find(name).digest))

    # --- finished phases ---

    def finished(self, key: str) -> dict[str, Any] | None:
        """The recorded outcome of the phase with this key, if its checkpoint is still sound."""
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
        """Records the outcome of a phase, so that it is not run again."""
        with self.db.write() as cursor:
            cursor.execute(
                "INSERT INTO finished (cache_key, outcome, at_s) VALUES (?, ?, ?)"
                " ON CONFLICT (cache_key) DO UPDATE SET outcome = excluded.outcome, at_s = excluded.at_s",
                (key, json.dumps(outcome, sort_keys=True), time.time()),
            )

    # --- sessions ---

    def start_session(self, session: str, pipeline: Mapping[str, Any]) -> None:
        """Begins a session, or resumes an interrupted one."""
        with self.db.write() as cursor:
            cursor.execute(
                "INSERT INTO sessions (id, pipeline, state, started_s, host, pid) VALUES (?, ?, 'running', ?, ?, ?)"
                " ON CONFLICT (id) DO UPDATE SET state = 'running', ended_s = NULL, host = excluded.host,"
                " pid = excluded.pid",
                (session, json.dumps(pipeline), time.time(), socket.gethostname(), os.getpid()),
            )

    def end_session(self, session: str, state: str) -> None:
        if state not in STATES[1:]:
            raise ValueError(f"{state!r} is not a final state of a session")
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
            raise ValueError("a phase needs a state")
        with self.db.write() as cursor:
            cursor.execute(
                f"INSERT INTO phases (session, name, {', '.join(names)}) VALUES (?, ?{', ?' * len(names)})"  # noqa: S608
                f" ON CONFLICT (session, name) DO UPDATE SET {', '.join(f'{key} = excluded.{key}' for key in names)}",
                (session, name, *values),
            )

    def sessions(self) -> list[dict[str, Any]]:
        """All sessions, newest first. One whose process died without recording its end is "interrupted"."""
        with self.db.read() as cursor:
            return _sessions(cursor)

    def phases(self, session: str) -> list[dict[str, Any]]:
        """The phases of a session, in the order in which they started."""
        with self.db.read() as cursor:
            rows = cursor.execute(
                "SELECT name, state, gate, checkpoint, error, started_s, ended_s FROM phases WHERE session = ?"
                " ORDER BY started_s, name",
                (session,),
            ).fetchall()
        names = ("name", "state", "gate", "checkpoint", "error", "started_s", "ended_s")
        phases = [dict(zip(names, row, strict=True)) for row in rows]
        return [{**phase, "gate": json.loads(phase["gate"]) if phase["gate"] else None} for phase in phases]

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
        handoffs = [dict(zip(names, row, strict=True)) for row in rows]
        return [{**handoff, "clauses": json.loads(handoff["clauses"])} for handoff in handoffs]

    # --- cleanup ---

    def gc(self, policy: CleanupPolicy | None = None, *, dry: bool = True, now_s: float | None = None) -> Cleanup:
        """Removes old sessions and checkpoints that nothing points to any more; `dry` only reports which."""
        policy, now = policy or CleanupPolicy(), time.time() if now_s is None else now_s
        if dry:
            with self.db.read() as cursor:
                return self._cleanup(cursor, policy, now)[0]
        with self.db.write() as cursor:  # one transaction, so that nobody can point to a checkpoint in between
            cleanup, entries = self._cleanup(cursor, policy, now)
            mark(e.path for e in entries if e.path.parent == self.models.resolve())  # never a user's own folder
            _delete(cursor, cleanup)
        remove_marked(self.models, (entry.path for entry in self.ls()))
        for session in cleanup.sessions:
            shutil.rmtree(self.home / "sessions" / session, ignore_errors=True)
        remove_leftovers(self.home, now - policy.completed_days * DAY_S)
        return cleanup

    def _cleanup(self, cursor: Cursor, policy: CleanupPolicy, now: float) -> tuple[Cleanup, list[Entry]]:
        sessions = _sessions(cursor)
        expired = expired_sessions(sessions, policy, now)
        entries = _entries(cursor, self.models)
        alive = {entry.digest for entry in entries[: policy.keep]}
        alive |= _pointed_to(cursor, entries, [one for one in sessions if one["session"] not in set(expired)])
        alive |= {entry.digest for entry in entries if now - entry.created_s <= policy.shortest_days * DAY_S}
        alive = with_ancestors(alive, {entry.digest: entry.parents for entry in entries})
        dead = [entry for entry in entries if entry.digest not in alive]
        size = sum(entry.bytes for entry in dead)
        return Cleanup(tuple(expired), tuple(entry.digest for entry in dead), size), dead


def _pointed_to(cursor: Cursor, entries: Sequence[Entry], sessions: Sequence[Mapping[str, Any]]) -> set[str]:
    """Checkpoints that are pinned, that phases of these sessions made, or that the sessions started from."""
    digests = {row[0] for row in cursor.execute("SELECT digest FROM checkpoints WHERE pinned = 1").fetchall()}
    ids = {session["session"] for session in sessions}
    used = cursor.execute("SELECT session, checkpoint FROM phases WHERE checkpoint IS NOT NULL").fetchall()
    digests.update(digest for session, digest in used if session in ids)
    starts = {start for session in sessions for start in session["pipeline"].get("start", ())}
    digests.update(entry.digest for entry in entries for start in starts if _matches(entry, start))
    return digests


def _matches(entry: Entry, name: str) -> bool:
    """Whether `name` is the entry's name or folder, a prefix of its digest, or a prefix of `phase-digest`."""
    phase, _, prefix = name.rpartition("-")
    by_digest = phase in ("", entry.phase) and prefix != "" and entry.digest.startswith(prefix)
    return by_digest or name == entry.name or folder_of(name) == entry.path


def folder_of(name: str) -> Path:
    """`name` as a path, with `~` and `${VARIABLES}` filled in."""
    return Path(os.path.expandvars(name)).expanduser().resolve()


def _delete(cursor: Cursor, cleanup: Cleanup) -> None:
    for session in cleanup.sessions:
        cursor.execute("DELETE FROM handoffs WHERE session = ?", (session,))
        cursor.execute("DELETE FROM phases WHERE session = ?", (session,))
        cursor.execute("DELETE FROM sessions WHERE id = ?", (session,))
    dead = set(cleanup.checkpoints)
    for digest in dead:
        cursor.execute("DELETE FROM lineage WHERE child = ?", (digest,))
        cursor.execute("DELETE FROM checkpoints WHERE digest = ?", (digest,))
    for key, outcome in cursor.execute("SELECT cache_key, outcome FROM finished").fetchall():
        if json.loads(outcome).get("checkpoint") in dead:
            cursor.execute("DELETE FROM finished WHERE cache_key = ?", (key,))


def _entries(cursor: Cursor, models: Path) -> list[Entry]:
    """All checkpoints, newest first. After the home folder was moved, the rows still name the old path; of those that
    another machine made, its path."""
    rows = cursor.execute(
        "SELECT digest, path, phase, parameters, bytes, created_s, card FROM checkpoints"
        " ORDER BY created_s DESC, digest"
    ).fetchall()
    parents: dict[str, list[str]] = {}
    for child, parent in cursor.execute("SELECT child, parent FROM lineage ORDER BY parent").fetchall():
        parents.setdefault(child, []).append(parent)
    entries = []
    for digest, stored, phase, parameters, size, created_s, card in rows:
        path = Path(stored)
        if not path.is_dir():
            fetched = models / f"{phase}-{digest[:12]}"
            path = next((each for each in (models / path.name, fetched) if each.is_dir()), path)
        lineage = tuple(parents.get(digest, ()))
        entries.append(Entry(digest, path, phase, parameters, size, lineage, created_s, json.loads(card)))
    return entries


def _sessions(cursor: Cursor) -> list[dict[str, Any]]:
    rows = cursor.execute(
        "SELECT id, pipeline, state, started_s, ended_s, host, pid FROM sessions ORDER BY started_s DESC, id"
    ).fetchall()
    return [_session(row) for row in rows]


def _sound_elsewhere(cursor: Cursor, checkpoint: Checkpoint) -> bool:
    """Whether the same bytes are registered at another path and are still there."""
    row = cursor.execute(
        "SELECT path, card_digest FROM checkpoints WHERE digest = ? AND path <> ?",
        (checkpoint.digest, str(checkpoint.path.resolve())),
    ).fetchone()
    if row is None:
        return False
    try:
        checkpoints.load(row[0], checkpoint.digest)
    except (CheckpointError, OSError):
        return False
    return _card_digest(Path(row[0])) == row[1]


def _card_digest(folder: Path) -> str:
    card = folder / checkpoints.CARD
    return file_digest(card) if card.is_file() else ""


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
    except PermissionError:  # somebody else's
        return True
    return True
