"""What `models gc` removes: expired sessions, and checkpoints that nothing points to any more."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DAY_S = 86_400.0
MARK = ".removing-"


@dataclass(frozen=True)
class CleanupPolicy:
    """How long things are kept. A checkpoint that something points to is never removed, whatever its age.

    A paused session counts as completed, one whose process died as failed.
    """

    completed_days: float = 30
    failed_days: float = 7
    sessions: int = 100
    keep: int = 5  # the newest checkpoints, whatever their age

    @property
    def shortest_days(self) -> float:
        """How long a checkpoint stays that nothing points to (its session may be about to)."""
        return min(self.completed_days, self.failed_days)


@dataclass(frozen=True)
class Cleanup:
    """What a cleanup removes, or would remove in a dry run."""

    sessions: tuple[str, ...]
    checkpoints: tuple[str, ...]
    bytes: int


def expired_sessions(sessions: Sequence[Mapping[str, Any]], policy: CleanupPolicy, now: float) -> list[str]:
    """Sessions that are too old, or too many; never a running one. `sessions` come newest first."""
    expired = []
    for rank, session in enumerate(one for one in sessions if one["state"] != "running"):
        days = policy.completed_days if session["state"] in ("completed", "paused") else policy.failed_days
        at = session["started_s"] if session["ended_s"] is None else session["ended_s"]
        if now - at > days * DAY_S or rank >= policy.sessions:
            expired.append(session["session"])
    return expired


def with_ancestors(digests: Iterable[str], parents: Mapping[str, Sequence[str]]) -> set[str]:
    """The checkpoints and everything they were made from."""
    lineage: set[str] = set()
    ahead = list(digests)
    while ahead:
        digest = ahead.pop()
        if digest not in lineage:
            lineage.add(digest)
            ahead.extend(parents.get(digest, ()))
    return lineage


def mark(folders: Iterable[Path]) -> None:
    """Marks folders for removal, so that the next cleanup finishes what a crash interrupts."""
    for folder in folders:
        (folder.parent / f"{MARK}{folder.name}").touch()


def remove_marked(models: Path, registered: Iterable[Path]) -> None:
    """Removes the marked folders that are no longer registered."""
    registered_names = {path.name for path in registered}
    for marker in sorted(models.glob(f"{MARK}*")):
        name = marker.name.removeprefix(MARK)
        if name not in registered_names:
            remove_folder(models / name)
        marker.unlink(missing_ok=True)


def remove_leftovers(home: Path, before_s: float) -> None:
    """Removes what killed processes left behind: half-written models, and work that nobody has resumed."""
    for path in [*(home / "models").glob(".making-*"), *(home / "work").glob("*")]:
        if _last_change(path) >= before_s:
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    """Renames a folder away in one step, then removes its files."""
    grave = Path(tempfile.mkdtemp(prefix=".making-", dir=folder.parent))
    with suppress(OSError):  # already gone
        folder.rename(grave / "removed")
    shutil.rmtree(grave, ignore_errors=True)


def _last_change(path: Path) -> float:
    """When anything in the folder last changed."""
    try:
        return max(inner.lstat().st_mtime for inner in (path, *path.rglob("*")))
    except OSError:  # changing right now
        return time.time()
