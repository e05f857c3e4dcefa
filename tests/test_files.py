"""A file is the old one or the whole new one, whenever the process dies."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent_forge.errors import UsageError
from agent_forge.files import atomic_write
from agent_forge.home import home


def test_an_exception_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")

    def fail() -> None:
        with atomic_write(target) as file:
            file.write("new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_text_bytes_and_permissions(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "t") as file:
        file.write("é")
    with atomic_write(tmp_path / "b", "wb") as file:
        file.write(b"\xff")
    assert (tmp_path / "t").read_bytes() == "é".encode()
    assert (tmp_path / "b").read_bytes() == b"\xff"
    (tmp_path / "plain").write_text("x")
    assert stat.S_IMODE((tmp_path / "t").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


WRITER = """
import sys
from agent_forge.files import atomic_write
n = 0
while True:
    n += 1
    with atomic_write(sys.argv[1]) as file:
        for _ in range(200):
            file.write(f"{n}\\n")
"""


def test_kill_9_never_leaves_a_torn_file(tmp_path: Path) -> None:
    target = tmp_path / "state"
    for round_ in range(8):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(target)])
        deadline = time.monotonic() + 60
        while not target.exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.003 * round_)
        process.send_signal(signal.SIGKILL)
        process.wait()
        lines = target.read_text().splitlines()
        assert len(lines) == 200
        assert len(set(lines)) == 1


def test_home_prefers_the_argument_then_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_FORGE_HOME", str(tmp_path / "variable"))
    assert home(tmp_path / "argument") == tmp_path / "argument"
    assert home() == tmp_path / "variable"
    assert (tmp_path / "variable").is_dir()


def test_home_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be used"):
        home(tmp_path / "file")
