"""Scenario 8: no path and no name leads out of the folder that it belongs to. Whatever the answer, no file outside is
opened: an audit hook sees every `open` of the process. (Routes of the server: tests/server/test_server_security.)"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from agent_forge.agents.profiles import find_profile
from agent_forge.agents.run_records import stored_notes
from agent_forge.agents.tools.files import Folder
from agent_forge.errors import AgentForgeError
from agent_forge.forge.registry import Registry
from agent_forge.runtime.journal import Journal

COUNT = 10_000 if os.environ.get("AGENT_FORGE_SCENARIOS") == "long" else 300
PIECES = [
    "..", ".", "...", "~", "~root", "etc", "passwd", "secret", "link", "inside", "a.txt", "", " ", "%2e%2e", "\x00",
    "C:", "\u2025", "．．", "x" * 300,
]  # fmt: skip
JOINTS = ["/", "//", "\\", "/./", "%2f", "%5c", "\u2215", "/../"]

_opened: list[str] | None = None


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is not None and event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
        path = os.fsdecode(arguments[0])
        # One step below an open folder (openat) cannot lead out of it, unless that step is "..".
        if os.sep in path or path == "..":
            with suppress(ValueError):
                _opened.append(os.path.realpath(path))


@contextmanager
def watched() -> Iterator[list[str]]:
    """The real paths of the files that are opened by name meanwhile."""
    global _opened
    if not getattr(watched, "hooked", False):
        sys.addaudithook(_hook)  # cannot be removed again: it does nothing outside this block
        watched.hooked = True  # type: ignore[attr-defined]
    _opened = paths = []
    try:
        yield paths
    finally:
        _opened = None


def names() -> list[str]:
    draw = random.Random(8)
    made = ["../secret", "/etc/passwd", "..", "link/secret", "inside/../../secret", "....//secret", "a/../../secret"]
    while len(made) < COUNT:
        path = ""
        for _ in range(draw.randint(1, 6)):
            path += draw.choice(PIECES) + draw.choice(JOINTS)
        path = ("/" if draw.random() < 0.2 else "") + path + draw.choice(["secret", "passwd", "", ".."])
        made.append(quote(path) if draw.random() < 0.1 else path)
    return made


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("the secret")
    root = tmp_path / "root"
    (root / "inside").mkdir(parents=True)
    (root / "a.txt").write_text("allowed")
    (root / "link").symlink_to(tmp_path)
    return root


def readers(root: Path) -> dict[str, Callable[[str], Any]]:
    folder, registry, journal = Folder(root), Registry(root / "models"), Journal.open(root)
    return {
        "file tool": folder.read,
        "glob": lambda name: list(folder.walk(name)),
        "model": registry.find,
        "run": journal.load,
        "resume": lambda name: stored_notes(root, True, name),
        "profile": find_profile,
    }


@pytest.mark.untraced
@pytest.mark.parametrize("reader", ["file tool", "glob", "model", "run", "resume", "profile"])
def test_no_name_leads_outside(place: Path, reader: str) -> None:
    read = readers(place)[reader]
    with suppress(AgentForgeError):
        read("a.txt")  # what is imported at first use is imported now
    for name in names():
        with watched() as opened:
            try:
                answer = read(name)
            except (AgentForgeError, OSError):
                answer = None
        outside = [path for path in opened if not Path(path).is_relative_to(place) and "agent_forge" not in path]
        assert outside == [], name
        assert b"the secret" not in (answer if isinstance(answer, bytes) else repr(answer).encode()), name


def test_the_watch_sees_what_leads_outside(place: Path) -> None:
    """The control: a reader that joins paths is caught by it."""
    with watched() as opened:
        assert (place / "../secret").read_text() == "the secret"
    assert str((place.parent / "secret").resolve()) in opened
    with watched() as opened:
        (place / "link" / "secret").read_text()
    assert str((place.parent / "secret").resolve()) in opened


def test_the_fuzz_would_find_a_joined_path(place: Path) -> None:
    reached = 0
    for name in names():
        with suppress(OSError, ValueError):
            reached += (place / name).read_text() == "the secret"
    assert reached > 0
