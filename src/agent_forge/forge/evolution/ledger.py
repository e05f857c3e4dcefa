"""The ledger: every finished evaluation, on disk as soon as it is done.

A search is a function of its seed and of what its evaluations came to. So a search that was killed is simply begun
again: it asks for the same recipes in the same order, and finds what was finished here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Ledger:
    """Records by key, kept in memory and, with a path, appended to a JSONL file. A torn line is left out."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.records: dict[str, dict[str, Any]] = {}
        self.found = 0  # records that were there before
        if path is not None and path.exists():
            for line in path.read_bytes().split(b"\n"):
                try:
                    record = json.loads(line)
                    self.records[record["key"]] = record
                except (ValueError, KeyError, TypeError):
                    continue
            self.found = len(self.records)
            _end_line(path)

    def get(self, key: str) -> dict[str, Any] | None:
        return self.records.get(key)

    def put(self, key: str, record: Mapping[str, Any]) -> None:
        """Keeps a record; durable when it returns."""
        self.records[key] = {"key": key, **record}
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab", buffering=0) as file:
            file.write(json.dumps(self.records[key], allow_nan=False).encode() + b"\n")
            os.fsync(file.fileno())


def _end_line(path: Path) -> None:
    """A killed writer may have left half a line: what comes next starts on its own."""
    with open(path, "r+b") as file:
        if file.seek(0, os.SEEK_END) and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
            file.write(b"\n")
