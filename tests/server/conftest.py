"""Servers that really listen, in this process: one that most tests share, and others with settings of their own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("starlette", reason="the server's packages are not installed: the extra `server` brings it")

sys.path.insert(0, str(Path(__file__).parents[1] / "agents"))


@dataclass
class Live:
    """A server that listens."""

    url: str
    port: int
    app: Any

    @property
    def context(self) -> Any:
        return self.app.state.context

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, trust_env=False, **options)


@contextmanager
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Live]]:
    """Starts a server with settings; all are stopped at the end."""
    import uvicorn

    from agent_forge.server.serving import config, listen
    from agent_forge.server.settings import ServerSettings

    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(**settings: Any) -> Live:
        settings.setdefault("home", str(tmp_path_factory.mktemp("home")))
        chosen = ServerSettings(**{"port": 0, "log_level": "error", **settings})
        listening = listen(chosen)
        made = config(chosen)
        server = uvicorn.Server(made)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        running.append((server, thread))
        port = listening.getsockname()[1]
        live = Live(f"http://127.0.0.1:{port}", port, made.app)
        with live.client() as client:
            assert client.get("/healthz").status_code == 200
        return live

    try:
        yield start
    finally:
        for server, _ in running:
            server.should_exit = True
        for _, thread in running:
            thread.join(timeout=60)


@pytest.fixture(scope="module")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Live]]:
    """Starts a server with settings. It ends with the module: an idle one ticks ten times a second, and thirty of them
    until the last test would take as long as the slowest tests do."""
    with servers(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="session")
def shared_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Live]]:
    with servers(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="session")
def plain(shared_servers: Callable[..., Live]) -> Live:
    """A server without a model."""
    return shared_servers()


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny random model."""
    pytest.importorskip("torch", reason="torch is not installed: the extra `forge` brings it")
    import server_tiny  # noqa: F401  (torch with one thread)
    from agents_tiny_model import tiny_folder

    folder: Path = tiny_folder(tmp_path_factory.mktemp("models") / "tiny")
    return folder


@pytest.fixture(scope="session")
def live(shared_servers: Callable[..., Live], tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Live:
    """A server with the tiny model, loaded."""
    tools = tmp_path_factory.mktemp("tools") / "server_tools.py"
    tools.write_text(TOOLS)
    server = shared_servers(models=(f"tiny={tiny_path}",), tools=str(tools), slots=8)
    server.context.parts["models"]._served["tiny"].ready.result(timeout=120)
    return server


TOOLS = '''
import time
from agent_forge import tool


@tool
def double(number: int) -> int:
    """Twice a number."""
    return 2 * number


@tool
def doze(seconds: float) -> str:
    """Waits."""
    time.sleep(seconds)
    return "awake"
'''


@pytest.fixture(scope="session")
def dashboard(shared_servers: Callable[..., Live], tmp_path_factory: pytest.TempPathFactory) -> Live:
    """A server on a home folder that real runs, a pipeline and an audit have filled."""
    import server_home

    home = server_home.fill(tmp_path_factory.mktemp("dashboard"))
    server_home.forge(home)
    server_home.hostile(home)
    return shared_servers(home=str(home))
