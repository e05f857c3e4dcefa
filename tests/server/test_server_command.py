"""`agent-forge serve` as people start it: light, loopback, and with a token that is shown once."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

LIGHT_MB = 60


class Process:
    """The command in a process; `said` are the lines on stderr up to the one with the address."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "agent_forge", "serve", "--port", "0", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.said = [self.process.stderr.readline()]
        found = re.search(r"http://\S+", self.said[0])
        assert found is not None, self.said[0] + self.process.stderr.read()
        self.url = found[0].replace("0.0.0.0", "127.0.0.1")

    def line(self) -> str:
        assert self.process.stderr is not None
        self.said.append(self.process.stderr.readline())
        return self.said[-1]

    def get(self, path: str, **headers: str) -> int:
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=headers), timeout=30) as answer:
                return int(answer.status)
        except HTTPError as error:
            return error.code

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=60)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_without_a_model_it_is_light(tmp_path: Path) -> None:
    """It answers without torch, transformers or a page of memory too many."""
    with Process("--home", str(tmp_path)) as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert server.get("/healthz") == 200
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        assert int(status.split("VmHWM:")[1].split()[0]) / 1024 < LIGHT_MB
        maps = Path(f"/proc/{server.process.pid}/maps").read_text()
        assert "libtorch" not in maps
        assert server.get("/v1/models") == 200
        assert server.get("/readyz") == 200
    assert server.process.returncode == 130  # interrupted, after closing all that was open


def test_beyond_loopback_a_token_is_made_up_and_shown_once(tmp_path: Path) -> None:
    with Process("--home", str(tmp_path), "--host", "0.0.0.0") as server:
        token = server.line().rpartition(" ")[2].strip()
        assert len(token) >= 40
        assert token in server.line()  # the link to open
        assert server.get("/v1/models") == 401
        assert server.get("/v1/models", Authorization=f"Bearer {token}") == 200
        assert server.get("/v1/models", Authorization=f"Bearer {token[:-1]}") == 401


def test_a_port_that_is_taken_is_told(plain: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from agent_forge.cli import run

    assert run(["serve", "--port", str(plain.port), "--home", str(tmp_path)]) == 2
    assert "Try another --port" in capsys.readouterr().err


def test_a_model_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from agent_forge.cli import run

    assert run(["serve", "--port", "0", "--home", str(tmp_path), "--model", "nobody-at-all"]) == 2
    assert "there is no model 'nobody-at-all'" in capsys.readouterr().err


def test_tools_that_are_not_there_are_told_at_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    from agent_forge.cli import run

    assert run(["serve", "--tools", "nowhere.py", "--port", "0"]) == 1
    assert "nowhere.py: there is no such file" in capsys.readouterr().err
