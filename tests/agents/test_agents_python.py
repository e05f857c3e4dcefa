"""Python as a tool: in the sandbox, or refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_forge.agents.tools.python import python_tool
from agent_forge.errors import SandboxError, ToolError
from agent_forge.runtime.sandbox import sandbox_available

isolated = pytest.mark.skipif(not sandbox_available()[0], reason=sandbox_available()[1])


def run(code: str, stdin: str = "", **limits: Any) -> Any:
    return asyncio.run(python_tool(**limits).call({"code": code, "stdin": stdin}))


@isolated
def test_a_program_runs() -> None:
    assert run("print(sum(range(10)))") == {"stdout": "45\n", "stderr": ""}
    assert run("print(input()[::-1])", "abc")["stdout"] == "cba\n"


@isolated
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("1/0", "ended with code 1: ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(4)", "ended with code 4: no message"),
        ("while True: pass", r"longer than 1 s"),
        ("import socket; socket.create_connection(('127.0.0.1', 80))", "ended with code 1"),
        ("open('/etc/passwd').read()", "ended with code 1"),
        ("while True: print('x' * 10000)", "printed too much|longer than"),
    ],
)
def test_programs_that_fail(code: str, words: str) -> None:
    with pytest.raises(ToolError, match=words):
        run(code, time_s=1.0)


@pytest.fixture
def no_sandbox(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("PATH", str(tmp_path))  # no bubblewrap to be found
    sandbox_available.cache_clear()
    yield
    sandbox_available.cache_clear()


def test_without_isolation_it_is_refused_and_not_run(no_sandbox: None, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    with pytest.raises(SandboxError, match="was not run"):
        run(f"open({str(marker)!r}, 'w')")
    assert not marker.exists()
