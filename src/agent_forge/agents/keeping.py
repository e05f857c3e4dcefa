"""What a run leaves on disk: its trace, its journal, and the notes that `resume` needs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_forge.agents.choices import AnyModel, AnyTools
from agent_forge.errors import UsageError
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
    own = Recorder(trace_store(home))
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


def notes_of(run: str, request: str | None, tools: AnyTools, model: AnyModel) -> dict[str, str | None]:
    """What the journal stores of a run so that `resume` has its request and the names of its tools and model.

    Raises UsageError for a name of a run that could not stand in a path or URL.
    """
    if not _NAME.fullmatch(run):
        raise UsageError(f"{run[:128]!r} is not a name for a run", fix="Use letters, digits, _ . and -, at most 128")
    is_file = isinstance(tools, (str, os.PathLike)) and Path(tools).is_file()
    named = str(Path(tools).resolve()) if is_file else tools  # type: ignore[arg-type]
    return {
        "request": request,
        "tools": named if isinstance(named, str) else None,
        "model": model if isinstance(model, str) else None,
    }


def remembered(home: str | os.PathLike[str] | None, record: bool, run: str) -> dict[str, Any]:
    """The notes of a run that is to be resumed. Raises UnknownRunError."""
    with journal_of(home, record) as journal:
        if journal is None:
            raise UsageError("a run cannot be resumed with record=False", fix="Leave record as it is")
        return journal.summary(run).notes
