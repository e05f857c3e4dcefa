"""macOS and Windows, as far as Linux can show: what imports and runs without POSIX's modules, with others emulated."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import agent_forge
from agent_forge import platforms

PACKAGE = Path(agent_forge.__file__).parent
POSIX = {"fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}


def test_no_module_imports_posix_at_its_top() -> None:
    found = []
    for file in PACKAGE.rglob("*.py"):
        text = file.read_text("utf-8")
        for node in ast.parse(text).body if any(name in text for name in POSIX) else ():
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [f"{file.name}: {name}" for name in names if name.partition(".")[0] in POSIX]
    assert found == []


# A run with tools, its journal and traces, then a second process' claim: on a system without POSIX's modules and calls,
# whose locks are Windows' (here: fcntl's by another name).
WINDOWS = """
import builtins, os, sys, types
import fcntl as theirs
msvcrt = types.ModuleType("msvcrt")
msvcrt.LK_LOCK, msvcrt.LK_NBLCK, msvcrt.LK_UNLCK = theirs.LOCK_EX, theirs.LOCK_EX | theirs.LOCK_NB, theirs.LOCK_UN
def locking(descriptor, mode, count):
    calls.append(mode)
    theirs.lockf(descriptor, mode, count, os.lseek(descriptor, 0, os.SEEK_CUR))
calls, msvcrt.locking = [], locking
import asyncio, subprocess, tempfile, uuid, socket, getpass, platform
for name in %r:
    sys.modules[name] = None
sys.modules["msvcrt"] = msvcrt
for name in ("geteuid", "getuid", "killpg", "sched_getaffinity", "getloadavg"):
    if hasattr(os, name):
        delattr(os, name)
from agent_forge import Plan, Task, run, tool
from agent_forge.runtime import Journal
import agent_forge.cli._app, agent_forge.runtime.sandbox, agent_forge.traces.otlp, agent_forge.database.file_locks

@tool
def double(n: int) -> int:
    "Twice n."
    return 2 * n

result = run(Plan([Task("a", action="double", args={"n": 21})]), tools=[double], home=sys.argv[1])
assert result.tasks["a"].result == 42, result
assert [one.state for one in Journal.open(sys.argv[1]).runs()] == ["done"]
assert calls.count(msvcrt.LK_NBLCK) and calls.count(msvcrt.LK_UNLCK), calls
claim = Journal.open(sys.argv[1])._database.claim(99)
held = "from agent_forge.runtime import Journal; import sys; print(Journal.open(sys.argv[1])._database.claim(99))"
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
print(os.popen(f'"{sys.executable}" -c "{held}" "{sys.argv[1]}"').read().strip())
"""


def test_a_run_without_posix_and_with_the_locks_of_windows(tmp_path: Path) -> None:
    script = WINDOWS % sorted(POSIX - {"posix"})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False, env=environment
    )
    assert (child.stdout.strip(), child.returncode) == ("None", 0), child.stderr


def test_memory_has_the_unit_of_its_system(monkeypatch: pytest.MonkeyPatch) -> None:
    linux = platforms.peak_memory()
    assert linux is not None
    assert linux > 10 * 2**20
    monkeypatch.setattr(sys, "platform", "darwin")
    mac = platforms.peak_memory()
    assert mac is not None
    assert mac * 1000 < linux < mac * 1100, "macOS counts bytes, Linux kibibytes"
    monkeypatch.setitem(sys.modules, "resource", None)
    assert platforms.peak_memory() is None


def test_a_lock_is_one_descriptors_alone(tmp_path: Path) -> None:
    with open(tmp_path / "x", "w") as one, open(tmp_path / "x") as two:
        assert platforms.lock(one.fileno())
        assert not platforms.lock(two.fileno())
        one.close()
        assert platforms.lock(two.fileno(), wait=True)
