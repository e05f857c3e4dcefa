"""What all tests share: names and examples that are the same in every run, and a PostgreSQL server of their own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

import agent_forge  # noqa: F401 (before any test imports torch: some machines need a limit on its instructions)

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # Started in the background, a shell hands down an ignored Ctrl-C, and so would we to the programs that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What tests ask for listens on this machine, and what they print goes to no terminal.
for _name in ("http_proxy", "https_proxy", "all_proxy", "force_color", "tty_compatible", "tty_interactive"):
    os.environ.pop(_name, None)
    os.environ.pop(_name.upper(), None)
os.environ.update(COLUMNS="80", LINES="24")

# The same examples in every run, however slow the machine: what fails here fails everywhere, and what passes passes.
# `pytest --hypothesis-profile explore` looks for new ones.
settings.register_profile(
    "same",
    derandomize=True,
    max_examples=40,
    deadline=None,
    database=None,
    phases=(Phase.explicit, Phase.generate, Phase.target, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", settings.get_profile("same"), derandomize=False, max_examples=1000)
settings.load_profile("same")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "untraced: repeats itself so often that measuring its coverage takes minutes.")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Every second test process collects by the clock of another day. A name or a number of tests that depends on it is
    then refused in every run, and not only in those whose processes happen to begin in different seconds."""
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0")[-1] not in "13579":
        return (yield)
    day = [86_400]
    seconds, nanoseconds = time.time, time.time_ns
    time.time = lambda: seconds() + day[0]
    time.time_ns = lambda: nanoseconds() + day[0] * 10**9
    try:
        return (yield)
    finally:
        day[0] = 0  # for those who took the function, and not the module
        time.time, time.time_ns = seconds, nanoseconds


def _nothing() -> None:
    pass


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Without the tracer, what is marked as untraced takes a third of the time. Only this thread is spared: servers
    that tests share go on being measured, as they would not with pytest-cov's `no_cover`."""
    tracer = sys.gettrace()
    if tracer is None or pyfuncitem.get_closest_marker("untraced") is None:
        return (yield)
    sys.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(tracer)
        _nothing()  # coverage's tracer takes over again with the next call, so that it sees this function end


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many functions passed, beside pytest's own count of their cases."""
    passed = {report.nodeid.partition("[")[0] for report in terminalreporter.stats.get("passed", [])}
    terminalreporter.write_line(f"{len(passed)} test functions passed")


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
    same = ["-E", "UTF8", "--locale=C", "--no-sync"]  # whatever the language of this machine
    made = subprocess.run([initdb, "-D", data, "-A", "trust", "-U", "postgres", *same], check=False, **quiet)
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
