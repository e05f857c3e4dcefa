"""The folder in which Agent Forge keeps what it makes: traces, journal, models."""

from __future__ import annotations

import os
from pathlib import Path

from agent_forge.errors import UsageError

VARIABLE = "AGENT_FORGE_HOME"


def home_path(path: str | os.PathLike[str] | None = None) -> Path:
    """Where the home folder is or would be: `path`, else $AGENT_FORGE_HOME, else ~/.agent-forge."""
    return Path(path or os.environ.get(VARIABLE) or "~/.agent-forge").expanduser()


def home(path: str | os.PathLike[str] | None = None) -> Path:
    """The home folder, created if needed: `path`, else $AGENT_FORGE_HOME, else ~/.agent-forge.

    Raises UsageError if the folder cannot be made or is not a folder.
    """
    folder = home_path(path)
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)  # what is in it is nobody else's business
    except OSError as error:
        raise UsageError(
            f"the home folder cannot be used: {error.strerror}",
            where=str(folder),
            fix=f"Name a writable folder with --home or {VARIABLE}",
        ) from error
    return folder
