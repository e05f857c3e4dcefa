"""What Linux, macOS and Windows do differently: locks on files, and the unit of a process's memory.

Tested on Linux alone; for the others, with their modules emulated.
"""

from __future__ import annotations

import os
import sys

_WHOLE = 0x7FFF0000  # Windows locks bytes only, and keeps others from reading them: one far behind the end


def lock(descriptor: int, byte: int | None = None, *, wait: bool = False) -> bool:
    """Locks an open file, or one byte of it, until it is closed or unlocked. Whether the lock is ours now.

    A lock on a whole file is the descriptor's; one on a byte is, except on Windows, the process's. Raises OSError
    where the file system has no locks.
    """
    try:
        import fcntl
    except ImportError:
        return _lock_on_windows(descriptor, _WHOLE if byte is None else byte, wait)
    how = fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB)
    try:
        if byte is None:
            fcntl.flock(descriptor, how)
        else:
            fcntl.lockf(descriptor, how, 1, byte)
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES: it is somebody else's
        return False
    return True


def _lock_on_windows(descriptor: int, byte: int, wait: bool) -> bool:
    import msvcrt

    os.lseek(descriptor, byte, os.SEEK_SET)
    while True:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
            return True
        except OSError:
            if not wait:  # LK_LOCK gives up after ten attempts, one a second
                return False


def unlock(descriptor: int, byte: int) -> None:
    """Gives up the lock on a byte."""
    try:
        import fcntl
    except ImportError:
        import msvcrt

        os.lseek(descriptor, byte, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined]
        return
    fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, byte)


def peak_memory() -> int | None:
    """The most memory that this process has had, in bytes; None where the system does not say."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
