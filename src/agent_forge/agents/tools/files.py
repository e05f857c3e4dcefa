"""Files below one folder: find, search, read. Nothing outside the folder is ever opened.

A path is taken apart and walked from the folder one name at a time without following symbolic links, so `..`, absolute
paths, links and a folder that is swapped for a link in between lead nowhere.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from agent_forge.agents.tools.tool import Tool, tool
from agent_forge.errors import ToolError

MOST_BYTES_A_FILE = 2_000_000
MOST_BYTES_A_SEARCH = 64_000_000
MOST_FILES = 10_000
MOST_MATCHES = 200
MOST_LINES = 1000
MOST_LINE = 500  # characters of a line that a match shows

_WALKS_BY_DESCRIPTOR = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")


class Folder:
    """The folder that the tools may see."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).resolve()
        if not self.root.is_dir():
            raise ToolError("there is no such folder", where=str(root))

    def parts(self, path: str) -> list[str]:
        """The names on the way to a file. Raises ToolError for a path that could lead out of the folder."""
        parts = path.replace("\\", "/").split("/")
        if "\0" in path or path.startswith(("/", "\\", "~")) or (len(path) > 1 and path[1] == ":") or ".." in parts:
            raise ToolError(f"{path!r} is not a path below the folder", fix="name the file relative to the folder")
        return [part for part in parts if part not in ("", ".")]

    def read(self, path: str, most: int = MOST_BYTES_A_FILE) -> bytes:
        """The bytes of a regular file. Raises ToolError."""
        try:
            descriptor = self._open(self.parts(path))
        except OSError as error:
            reason = "links are not followed" if _is_link_error(error) else (error.strerror or "it cannot be opened")
            raise ToolError(f"{path!r} cannot be read: {reason}") from error
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ToolError(f"{path!r} cannot be read: it is not a regular file")
            if status.st_size > most:
                raise ToolError(f"{path!r} has {status.st_size:,} bytes, {most:,} are allowed")
            return _read(descriptor, most)
        finally:
            os.close(descriptor)

    def _open(self, parts: list[str]) -> int:
        # O_NONBLOCK: opening a named pipe must not wait for its other end.
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        return (
            _open_by_steps(self.root, parts, flags) if _WALKS_BY_DESCRIPTOR else _open_checked(self.root, parts, flags)
        )

    def walk(self, pattern: str) -> Iterator[str]:
        """The regular files whose path fits the pattern, in order."""
        wanted = self.parts(pattern)
        for folder, folders, names in os.walk(self.root, followlinks=False):
            folders.sort()
            here = Path(folder).relative_to(self.root).parts
            for name in sorted(names):
                if fits([*here, name], wanted) and _is_regular(Path(folder, name)):
                    yield "/".join([*here, name])


def _read(descriptor: int, most: int) -> bytes:
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        return file.read(most)


def _is_link_error(error: OSError) -> bool:
    import errno

    return error.errno in (errno.ELOOP, errno.EMLINK)


def _open_by_steps(root: Path, parts: list[str], flags: int) -> int:
    """Opens root/a/b/c through the descriptors of root, a and b."""
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for number, part in enumerate(parts, 1):
        kind = flags if number == len(parts) else flags | os.O_DIRECTORY
        try:
            inner = os.open(part, kind, dir_fd=at)
        except NotADirectoryError as error:
            # Linux says ENOTDIR for O_DIRECTORY | O_NOFOLLOW on a link
            raise OSError(error.errno, "there is no such folder, and links are not followed") from error
        finally:
            os.close(at)
        at = inner
    return at


def _open_checked(root: Path, parts: list[str], flags: int) -> int:
    """The same where descriptors cannot be walked (Windows): each name is looked at before the file is opened."""
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


def fits(names: list[str], pattern: list[str]) -> bool:
    """Whether a path fits a pattern; `**` stands for any number of folders.

    >>> fits(["src", "a", "b.py"], ["src", "**", "*.py"]), fits(["b.txt"], ["*.py"])
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
    found = set(positions)
    for position in sorted(positions):
        while position < len(pattern) and pattern[position] == "**":
            position += 1  # noqa: PLW2901
            found.add(position)
    return found


def _text(content: bytes) -> str | None:
    """The content as text; None for what is not UTF-8 text."""
    if b"\0" in content[:4096]:
        return None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None


def search_text(folder: Folder, text: str, pattern: str, ignore_case: bool) -> dict[str, Any]:
    """The lines that hold a text, with what was left out."""
    found: dict[str, Any] = {"matches": [], "files": 0, "skipped": [], "complete": True}
    wanted, read = text.casefold() if ignore_case else text, 0
    for number, path in enumerate(folder.walk(pattern)):
        if number >= MOST_FILES or read >= MOST_BYTES_A_SEARCH or len(found["matches"]) >= MOST_MATCHES:
            found["complete"] = False
            break
        try:
            content = folder.read(path)
        except ToolError:
            found["skipped"].append(path)
            continue
        read += len(content)
        decoded = _text(content)
        if decoded is None:
            continue
        found["files"] += 1
        found["matches"] += _matches(path, decoded, wanted, ignore_case)
    found["complete"] &= len(found["matches"]) <= MOST_MATCHES
    del found["matches"][MOST_MATCHES:]
    return found


def _matches(path: str, content: str, wanted: str, ignore_case: bool) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(content.split("\n"), 1):
        if wanted in (line.casefold() if ignore_case else line):
            yield {"path": path, "line": number, "text": line.rstrip("\r")[:MOST_LINE]}


def file_tools(root: str | os.PathLike[str]) -> list[Tool]:
    """Three tools that see one folder: find_files, search_files, read_file.

    Raises ToolError if there is no such folder.
    """
    folder = Folder(root)

    @tool
    def find_files(pattern: str = "**") -> dict[str, Any]:
        """Lists the files of the folder whose path fits a pattern.

        Args:
            pattern: * and ? stand for parts of a name, ** for any folders, as in "docs/**/*.md"
        """
        paths: list[str] = []
        for path in folder.walk(pattern):
            if len(paths) == MOST_MATCHES:
                return {"paths": paths, "complete": False}
            paths.append(path)
        return {"paths": paths, "complete": True}

    @tool
    def search_files(text: str, pattern: str = "**", ignore_case: bool = True) -> dict[str, Any]:
        """Finds the lines that contain a text in the text files of the folder.

        Args:
            text: the text itself, not a regular expression
            pattern: which files, as for find_files
            ignore_case: whether large and small letters are the same
        """
        if not text:
            raise ToolError("the text to look for is empty")
        return search_text(folder, text, pattern, ignore_case)

    @tool
    def read_file(path: str, first_line: int = 1, lines: int = 200) -> dict[str, Any]:
        """Reads lines of a text file of the folder.

        Args:
            path: the path as find_files and search_files give it
            first_line: the line to begin with, from 1
            lines: how many lines at most
        """
        content = _text(folder.read(path))
        if content is None:
            raise ToolError(f"{path!r} is not UTF-8 text")
        every = content.splitlines()
        start = max(1, first_line)
        chosen = every[start - 1 : start - 1 + max(0, min(lines, MOST_LINES))]
        return {"path": path, "first_line": start, "lines": len(every), "text": "\n".join(chosen)}

    return [find_files, search_files, read_file]
