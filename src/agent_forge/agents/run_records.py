"""What a run records: its trace, its journal, and the notes that `resume` needs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_forge.agents.choices import AnyModel, AnyTools
from agent_forge.agents.profiles import DEFAULT
from agent_forge.errors import UsageError
from agent_forge.settings import trace_store
from agent_forge.traces import Recorder
from agent_forge.urls import CUT, without_credentials

if TYPE_CHECKING:
    from agent_forge.runtime.journal import Journal

_RUN_NAME = re.compile(r"[\w.-]{1,128}")


@contextmanager
def recording(home: str | os.PathLike[str] | None, record: bool, own: Recorder | None) -> Iterator[Recorder | None]:
    """The caller's own recorder, left open; else a new one, flushed and closed at the end; None without `record`."""
    if own is not None or not record:
        yield own
        return
    recorder = Recorder(trace_store(home), agent=DEFAULT.name)
    try:
        yield recorder
    finally:
        recorder.close()
        recorder.store.close()


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


def notes_of(run: str, request: str | None, tools: AnyTools, model: AnyModel, agent: Any) -> dict[str, str | None]:
    """What the journal stores for `resume`: the request of a run and the names of its tools, model and agent.

    Raises UsageError for a run name that would not fit into a path or URL.
    """
    if not _RUN_NAME.fullmatch(run):
        raise UsageError(f"{run[:128]!r} is not a valid run name", fix="Use letters, digits, _ . and -, at most 128")
    if isinstance(tools, (str, os.PathLike)) and Path(tools).is_file():
        tools = str(Path(tools).resolve())
    if isinstance(agent, (str, os.PathLike)) and Path(agent).is_file():
        agent = str(Path(agent).resolve())
    return {
        "request": request,
        "tools": tools if isinstance(tools, str) else None,
        "model": without_credentials(model) if isinstance(model, str) else None,
        "agent": agent if isinstance(agent, str) else None,
    }


def stored_notes(
    home: str | os.PathLike[str] | None, record: bool, run: str, needs_model: bool = True
) -> dict[str, Any]:
    """The notes of a run to resume. Raises UnknownRunError."""
    with journal_of(home, record) as journal:
        if journal is None:
            raise UsageError("a run cannot be resumed with record=False", fix="Leave record at its default")
        notes = journal.summary(run).notes
        if needs_model and CUT in (notes.get("model") or ""):
            raise UsageError(
                f"the model of this run, {notes['model']}, was stored without its credentials",
                fix="Name it again with --model",
            )
        return notes
