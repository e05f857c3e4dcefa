"""Conversations that outlive a process: the messages of each session, in the home folder or a PostgreSQL database."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence

from agent_forge.database import Schema, is_url, open_database
from agent_forge.errors import StoreError, UsageError
from agent_forge.home import home as home_folder
from agent_forge.inference import Message
from agent_forge.settings import trace_store

FILE = "sessions.db"
SCHEMA = Schema(
    name="sessions",
    application_id=0x41467365,  # "AFse"
    migrations=(
        (
            """CREATE TABLE session_messages (
                 session TEXT NOT NULL, seq {int} NOT NULL, said_s {real} NOT NULL, message TEXT NOT NULL,
                 PRIMARY KEY (session, seq)) {packed}""",
        ),
    ),
)
_NAME = re.compile(r"[\w.:@-]{1,128}")


class Sessions:
    """The messages of each session, in order.

    >>> import tempfile
    >>> sessions = Sessions.open(tempfile.mkdtemp())
    >>> sessions.append("ann", [{"role": "user", "content": "Hello"}])
    >>> sessions.messages("ann"), sessions.messages("bob")
    ([{'role': 'user', 'content': 'Hello'}], [])
    >>> sessions.close()
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        """Raises StoreError for a file or database of another kind."""
        self._database = open_database(place, SCHEMA)

    @classmethod
    def open(cls, home: str | os.PathLike[str] | None = None) -> Sessions:
        """The sessions at `home`, a folder or a `postgresql://` URL; else at the setting `store`; else in the home
        folder."""
        place = trace_store(home)
        return cls(place if place is not None and is_url(place) else home_folder(place) / FILE)

    def messages(self, session: str) -> list[Message]:
        """What was said in a session so far. Raises UsageError for a name that cannot be one."""
        if not _NAME.fullmatch(session):
            fix = "Use letters, digits, _ . : @ and -, at most 128"
            raise UsageError(f"{session[:128]!r} is not a valid session name", fix=fix)
        query = "SELECT message FROM session_messages WHERE session = ? ORDER BY seq"
        with self._database.read() as cursor:
            rows = cursor.execute(query, (session,)).fetchall()
        try:
            return [json.loads(text) for (text,) in rows]
        except ValueError as error:
            raise StoreError(f"the session {session!r} is damaged: {error}", where=self._database.where) from error

    def append(self, session: str, messages: Sequence[Message]) -> None:
        """Adds what was said, all of it or nothing."""
        last = "SELECT coalesce(max(seq), 0) FROM session_messages WHERE session = ?"
        with self._database.write() as cursor:
            after = int(cursor.execute(last, (session,)).fetchone()[0])
            for seq, message in enumerate(messages, after + 1):
                row = (session, seq, time.time(), json.dumps(dict(message), ensure_ascii=False))
                cursor.execute("INSERT INTO session_messages VALUES (?, ?, ?, ?)", row)

    def close(self) -> None:
        self._database.close()
