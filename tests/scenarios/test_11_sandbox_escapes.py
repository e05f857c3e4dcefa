"""Scenario 11: programs that try to get out of the sandbox, started by root and by an ordinary user.

A program prints ESCAPED when it got what it wanted: a file, a process, a network or a right of the host, or more memory
than it may have. Those that do no harm outside run there too, which is the control.
"""

from __future__ import annotations

import json
import os
import platform
import re
import secrets
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from scenario import LONG, report, times

import agent_forge
from agent_forge.runtime import sandbox_available

POSSIBLE, REASON = sandbox_available()
pytestmark = pytest.mark.skipif(not POSSIBLE, reason=f"no sandbox on this machine: {REASON}")
NOBODY = "65534"
COLUMN = {"x86_64": 0, "aarch64": 1}.get(platform.machine(), 2)

# Before each program; `host` is what the program knows about the machine outside.
PRELUDE = """
import ctypes, os, resource, signal, socket, subprocess, sys, threading, time
host = {host}
libc = ctypes.CDLL(None, use_errno=True)
def got(): print("ESCAPED", flush=True)
def may(*calls):
    for call in calls:
        try:
            if call() not in (-1, None): got()
        except (OSError, ValueError, MemoryError): pass
def system(numbers, *args):
    return lambda: libc.syscall(ctypes.c_long(numbers[{column}]), *args) if {column} < 2 else -1
def read(path): return open(path, errors="replace").read()
def write(path): return os.write(os.open(path, os.O_WRONLY | os.O_CREAT), b"x")
def finds(path): return (host["secret"] in read(path)) or None
"""

PROGRAMS = re.findall(r"^== (.+)\n((?:(?!==).*\n)+)", Path(__file__).with_name("escapes.txt").read_text(), re.MULTILINE)
CONTROLS = {name.removesuffix(" (harmless)"): code for name, code in PROGRAMS if name.endswith(" (harmless)")}
ATTACKS = {name.removesuffix(" (harmless)"): code for name, code in PROGRAMS}

CHILD = """
import asyncio, json, subprocess, sys
from agent_forge.runtime.sandbox import SandboxLimits, run_python, sandbox_available
async def all_of(programs):
    room = asyncio.Semaphore(2)
    async def one(name, code):
        async with room:
            result = await run_python(code, limits=SandboxLimits(time_s=20, processes=16, tmp_mb=32))
        return name, [result.state, result.stdout, result.stderr[-500:]]
    return dict(await asyncio.gather(*(one(*each) for each in programs.items())))
programs, outside = json.load(sys.stdin)
if outside:
    run = lambda code: subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    done = {name: run(code) for name, code in programs.items()}
    print(json.dumps({name: [ran.returncode, ran.stdout, ran.stderr[-500:]] for name, ran in done.items()}))
elif not sandbox_available()[0]:
    sys.exit("no sandbox: " + sandbox_available()[1])
else:
    print(json.dumps(asyncio.run(all_of(programs))))
"""


@dataclass
class Host:
    """What there is to reach outside, and the user who starts the sandbox."""

    command: list[str]
    environment: dict[str, str]
    known: dict[str, Any]

    def run(self, programs: dict[str, str], *, outside: bool = False) -> dict[str, list[Any]]:
        """What each program did, in the sandbox or, for the control, outside."""
        start = PRELUDE.format(host=repr(self.known), column=COLUMN)
        given = json.dumps([{name: start + code for name, code in programs.items()}, outside])
        ran = subprocess.run(
            self.command, input=given, env=self.environment, capture_output=True, text=True, timeout=600, check=False
        )
        if ran.returncode:
            pytest.skip(f"this user has no sandbox here: {ran.stderr[-300:]}")
        return dict(json.loads(ran.stdout))


def _command(who: str) -> list[str]:
    python = [sys.executable, "-c", CHILD]
    if who == "root":
        if os.geteuid() != 0:
            pytest.skip("only root can start a sandbox as root")
        return python
    if os.geteuid() != 0:
        return python
    # This Python may lie where nobody else can read: for nobody it is at /mnt, in a namespace of its own.
    inner = Path(sys._base_executable).resolve().relative_to(sys.base_prefix)  # type: ignore[attr-defined]
    script = 'mount --bind "$0" /mnt && exec setpriv --reuid="$1" --regid="$1" --clear-groups "/mnt/$2" -c "$3"'
    return ["unshare", "--mount", "sh", "-c", script, sys.base_prefix, NOBODY, str(inner), CHILD]


@pytest.fixture(params=["root", "an ordinary user"])
def host(request: pytest.FixtureRequest) -> Iterator[tuple[str, Host]]:
    who, secret, marker = request.param, secrets.token_hex(12), f"marker{secrets.token_hex(8)}"
    command = _command(who)
    source = Path(agent_forge.__file__).parents[1]
    environment = {
        "PATH": os.environ["PATH"], "PYTHONPATH": f"{source}:{sysconfig.get_paths()['purelib']}", "CANARY": secret,
        "LD_LIBRARY_PATH": "/mnt/lib", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name, socket.socket() as port, socket.socket(1) as abstract:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "secret").write_text(secret)
        (folder / "secret").chmod(0o666)
        port.bind(("127.0.0.1", 0))
        port.listen()
        abstract.bind(f"\0{secret}x")
        abstract.listen()
        user = int(NOBODY) if who != "root" and os.geteuid() == 0 else None
        with subprocess.Popen(["sh", "-c", "sleep 600; true", secret], user=user, env={}) as canary:
            known = {
                "file": str(folder / "secret"), "secret": secret, "marker": marker, "port": port.getsockname()[1],
                "abstract": f"{secret}x", "pid": canary.pid, "name": socket.gethostname(),
            }  # fmt: skip
            yield who, Host(command, environment, known)
            assert canary.poll() is None, "the process outside was killed"
            canary.kill()
        assert sorted(path.name for path in folder.iterdir()) == ["secret"]
        assert (folder / "secret").read_text() == secret


def left_behind(marker: str) -> bool:
    """Whether a process with this marker still runs."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes():
                return True
        except OSError:
            continue
    return False


def test_programs_that_try_to_get_out(host: tuple[str, Host]) -> None:
    who, outside = host
    assert len(ATTACKS) >= 40
    rounds, attempts, held, failures = times(1, 5), 0, 0, {}
    first = 0 if who == "root" else 1  # the short form tries a third of them, another one for each user
    chosen = ATTACKS if LONG else dict(list(ATTACKS.items())[first::3])
    for _ in range(rounds):
        for name, (state, output, errors) in outside.run(chosen).items():
            out = "ESCAPED" in output or outside.known["secret"] in output
            lost = name != "killing everybody" and state == "failed" and "Traceback" in errors
            if out or lost or state == "timed_out":
                failures[name] = (state, output[-200:], errors)
            attempts, held = attempts + 1, held + (name not in failures)
    assert not left_behind(outside.known["marker"])
    assert not failures, json.dumps(failures, indent=1)
    report(11, f"programs that try to leave the sandbox, started by {who}", attempts, held, f"{len(ATTACKS)} kinds")


def test_outside_the_sandbox_they_get_it(host: tuple[str, Host]) -> None:
    """The control: what does no harm is run outside. What the kernel itself refuses there says nothing."""
    _, outside = host
    results = outside.run(CONTROLS, outside=True)
    kept = {name: result for name, result in results.items() if "ESCAPED" not in result[1]}
    assert not {name: r for name, r in kept.items() if "Traceback" in r[2]}
    assert len(kept) <= 5, kept
