"""What several rooms' tests share: a PostgreSQL server that the tests start themselves."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # Started in the background, a shell hands down an ignored Ctrl-C, and so would we to the programs that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_make_parametrize_id(config: pytest.Config, val: object) -> str | None:
    """Bytes are named by their length: a name made from their content once held gzip's clock, and two test processes
    that began in different seconds refused to share their work."""
    return f"{len(val)}B" if isinstance(val, bytes) else None


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
    pytest.skip("PostgreSQL does not run as root, and there is no account for it")


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The folder of a running server's socket."""
    initdb, server = _program("initdb"), _program("postgres")
    if initdb is None or server is None:
        pytest.skip("PostgreSQL is not installed: `apt-get install postgresql` brings it")
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'agent-forge[scale]'")
    account = _account()
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # a socket's path must be short
    if account:
        shutil.chown(folder, account["user"], account["group"])
    data = folder / "data"
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "cwd": folder, **account}
    made = subprocess.run([initdb, "-D", data, "-A", "trust", "-U", "postgres", "--no-sync"], check=False, **quiet)
    if made.returncode:
        pytest.skip(f"PostgreSQL cannot be set up here: {made.stderr.decode()[-200:]}")
    options = ["-k", str(folder), "-h", "", "-c", "fsync=off", "-c", "shared_buffers=32MB"]
    process = subprocess.Popen([server, "-D", data, *options], **{**quiet, "stderr": subprocess.DEVNULL})
    try:
        _wait(folder, process)
        yield str(folder)
    finally:
        process.send_signal(signal.SIGQUIT)  # at once: nothing here is to be kept
        process.wait(timeout=30)
        shutil.rmtree(folder, ignore_errors=True)


def _wait(folder: Path, process: subprocess.Popen[bytes]) -> None:
    import psycopg

    end = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(f"postgresql://postgres@/postgres?host={folder}").close()
            return
        except psycopg.OperationalError as error:
            if process.poll() is not None or time.monotonic() > end:
                pytest.skip(f"PostgreSQL did not start: {error}")
            time.sleep(0.05)
