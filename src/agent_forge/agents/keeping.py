"""What a run leaves on disk: its trace, its journal, and the notes that `resume` needs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_forge.agents.choices import AnyModel, AnyTools
from agent_forge.errors import UsageError
from agent_forge.files import atomic_write
from agent_forge.home import home as home_folder
from agent_forge.settings import trace_store
from agent_forge.traces import Recorder

if TYPE_CHECKING:
    from agent_forge.runtime.journal import Journal


_NAME = re.compile(r"[\w.-]{1,128}")


@contextmanager
def recording(home: str | os.PathLike[str] | None, record: bool, given: Recorder | None) -> Iterator[Recorder | None]:
    """The caller's recorder, left open; or one of our own, closed (and so on disk) at the end; or none."""
    if given is not None or not record:
        yield given
        return
    own = Recorder(trace_store(home_folder(home)))
    try:
        yield own
    finally:
        own.close()
        own.store.close()


@contextmanager
def journal_of(home: str | os.PathLike[str] | None, record: bool) -> Iterator[Journal | None]:
    if not record:
        yield None
        return
    from agent_forge.runtime.journal import Journal

    journal = Journal.open(home)
    try:
        yield journal
    finally:
        journal.close()


@dataclass(frozen=True, slots=True)
class Notes:
    """What the journal does not keep of a run but `resume` needs: its request and the names of its tools and model."""

    folder: Path

    @classmethod
    def of(cls, home: str | os.PathLike[str] | None) -> Notes:
        return cls(home_folder(home) / "runs")

    def write(self, run: str, request: str | None, tools: AnyTools, model: AnyModel) -> None:
        """Raises UsageError for a name that would be a path."""
        if not _NAME.fullmatch(run):
            raise UsageError(f"{run[:128]!r} is not a name for a run", fix="letters, digits, _ . and -, at most 128")
        self.folder.mkdir(exist_ok=True)
        is_file = isinstance(tools, (str, os.PathLike)) and Path(tools).is_file()
        named = str(Path(tools).resolve()) if is_file else tools  # type: ignore[arg-type]
        kept = {
            "request": request,
            "tools": named if isinstance(named, str) else None,
            "model": model if isinstance(model, str) else None,
        }
        with atomic_write(self.folder / f"{run}.json") as file:
            json.dump(kept, file)

    def read(self, run: str) -> dict[str, Any]:
        path = self.folder / f"{run}.json"
        if not _NAME.fullmatch(run) or not path.is_file():
            return {}
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return kept


def remembered(notes: Notes | None, run: str) -> dict[str, Any]:
    if notes is None:
        raise UsageError("a run cannot be resumed with record=False", fix="leave record as it is")
    return notes.read(run)
