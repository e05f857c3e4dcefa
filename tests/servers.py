"""Real servers for tests and benchmarks, each in a folder of its own under /tmp and reached by a socket in it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_S = 60.0


class Unavailable(Exception):
    """The server is not installed, or does not run here."""


@contextmanager
def postgres_server(*options: str) -> Iterator[str]:
    """The folder of the socket of a PostgreSQL server, which ends with the block. Raises Unavailable."""
    initdb, server = _program("initdb"), _program("postgres")
    if initdb is None or server is None:
        raise Unavailable("PostgreSQL is not installed: `apt-get install postgresql` brings it")
    account = _account()
    with _folder("pg-") as folder:
        if account:
            shutil.chown(folder, account["user"], account["group"])
        data = folder / "data"
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "cwd": folder, **account}
        same = ["-E", "UTF8", "--locale=C", "--no-sync"]  # whatever the language of this machine
        made = subprocess.run([initdb, "-D", data, "-A", "trust", "-U", "postgres", *same], check=False, **quiet)
        if made.returncode:
            raise Unavailable(f"PostgreSQL cannot be set up here: {made.stderr.decode()[-200:]}")
        with _running([server, "-D", data, "-k", str(folder), "-h", "", *options], signal.SIGQUIT, **quiet) as process:
            _wait(process, lambda: _connect(folder))
            yield str(folder)


@contextmanager
def redis_server() -> Iterator[str]:
    """The URL of a Redis server that keeps nothing and ends with the block. Raises Unavailable."""
    import redis

    program = shutil.which("redis-server")
    if program is None:
        raise Unavailable("Redis is not installed: `apt-get install redis-server` brings it")
    with _folder("redis-") as folder:
        socket = folder / "socket"
        command = [program, "--port", "0", "--unixsocket", socket, "--save", "", "--dir", folder]
        with _running(command, signal.SIGKILL, stdout=subprocess.DEVNULL) as process:
            client = redis.Redis(unix_socket_path=str(socket))
            _wait(process, client.ping)
            client.close()
            yield f"unix://{socket}"


def _connect(folder: Path) -> None:
    import psycopg

    psycopg.connect(f"postgresql://postgres@/postgres?host={folder}").close()


def _program(name: str) -> str | None:
    """A program of PostgreSQL: on the path, or where Debian puts it."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(found[-1]) if found else None)


def _account() -> dict[str, Any]:
    """PostgreSQL refuses to run as root: then it runs as its own account."""
    if os.geteuid() != 0:
        return {}
    import pwd

    for name in ("postgres", "nobody"):
        try:
            return {"user": name, "group": pwd.getpwnam(name).pw_gid}
        except KeyError:
            continue
    raise Unavailable("PostgreSQL does not run as root, and there is no account for it")


@contextmanager
def _folder(prefix: str) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))  # a socket's path must be short
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _running(command: list[Any], stop: signal.Signals, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, **{**options, "stderr": subprocess.DEVNULL})
    try:
        yield process
    finally:
        process.send_signal(stop)  # at once: nothing here is to be kept
        process.wait(timeout=30)


def _wait(process: subprocess.Popen[bytes], ready: Callable[[], object]) -> None:
    end = time.monotonic() + START_S
    while True:
        try:
            ready()
            return
        except Exception as error:
            if process.poll() is not None or time.monotonic() > end:
                raise Unavailable(f"{process.args[0]} did not start: {error}") from error
            time.sleep(0.05)
