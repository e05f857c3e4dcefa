"""Results of pure tools, shared by all runs: `run(..., cache=True)`, `agent-forge run --cache`.

A result is found again by the name of the tool, its version and its arguments. The version is what the tool states,
else a digest of its source, so that a function that was changed is called again. Only results that JSON gives back
unchanged are stored, and never an error. A cache that cannot be written costs a warning, not a result.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from agent_forge.agents.tools.tool import Tool
from agent_forge.agents.tools.toolbox import Toolbox
from agent_forge.database import Database, Schema, is_url, open_database
from agent_forge.errors import AgentForgeError
from agent_forge.home import home as home_folder
from agent_forge.settings import trace_store
from agent_forge.threads import THREADS
from agent_forge.traces import current_span

FILE = "results.db"
SCHEMA = Schema(
    name="result cache",
    application_id=0x41467263,  # "AFrc"
    migrations=(
        (
            "CREATE TABLE results (key TEXT PRIMARY KEY, tool TEXT NOT NULL, version TEXT NOT NULL,"
            " result TEXT NOT NULL, created_s {real} NOT NULL) {packed}",
        ),
    ),
    synced=False,
)


class ResultCache:
    """The cache at `home`, a folder or a `postgresql://` URL, opened at the first call of a pure tool."""

    def __init__(self, home: str | os.PathLike[str] | None = None) -> None:
        self._home = home
        self.warnings: list[str] = []

    @cached_property
    def _database(self) -> Database:
        place = trace_store(self._home)
        return open_database(place if place is not None and is_url(place) else home_folder(place) / FILE, SCHEMA)

    def wrap(self, box: Toolbox) -> Toolbox:
        """The tools, of which the pure ones look here before they are called."""
        return Toolbox([self._wrapped(tool) if tool.pure else tool for tool in box])

    def _wrapped(self, tool: Tool) -> Tool:
        version = version_of(tool)

        async def cached(**args: Any) -> Any:
            key = _key(tool, version, args)
            if key is None or self.warnings:
                return await tool.call(args)
            text = await THREADS.call(lambda: self._guarded(lambda: self._read(key)))
            if text is not None:
                span = current_span()
                if span is not None:
                    span.set(**{"agent_forge.cached": True})
                return json.loads(text)
            result = await tool.call(args)
            if (written := _lossless(result)) is not None:
                await THREADS.call(lambda: self._guarded(lambda: self._write(key, tool.name, version, written)))
            return result

        # Arguments are checked and shaped once, by the tool itself, which also has its time limit and retries.
        return replace(tool, function=cached, shapes={}, timeout_s=None, retries=0)

    def _read(self, key: str) -> str | None:
        with self._database.read() as cursor:
            row = cursor.execute("SELECT result FROM results WHERE key = ?", (key,)).fetchone()
            return None if row is None else str(row[0])

    def _write(self, key: str, tool: str, version: str, text: str) -> None:
        with self._database.write() as cursor:
            statement = "INSERT INTO results VALUES (?, ?, ?, ?, ?) ON CONFLICT (key) DO NOTHING"
            cursor.execute(statement, (key, tool, version, text, time.time()))

    def _guarded(self, work: Any) -> Any:
        try:
            return work()
        except AgentForgeError as error:
            if not self.warnings:
                self.warnings.append(f"the result cache is not used: {error}")
            return None

    def close(self) -> None:
        """Closes the database, if it was opened."""
        if "_database" in vars(self):
            self._database.close()


def version_of(tool: Tool) -> str:
    """The version that a tool states, else a digest of its source (or of its code, where there is no source)."""
    if tool.version:
        return tool.version
    function = inspect.unwrap(tool.function)
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        text = repr((code.co_code, code.co_consts, code.co_names)) if code is not None else repr(function)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _key(tool: Tool, version: str, args: Mapping[str, Any]) -> str | None:
    try:
        text = json.dumps([tool.name, version, dict(args)], sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None  # not JSON: nobody can say whether two of them are the same
    return hashlib.sha256(text.encode()).hexdigest()


def _lossless(result: Any) -> str | None:
    """The result as JSON, if it comes back from it as it was."""
    try:
        text = json.dumps(result, allow_nan=False)
        return text if _same(json.loads(text), result) else None
    except (TypeError, ValueError, RecursionError):
        return None


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal down to their types: 1 is not true, and a tuple is not a list."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
