"""Untrusted Python, in a bubblewrap sandbox or not at all.

The code sees a read-only system, a private /tmp of a few megabytes, no environment, no network, no other process, and
nothing of the home folder. Time, memory, processes and output are limited. Where bubblewrap is missing or the kernel
does not allow it, the code is refused: there is no weaker fallback.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO

from agent_forge.errors import SandboxError, UsageError
from agent_forge.runtime.seccomp import program

CODE = "/sandbox/main.py"
_SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin")
# Runs inside, before the code: it gives up what it still may do, then becomes the code.
_BOOT = """
import os, resource, runpy, sys
user, memory, processes, seconds, file_size = map(int, sys.argv[1:6])
for limit, value in (
    (resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_FSIZE, file_size),
    (resource.RLIMIT_NOFILE, 256), (resource.RLIMIT_CORE, 0),
):
    resource.setrlimit(limit, (value, value))
if user:
    os.setgroups([]); os.setresgid(user, user, user); os.setresuid(user, user, user)
resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
sys.argv = [sys.argv[6]]
sys.path[:] = [path for path in sys.path if path]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """How much the code may use. Memory is that of each process; /tmp comes on top and is limited by itself."""

    time_s: float = 10.0
    memory_mb: int = 512
    processes: int = 16
    output_bytes: int = 64 * 1024  # of the standard output and of the standard error
    tmp_mb: int = 32

    def __post_init__(self) -> None:
        if self.time_s <= 0 or self.memory_mb < 64 or self.processes < 1 or self.output_bytes < 1 or self.tmp_mb < 1:
            raise UsageError(f"{self} is not usable", fix="memory_mb must be at least 64, the rest above 0")


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """What the code did. `state` is "done" (exit code 0), "failed", "timed_out" or "output_limit"."""

    state: str
    exit_code: int | None
    stdout: str
    stderr: str
    wall_s: float

    @property
    def ok(self) -> bool:
        """Whether the code ended by itself with exit code 0."""
        return self.state == "done"


@lru_cache(maxsize=1)
def sandbox_available() -> tuple[bool, str]:
    """Whether untrusted code can be isolated here, and why (not): it runs a program in the sandbox, once."""
    if not sys.platform.startswith("linux"):
        return False, f"the sandbox needs Linux, this is {sys.platform}"
    if shutil.which("bwrap") is None:
        return False, "bubblewrap is not installed: apt-get install bubblewrap"
    limits = SandboxLimits(time_s=10)
    with _file(b"print('ready')") as code, _file(program() or b"") as rules:
        command = _command(limits, code.fileno(), rules.fileno() if program() else None)
        try:
            ran = subprocess.run(
                command, capture_output=True, timeout=20, check=False, pass_fds=(code.fileno(), rules.fileno()), env={}
            )
        except (OSError, subprocess.SubprocessError) as error:
            return False, f"bubblewrap does not run: {error}"
    if ran.returncode == 0 and ran.stdout == b"ready\n":
        return True, "bubblewrap works"
    return False, f"bubblewrap does not work here: {ran.stderr.decode(errors='replace').strip()[:200]}"


async def run_python(code: str, *, stdin: str = "", limits: SandboxLimits | None = None) -> SandboxResult:
    """Runs untrusted Python (its standard library, no other package) in the sandbox.

    Raises SandboxError, without running anything, where the code cannot be isolated.
    """
    possible, reason = sandbox_available()
    if not possible:
        raise SandboxError(f"the code was not run: {reason}", fix="`agent-forge doctor` says what is missing")
    limits = limits or SandboxLimits()
    rules = program()
    started = time.monotonic()
    with _file(code.encode()) as source, _file(rules or b"") as filter_file:
        process = await asyncio.create_subprocess_exec(
            *_command(limits, source.fileno(), filter_file.fileno() if rules else None),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=(source.fileno(), filter_file.fileno()),
            env={},
        )
        try:
            state, out, err = await _watch(process, stdin.encode(), limits)
        finally:
            await _end(process)
    exit_code = process.returncode
    if state == "ended":
        state = "done" if exit_code == 0 else "failed"
    return SandboxResult(state, exit_code, out, err, time.monotonic() - started)


async def _watch(process: asyncio.subprocess.Process, data: bytes, limits: SandboxLimits) -> tuple[str, str, str]:
    """Feeds and reads the process until it ends, writes too much, or takes too long."""
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = bytearray(), bytearray()
    jobs = [
        asyncio.ensure_future(_read(process.stdout, out, limits.output_bytes)),
        asyncio.ensure_future(_read(process.stderr, err, limits.output_bytes)),
        asyncio.ensure_future(_feed(process, data)),
        asyncio.ensure_future(_exit(process)),
    ]
    deadline = asyncio.get_running_loop().time() + limits.time_s
    state = "ended"
    waiting = set(jobs)
    try:
        while waiting and state == "ended":
            left = deadline - asyncio.get_running_loop().time()
            finished, waiting = await asyncio.wait(waiting, timeout=max(0, left), return_when="FIRST_COMPLETED")
            if not finished:
                state = "timed_out"
            elif any(job.result() for job in finished):
                state = "output_limit"
    finally:
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
    return state, out.decode(errors="replace"), err.decode(errors="replace")


async def _read(stream: asyncio.StreamReader, into: bytearray, most: int) -> bool:
    """Reads to the end; True when there is more than `most`."""
    while block := await stream.read(65536):
        room = most - len(into)
        into += block[:room]
        if len(block) > room:
            return True
    return False


async def _feed(process: asyncio.subprocess.Process, data: bytes) -> bool:
    assert process.stdin is not None
    with suppress(ConnectionError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()
    return False


async def _exit(process: asyncio.subprocess.Process) -> bool:
    await process.wait()
    return False


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kills bubblewrap, unless it has ended; the kernel then kills every process in its namespace.

    What is left in the pipes is discarded: asyncio sees the end of a process only after the end of its output.
    """
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
    for stream in (process.stdout, process.stderr):
        while stream is not None and await stream.read(65536):
            pass
    await process.wait()


def _file(content: bytes) -> IO[bytes]:
    file = tempfile.TemporaryFile()  # noqa: SIM115  closed by the caller
    file.write(content)
    file.flush()
    file.seek(0)
    return file


def _command(limits: SandboxLimits, code_fd: int, rules_fd: int | None) -> list[str]:
    user = 0x70000000 + secrets.randbelow(0x0FFFFFFF) if os.geteuid() == 0 else 0
    python, python_binds = _python()
    figures = (user, limits.memory_mb << 20, limits.processes, int(limits.time_s) + 1, limits.tmp_mb << 20)
    return [
        str(shutil.which("bwrap")),
        *_isolation(user),
        *_system(),
        *python_binds,
        *("--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"),
        # The first process is bubblewrap's, without our limits: who could write to its memory would be rid of them.
        *("--tmpfs", "/proc/1", "--remount-ro", "/proc/1"),
        *("--size", str(limits.tmp_mb << 20), "--perms", "1777", "--tmpfs", "/tmp"),  # noqa: S108  the sandbox's own
        *("--perms", "0444", "--ro-bind-data", str(code_fd), CODE, "--remount-ro", "/", "--chdir", "/tmp"),  # noqa: S108
        *(("--seccomp", str(rules_fd)) if rules_fd is not None else ()),
        *("--", python, "-I", "-S", "-B", "-c", _BOOT, *map(str, figures), CODE),
    ]


def _isolation(user: int) -> list[str]:
    """Namespaces for everything. As root, the code runs as a user of its own, since limits on processes do not hold for
    root; otherwise a user namespace, in which no further one can be made."""
    common = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    common += ["--die-with-parent", "--new-session", "--clearenv", "--setenv", "PATH", "/usr/bin:/bin"]
    common += ["--hostname", "sandbox", "--cap-drop", "ALL"]
    if user:
        return [*common, "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    return [*common, "--unshare-user", "--disable-userns"]


def _system() -> list[str]:
    """The system's programs and libraries, read-only."""
    binds: list[str] = []
    for folder in _SYSTEM:
        path = Path(folder)
        if path.is_symlink():
            binds += ["--symlink", str(path.readlink()), folder]
        elif path.is_dir():
            binds += ["--ro-bind", folder, folder]
    return binds


def _python() -> tuple[str, list[str]]:
    """This Python as seen from inside, and the binds that show it there: one that is not part of the system goes to
    /python, since the folders on the way to it may be closed to the sandbox's user."""
    executable = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    prefix = Path(sys.base_prefix).resolve()
    if prefix.is_relative_to("/usr") or not executable.is_relative_to(prefix):
        return str(executable), []
    inside = Path("/python") / executable.relative_to(prefix)
    return str(inside), ["--ro-bind", str(prefix), "/python", "--setenv", "LD_LIBRARY_PATH", "/python/lib"]
