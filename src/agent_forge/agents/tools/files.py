"""Find, search and read files below one folder. Nothing outside the folder is ever opened.

A path is walked from the folder one name at a time without following symbolic links, so `..`, absolute paths, links,
and folders that are replaced by links meanwhile lead nowhere.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from agent_forge.agents.tools.tool import Tool, tool
from agent_forge.errors import ToolError

MOST_BYTES_PER_FILE = 2_000_000
MOST_BYTES_PER_SEARCH = 64_000_000
MOST_FILES = 10_000
MOST_MATCHES = 200
MOST_LINES = 1000
MOST_LINE = 500  # characters shown of a matching line

_WALKS_BY_DESCRIPTOR = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")


class Folder:
    """The folder that the tools may access."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).resolve()
        if not self.root.is_dir():
            raise ToolError("there is no such folder", where=str(root))

    def parts(self, path: str) -> list[str]:
        """The parts of a path. Raises ToolError for a path that could lead out of the folder."""
        parts = path.replace("\\", "/").split("/")
        if "\0" in path or path.startswith(("/", "\\", "~")) or (len(path) > 1 and path[1] == ":") or ".." in parts:
            raise ToolError(f"{path!r} is not a path below the folder", fix="Name the file relative to the folder")
        return [part for part in parts if part not in ("", ".")]

    def read(self, path: str, most: int = MOST_BYTES_PER_FILE) -> bytes:
        """The bytes of a regular file. Raises ToolError."""
        try:
            descriptor = self._open(self.parts(path))
        except OSError as error:
            linked = error.errno in (errno.ELOOP, errno.EMLINK)
            reason = "links are not followed" if linked else (error.strerror or "it cannot be opened")
            raise ToolError(f"{path!r} cannot be read: {reason}") from error
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ToolError(f"{path!r} cannot be read: it is not a regular file")
            if status.st_size > most:
                raise ToolError(f"{path!r} has {status.st_size:,} bytes, the limit is {most:,}")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                return file.read(most)
        finally:
            os.close(descriptor)

    def _open(self, parts: list[str]) -> int:
        # O_NONBLOCK: opening a named pipe must not block.
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        return (
            _open_by_steps(self.root, parts, flags) if _WALKS_BY_DESCRIPTOR else _open_checked(self.root, parts, flags)
        )

    def walk(self, pattern: str) -> Iterator[str]:
        """The regular files whose path matches the pattern, in order."""
        globs = self.parts(pattern)
        for folder, folders, names in os.walk(self.root, followlinks=False):
            folders.sort()
            here = Path(folder).relative_to(self.root).parts
            for name in sorted(names):
                if matches_glob([*here, name], globs) and _is_regular(Path(folder, name)):
                    yield "/".join([*here, name])


def _open_by_steps(root: Path, parts: list[str], flags: int) -> int:
    """Opens root/a/b/c through the descriptors of root, a and b."""
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for number, part in enumerate(parts, 1):
        kind = flags if number == len(parts) else flags | os.O_DIRECTORY
        try:
            inner = os.open(part, kind, dir_fd=at)
        except NotADirectoryError as error:
            # Linux reports ENOTDIR for O_DIRECTORY | O_NOFOLLOW on a link
            raise OSError(error.errno, "there is no such folder, and links are not followed") from error
        finally:
            os.close(at)
        at = inner
    return at


def _open_checked(root: Path, parts: list[str], flags: int) -> int:
    """For systems without directory descriptors (Windows): checks each name, then opens the file."""
    at = root
    for part in parts:
        at = at / part
        if at.is_symlink():
            raise OSError(None, "links are not followed")
    return os.open(at, flags)


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def matches_glob(names: list[str], pattern: list[str]) -> bool:
    """Whether a path matches a pattern; `**` stands for any number of folders.

    >>> matches_glob(["src", "a", "b.py"], ["src", "**", "*.py"]), matches_glob(["b.txt"], ["*.py"])
    (True, False)
    """
    reachable = {0}  # positions in the pattern after the names so far
    for name in names:
        reachable = _past_stars(reachable, pattern)
        reachable = {
            position if pattern[position] == "**" else position + 1
            for position in reachable
            if position < len(pattern) and (pattern[position] == "**" or fnmatchcase(name, pattern[position]))
        }
    return len(pattern) in _past_stars(reachable, pattern)


def _past_stars(positions: set[int], pattern: list[str]) -> set[int]:
    reachable = set(positions)
    for position in sorted(positions):
        while position < len(pattern) and pattern[position] == "**":
            position += 1  # noqa: PLW2901
            reachable.add(position)
    return reachable


def _text(content: bytes) -> str | None:
    """The content as text; None if it is not UTF-8 text."""
    if b"\0" in content[:4096]:
        return None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None


def search_text(folder: Folder, text: str, pattern: str, ignore_case: bool) -> dict[str, Any]:
    """The lines that contain a text, the number of files searched, and those skipped."""
    matches: list[dict[str, Any]] = []
    skipped: list[str] = []
    files, read, complete = 0, 0, True
    needle = text.casefold() if ignore_case else text
    for number, path in enumerate(folder.walk(pattern)):
        if number >= MOST_FILES or read >= MOST_BYTES_PER_SEARCH or len(matches) >= MOST_MATCHES:
            complete = False
            break
        try:
            content = folder.read(path)
        except ToolError:
            skipped.append(path)
            continue
        read += len(content)
        decoded = _text(content)
        if decoded is None:
            continue
        files += 1
        for line_number, line in enumerate(decoded.split("\n"), 1):
            if needle in (line.casefold() if ignore_case else line):
                matches.append({"path": path, "line": line_number, "text": line.rstrip("\r")[:MOST_LINE]})
    complete &= len(matches) <= MOST_MATCHES
    return {"matches": matches[:MOST_MATCHES], "files": files, "skipped": skipped, "complete": complete}


def file_tools(root: str | os.PathLike[str]) -> list[Tool]:
    """Three tools for one folder: find_files, search_files, read_file.

    Raises ToolError if the folder does not exist.
    """
    folder = Folder(root)

    @tool
    def find_files(pattern: str = "**") -> dict[str, Any]:
        """Lists the files of the folder whose path matches a pattern.

        Args:
            pattern: a glob in which ** stands for any number of folders, for example "docs/**/*.md"
        """
        paths: list[str] = []
        for path in folder.walk(pattern):
            if len(paths) == MOST_MATCHES:
                return {"paths": paths, "complete": False}
            paths.append(path)
        return {"paths": paths, "complete": True}

    @tool
    def search_files(text: str, pattern: str = "**", ignore_case: bool = True) -> dict[str, Any]:
        """Finds the lines that contain a text, in the text files of the folder.

        Args:
            text: the text itself, not a regular expression
            pattern: the files to search, as in find_files
            ignore_case: whether to ignore upper and lower case
        """
        if not text:
            raise ToolError("the text to search for is empty")
        return search_text(folder, text, pattern, ignore_case)

    @tool
    def read_file(path: str, first_line: int = 1, lines: int = 200) -> dict[str, Any]:
        """Reads lines of a text file in the folder.

        Args:
            path: a path as returned by find_files and search_files
            first_line: the first line to read, from 1
            lines: the maximum number of lines
        """
        content = _text(folder.read(path))
        if content is None:
            raise ToolError(f"{path!r} is not UTF-8 text")
        every = content.splitlines()
        start = max(1, first_line)
        chosen = every[start - 1 : start - 1 + max(0, min(lines, MOST_LINES))]
        return {"path": path, "first_line": start, "lines": len(every), "text": "\n".join(chosen)}

    return [find_files, search_files, read_file]
