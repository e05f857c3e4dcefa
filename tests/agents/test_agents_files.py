"""File tools: what they find, and that nothing outside the folder is ever read."""

from __future__ import annotations

import asyncio
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_forge.agents import Toolbox
from agent_forge.agents.tools import files
from agent_forge.agents.tools.files import Folder, file_tools, matches_glob
from agent_forge.errors import ToolError

SECRET = "the secret outside"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside.txt").write_text(SECRET, encoding="utf-8")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "inner.txt").write_text(SECRET, encoding="utf-8")
    folder = tmp_path / "root"
    (folder / "docs" / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text("one\ntwo Two\r\nthree\n", encoding="utf-8")
    (folder / "docs" / "b.md").write_text("two again\n", encoding="utf-8")
    (folder / "docs" / "deep" / "c.md").write_text("nothing\n", encoding="utf-8")
    (folder / "binary.bin").write_bytes(b"two\0two")
    (folder / "latin.txt").write_bytes("two é".encode("latin-1"))
    (folder / "link.txt").symlink_to(tmp_path / "outside.txt")
    (folder / "linkdir").symlink_to(tmp_path / "outside")
    (folder / "inside_link.txt").symlink_to(folder / "a.txt")
    os.mkfifo(folder / "pipe")
    return folder


def ask(root: Path, name: str, **args: Any) -> Any:
    return asyncio.run(Toolbox(file_tools(root)).call(name, args))


def test_finding(root: Path) -> None:
    everything = ["a.txt", "binary.bin", "latin.txt", "docs/b.md", "docs/deep/c.md"]
    assert ask(root, "find_files") == {"paths": everything, "complete": True}
    assert ask(root, "find_files", pattern="**/*.md")["paths"] == ["docs/b.md", "docs/deep/c.md"]
    assert ask(root, "find_files", pattern="docs/*.md")["paths"] == ["docs/b.md"]
    assert ask(root, "find_files", pattern="linkdir/**")["paths"] == []


def test_searching(root: Path) -> None:
    found = ask(root, "search_files", text="TWO")
    assert found["matches"] == [
        {"path": "a.txt", "line": 2, "text": "two Two"},
        {"path": "docs/b.md", "line": 1, "text": "two again"},
    ]
    assert found["complete"] is True
    assert found["files"] == 3
    assert ask(root, "search_files", text="Two", ignore_case=False)["matches"][0]["line"] == 2
    assert ask(root, "search_files", text="secret")["matches"] == []
    with pytest.raises(ToolError, match="is empty"):
        ask(root, "search_files", text="")


def test_reading(root: Path) -> None:
    assert ask(root, "read_file", path="a.txt", first_line=2, lines=1) == {
        "path": "a.txt",
        "first_line": 2,
        "lines": 3,
        "text": "two Two",
    }
    assert ask(root, "read_file", path="./docs//b.md")["text"] == "two again"
    for path in ("latin.txt", "binary.bin"):
        with pytest.raises(ToolError, match="not UTF-8 text"):
            ask(root, "read_file", path=path)


ESCAPES = [
    "../outside.txt",
    "docs/../../outside.txt",
    "docs/../a.txt",
    "/etc/passwd",
    "~/x",
    "~root/x",
    "link.txt",
    "linkdir/inner.txt",
    "inside_link.txt",
    "..\\outside.txt",
    "\\outside.txt",
    "C:/x",
    "a.txt\0.md",
    "pipe",
    "docs",
    "",
    ".",
    "a.txt/x",
    "none.txt",
    "x" * 5000,
    "%2e%2e/outside.txt",
    "....//outside.txt",
]


@pytest.mark.parametrize("path", ESCAPES)
@pytest.mark.parametrize("by_descriptor", [True, False])
def test_no_way_out(root: Path, path: str, by_descriptor: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_WALKS_BY_DESCRIPTOR", by_descriptor)
    with pytest.raises(ToolError) as caught:
        ask(root, "read_file", path=path)
    assert SECRET not in str(caught.value)


def test_a_pattern_cannot_leave_either(root: Path) -> None:
    for pattern in ("../*", "/etc/*", "docs/../../*"):
        with pytest.raises(ToolError, match="not a path below the folder"):
            ask(root, "find_files", pattern=pattern)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["..", ".", "", "/", "\\", "docs", "linkdir", "inner.txt", "link.txt", "outside.txt", "\0", "~"]
        ),
        max_size=8,
    ),
    st.sampled_from(["/", "\\", "//"]),
)
def test_random_paths_never_give_a_byte_from_outside(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], joint: str
) -> None:
    base = tmp_path_factory.getbasetemp() / "escape"
    if not base.exists():
        base.mkdir()
        (base / "outside.txt").write_text(SECRET, encoding="utf-8")
        (base / "root" / "docs").mkdir(parents=True)
        (base / "root" / "link.txt").symlink_to(base / "outside.txt")
        (base / "root" / "linkdir").symlink_to(base)
    with pytest.raises(ToolError):
        Folder(base / "root").read(joint.join(parts))


def test_limits(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_MATCHES", 2)
    assert ask(root, "find_files") == {"paths": ["a.txt", "binary.bin"], "complete": False}
    (root / "many.txt").write_text("two\n" * 10, encoding="utf-8")
    found = ask(root, "search_files", text="two", pattern="many.txt")
    assert len(found["matches"]) == 2
    assert found["complete"] is False
    assert ask(root, "search_files", text="o")["complete"] is False
    (root / "large.txt").write_bytes(b"x" * (files.MOST_BYTES_PER_FILE + 1))
    with pytest.raises(ToolError, match="2,000,001 bytes, the limit is 2,000,000"):
        ask(root, "read_file", path="large.txt")
    assert ask(root, "search_files", text="xx", pattern="large.txt")["skipped"] == ["large.txt"]


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="no such folder"):
        file_tools(tmp_path / "none")


def test_an_unlinked_file_is_not_found_while_walking(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert files._is_regular(root / "gone") is False


def by_definition(names: list[str], pattern: list[str]) -> bool:
    """The patterns as one would explain them, trying every length for every `**`."""
    if not pattern:
        return not names
    if pattern[0] == "**":
        return any(by_definition(names[n:], pattern[1:]) for n in range(len(names) + 1))
    one = re.escape(pattern[0]).replace(r"\*", ".*").replace(r"\?", ".")
    return bool(names) and re.fullmatch(one, names[0]) is not None and by_definition(names[1:], pattern[1:])


def test_patterns_agree_with_their_definition() -> None:
    rng = random.Random(3)
    for _ in range(3000):
        path = [rng.choice(["a", "b", "ab", "abc"]) for _ in range(rng.randint(1, 4))]
        pattern = [rng.choice(["a", "*", "**", "a*", "?b", "**"]) for _ in range(rng.randint(1, 4))]
        assert matches_glob(path, pattern) == by_definition(path, pattern), (path, pattern)


def test_a_hostile_pattern_is_quick() -> None:
    assert matches_glob(["a" * 255] * 5, ["*a" * 100 + "b"] * 3 + ["**"] * 50) is False
