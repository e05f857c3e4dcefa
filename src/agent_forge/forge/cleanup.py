"""What `models gc` removes: sessions that have had their time, and what nothing points to any more."""

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
    """What is kept. A checkpoint that something points to is never removed, whatever its age.

    A paused session counts as a completed one, one whose process died as a failed one.
    """

    completed_days: float = 30
    failed_days: float = 7
    sessions: int = 100
    keep: int = 5  # the newest checkpoints, of any age

    @property
    def shortest_days(self) -> float:
        """How long a checkpoint is kept that nothing points to (its session may be about to)."""
        return min(self.completed_days, self.failed_days)


@dataclass(frozen=True)
class Cleanup:
    """What a cleanup removes (or, dry, would remove)."""

    sessions: tuple[str, ...]
    checkpoints: tuple[str, ...]
    bytes: int


def expired_sessions(sessions: Sequence[Mapping[str, Any]], policy: CleanupPolicy, now: float) -> list[str]:
    """Sessions beyond their age, and the oldest beyond the number; never one that is running. Newest come first."""
    found = []
    for place, session in enumerate(one for one in sessions if one["state"] != "running"):
        days = policy.completed_days if session["state"] in ("completed", "paused") else policy.failed_days
        at = session["started_s"] if session["ended_s"] is None else session["ended_s"]
        if now - at > days * DAY_S or place >= policy.sessions:
            found.append(session["session"])
    return found


def with_ancestors(kept: Iterable[str], parents: Mapping[str, Sequence[str]]) -> set[str]:
    """`kept` and everything it was made from."""
    found: set[str] = set()
    ahead = list(kept)
    while ahead:
        digest = ahead.pop()
        if digest not in found:
            found.add(digest)
            ahead.extend(parents.get(digest, ()))
    return found


def mark(folders: Iterable[Path]) -> None:
    """Notes that these folders are about to go, so that the next cleanup finishes what a crash interrupts."""
    for folder in folders:
        (folder.parent / f"{MARK}{folder.name}").touch()


def remove_marked(models: Path, registered: Iterable[Path]) -> None:
    """Removes the marked folders that no row names any more."""
    kept = {path.name for path in registered}
    for marker in sorted(models.glob(f"{MARK}*")):
        name = marker.name.removeprefix(MARK)
        if name not in kept:
            remove_folder(models / name)
        marker.unlink(missing_ok=True)


def remove_leftovers(home: Path, before_s: float) -> None:
    """Removes what killed processes have left: half-made models, and work that nobody has gone on with."""
    left = [*(home / "models").glob(".making-*"), *(home / "work").glob("*")]
    for path in left:
        if _touched(path) >= before_s:
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    """Takes a folder away at once (a rename) and then removes its files."""
    grave = Path(tempfile.mkdtemp(prefix=".making-", dir=folder.parent))
    with suppress(OSError):  # it is gone already
        folder.rename(grave / "removed")
    shutil.rmtree(grave, ignore_errors=True)


def _touched(path: Path) -> float:
    """When something in there was last changed."""
    try:
        return max(inner.lstat().st_mtime for inner in (path, *path.rglob("*")))
    except OSError:  # it is changing right now
        return time.time()
