"""Scenario 8: no path and no name leads out of the folder that it belongs to. Whatever the answer, no file outside is
opened: an audit hook sees every `open` of the process, also those of the server's threads."""

from __future__ import annotations

import asyncio
import io
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote_to_bytes

import pytest
from scenario import report, times
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import agent_forge
from agent_forge import cli
from agent_forge.agents.profiles import find_profile
from agent_forge.agents.run_records import stored_notes
from agent_forge.agents.tools.files import Folder
from agent_forge.errors import AgentForgeError
from agent_forge.forge.registry import Registry
from agent_forge.runtime.journal import Journal
from agent_forge.server.app import create_app
from agent_forge.server.settings import ServerSettings

COUNT = times(300, 10_000)
PIECES = [
    "..", ".", "...", "~", "~root", "etc", "passwd", "secret", "link", "inside", "a.txt", "", " ", "%2e%2e", "\x00",
    "C:", "\u2025", "．．", "x" * 300,
]  # fmt: skip
JOINTS = ["/", "//", "\\", "/./", "%2f", "%5c", "\u2215", "/../"]

_opened: list[str] | None = None


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is not None and event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
        path = os.fsdecode(arguments[0])
        # One step below an open folder (openat) cannot lead out of it, unless that step is "..".
        if os.sep in path or path == "..":
            with suppress(ValueError):
                _opened.append(os.path.realpath(path))


@contextmanager
def watched() -> Iterator[list[str]]:
    """The real paths of the files that are opened by name meanwhile."""
    global _opened
    if not getattr(watched, "hooked", False):
        sys.addaudithook(_hook)  # cannot be removed again: it does nothing outside this block
        watched.hooked = True  # type: ignore[attr-defined]
    _opened = paths = []
    try:
        yield paths
    finally:
        _opened = None


OURS = [Path(agent_forge.__file__).parent, Path(sys.prefix), Path(os.__file__).parent]  # code, templates, presets


def leads_outside(opened: list[str], place: Path) -> list[str]:
    return [path for path in opened if not any(Path(path).is_relative_to(each) for each in (place, *OURS))]


def names() -> list[str]:
    draw = random.Random(8)
    made = ["../secret", "/etc/passwd", "..", "link/secret", "inside/../../secret", "....//secret", "a/../../secret"]
    while len(made) < COUNT:
        path = ""
        for _ in range(draw.randint(1, 6)):
            path += draw.choice(PIECES) + draw.choice(JOINTS)
        path = ("/" if draw.random() < 0.2 else "") + path + draw.choice(["secret", "passwd", "", ".."])
        made.append(quote(path) if draw.random() < 0.1 else path)
    return made


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("the secret")
    root = tmp_path / "root"
    (root / "inside").mkdir(parents=True)
    (root / "a.txt").write_text("allowed")
    (root / "link").symlink_to(tmp_path)
    return root


def readers(root: Path) -> dict[str, Callable[[str], Any]]:
    folder, registry, journal = Folder(root), Registry(root / "models"), Journal.open(root)
    return {
        "file tool": folder.read,
        "glob": lambda name: list(folder.walk(name)),
        "model": registry.find,
        "run": journal.load,
        "resume": lambda name: stored_notes(root, True, name),
        "profile": find_profile,
    }


@pytest.mark.untraced
@pytest.mark.parametrize("reader", ["file tool", "glob", "model", "run", "resume", "profile"])
def test_no_name_leads_outside(place: Path, reader: str) -> None:
    read = readers(place)[reader]
    with suppress(AgentForgeError):
        read("a.txt")  # what is imported at first use is imported now
    for name in names():
        with watched() as opened:
            try:
                answer = read(name)
            except (AgentForgeError, OSError):
                answer = None
        assert leads_outside(opened, place) == [], name
        assert b"the secret" not in (answer if isinstance(answer, bytes) else repr(answer).encode()), name


COMMANDS = [
    "runs show NAME", "runs cancel NAME", "runs approve NAME a", "page NAME", "run --resume NAME", "agents show NAME",
    "traces show NAME", "traces reward NAME 1", "traces trajectory NAME", "traces trajectory --session NAME",
    "traces collect --name NAME --plan p.json --traces 1", "chat --session NAME", "forge show NAME",
    "forge status NAME", "delegation verify NAME --grade 1", "delegation trajectory --session NAME",
    "delegation ls --session NAME", "models show NAME", "models verify NAME", "models ls --phase NAME",
    "data fetch NAME", "bench NAME",
]  # fmt: skip


@pytest.mark.untraced
@pytest.mark.parametrize("command", COMMANDS)
def test_no_name_at_the_command_line_leads_outside(
    command: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AGENT_FORGE_HOME", str(place))
    monkeypatch.chdir(place)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    (place / "p.json").write_text('{"tasks": [{"id": "a", "goal": "x"}]}')

    def words(name: str) -> list[str]:
        return [name if word == "NAME" else word for word in command.split()]

    cli.run(words("some"))  # what is imported at first use is imported now
    held, tried = 0, [name for name in names()[:: COUNT // times(10, 500)] if not name.startswith("-")]
    for name in tried:
        with watched() as opened:
            cli.run(words(name))
        said = "".join(capsys.readouterr())
        assert leads_outside(opened, place) == [], name
        assert "the secret" not in said, name
        assert "No such command" not in said, command
        held += 1
    assert {path.name for path in place.parent.iterdir()} == {"root", "secret"}
    report(8, f"names at the command line: {command}", len(tried), held)


async def called(app: Any, method: str, path: str) -> tuple[int, bytes]:
    """The answer to a request whose path is sent exactly like this."""
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": unquote_to_bytes(path).decode(errors="replace"), "raw_path": path.encode(), "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")], "root_path": "",
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": {},
    }  # fmt: skip
    inbox = [{"type": "http.request", "body": b"{}"}, {"type": "http.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return inbox.pop(0) if len(inbox) > 1 else inbox[0]

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], b"".join(each.get("body", b"") for each in sent)


async def fuzz_routes(app: Starlette, place: Path) -> tuple[int, int]:
    """Every route that takes a name, with names that lead elsewhere: how many of them, and requests in all."""
    routes = [(route.path, method) for route in app.routes if "{" in route.path for method in sorted(route.methods)]  # type: ignore[attr-defined]
    tried, requests = names()[:: COUNT // times(10, 200)], 0
    for path, method in routes:
        for name in ["some", *tried]:
            ways = {quote(name, safe=""), quote(name), quote(quote(name, safe=""))}
            for way in sorted(ways):
                with watched() as opened:
                    status, body = await called(app, method, re.sub(r"{[^}]*}", lambda _: way, path))  # noqa: B023
                if name != "some":  # with that, what is imported at first use is imported
                    assert leads_outside(opened, place) == [], (path, way)
                assert b"the secret" not in body, (path, way)
                assert status < 500, (method, path, way, status, body[:200])
                requests += 1
    return len(routes), requests


@pytest.mark.untraced
def test_no_name_in_a_route_leads_outside(place: Path) -> None:
    for folder in ("audits", "forge", "models", "runs"):
        (place / folder).mkdir(exist_ok=True)
    (place.parent / "secret.json").write_text('{"title": "the secret"}')
    routes, attempts = asyncio.run(fuzz_routes(create_app(ServerSettings(home=str(place))), place))
    report(8, f"names in {routes} routes and methods of the server, in three encodings", attempts, attempts)


def test_a_route_that_joins_paths_is_caught(place: Path) -> None:
    """The control."""

    async def join(request: Request) -> Response:
        try:
            return Response((place / request.path_params["name"]).read_bytes())
        except (OSError, ValueError):
            return Response(status_code=404)

    with pytest.raises(AssertionError, match=r"secret|passwd"):
        asyncio.run(fuzz_routes(Starlette(routes=[Route("/files/{name:path}", join)]), place))


def test_the_watch_sees_what_leads_outside(place: Path) -> None:
    """The control: a reader that joins paths is caught by it."""
    with watched() as opened:
        assert (place / "../secret").read_text() == "the secret"
    assert str((place.parent / "secret").resolve()) in opened
    with watched() as opened:
        (place / "link" / "secret").read_text()
    assert str((place.parent / "secret").resolve()) in opened


def test_the_fuzz_would_find_a_joined_path(place: Path) -> None:
    reached = 0
    for name in names():
        with suppress(OSError, ValueError):
            reached += (place / name).read_text() == "the secret"
    assert reached > 0
