"""Scenario 10: requests to the inside (SSRF). A page, a redirect, a name server or a schema names an address inside the
network, and nothing is sent there.

Two addresses of the loopback stand for the two sides: 127.0.0.2 is the outside, which the tool may contact, and
127.0.0.1 the inside. Every attack counts as held only if the server on the inside has seen no request.
"""

from __future__ import annotations

import asyncio
import ipaddress
import random
import re
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenario import report, spans_of_a_trace, times

import agent_forge
from agent_forge.agents import Tool
from agent_forge.agents.answer_shape import AnswerShape
from agent_forge.agents.mcp import mcp_server
from agent_forge.agents.tools.addresses import AddressRefused, is_public, safe_address
from agent_forge.agents.tools.http import http_fetch
from agent_forge.cli.doctor import _endpoint
from agent_forge.curation.downloads import Published
from agent_forge.curation.downloads import fetch as download
from agent_forge.curation.generate import Endpoint
from agent_forge.errors import AgentForgeError, ToolError
from agent_forge.inference import OpenAICompatible, Request
from agent_forge.traces import send_otlp

OUTSIDE, INSIDE = "127.0.0.2", "127.0.0.1"
MOVED = (301, 302, 303, 307, 308)

# What may open a connection, and where to.
GUARDED = {"agents/tools/http.py", "agents/tools/addresses.py"}  # whatever a model asks for: allow-list and addresses
GIVEN = {  # an endpoint that the user names, inside or not, and nowhere else: redirects are not followed
    "agents/mcp.py",
    "cli/doctor.py",
    "curation/downloads.py",  # addresses in the table of this file
    "curation/generate.py",
    "database/postgres.py",
    "inference/openai_compatible.py",
    "server/postgres_events.py",
    "server/redis_events.py",
    "traces/export.py",
}
SILENT = {"server/serving.py", "server/security.py", "forge/registry.py"}  # they listen, or ask for this machine's name
CLIENTS = {
    "aiohttp", "asyncpg", "datasets", "ftplib", "http.client", "httpx", "httpx2", "huggingface_hub", "imaplib",
    "mcp", "poplib", "psycopg", "redis", "requests", "smtplib", "socket", "telnetlib", "urllib.request", "urllib3",
    "websockets", "xmlrpc",
}  # fmt: skip


class Side(BaseHTTPRequestHandler):
    """A server: `/to?URL` and `/301?URL` redirect, everything else is a page with the name of the side."""

    def do_GET(self) -> None:
        self.server.seen.append(self.path)  # type: ignore[attr-defined]
        self.rfile.read(int(self.headers.get("content-length") or 0))
        name, _, target = self.path.partition("?")
        target = self.server.moved_to or target  # type: ignore[attr-defined]
        status = int(name[1:]) if name[1:].isdigit() else 302
        self.send_response(self.server.status or (status if target else 200))  # type: ignore[attr-defined]
        if target:
            self.send_header("Location", target)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        self.wfile.write(str(self.server.server_address[0]).encode())

    do_POST = do_HEAD = do_DELETE = do_PUT = do_OPTIONS = do_CONNECT = do_GET

    def log_message(self, *_: object) -> None: ...


class Sides:
    """Two servers with the same port on two addresses."""

    def __init__(self) -> None:
        for _ in range(20):  # until a port is free on both
            self.outside = self._serve(OUTSIDE, 0)
            try:
                self.inside = self._serve(INSIDE, self.outside.server_port)
                break
            except OSError:
                self.outside.server_close()
        self.port = self.outside.server_port
        self.threads = [
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
            for server in (self.outside, self.inside)
        ]
        for thread in self.threads:
            thread.start()

    @staticmethod
    def _serve(address: str, port: int) -> Any:
        server: Any = ThreadingHTTPServer((address, port), Side)
        server.daemon_threads, server.seen, server.moved_to, server.status = True, [], "", 0
        return server

    def close(self) -> None:
        for server, thread in zip((self.outside, self.inside), self.threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()


@pytest.fixture
def sides() -> Iterator[Sides]:
    both = Sides()
    yield both
    both.close()


def fetch(url: str, allow: list[str], **options: Any) -> Any:
    return asyncio.run(
        http_fetch(allow, **{"private": [f"{OUTSIDE}/32"], "timeout_s": 5, **options}).call({"url": url})
    )


def names(answers: dict[str, list[str]]) -> Callable[[str, int], Any]:
    """A resolver with these names and the system's reading of addresses, without a network."""

    async def resolver(host: str, port: int) -> list[str]:
        try:
            return answers.get(host) or [str(each[4][0]) for each in socket.getaddrinfo(host, port, type=1)]
        except OSError as error:
            raise ToolError(f"{host!r} cannot be resolved") from error

    return resolver


# The tool that fetches pages


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0177.0.0.1/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://0.0.0.0/",
        "http://[::]/",
        "http://169.254.169.254/latest/meta-data/",
        "http://localhost/",
        "http://localhost./",
        "http://10.0.0.1/",
        "http://192.168.1.1/",
        "http://172.16.0.1/",
        "http://100.64.0.1/",
        "http://[fd00::1]/",
        "http://[fe80::1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://[2002:7f00:1::]/",
        "http://224.0.0.1/",
        "http://255.255.255.255/",
        "file:///etc/passwd",
        "gopher://127.0.0.1/",
        "ftp://example.org/",
        "//example.org/",
        "/etc/passwd",
        "http://",
        "http:///x",
        "http://user:pass@example.org/",
        "http://example.org@127.0.0.1/",
        "http://127.0.0.1:99999/",
        "http://exa mple.org/",
        "http://127.0.0.1\t/",
        "http://" + "a" * 3000,
        "http://①②⑦.⓪.⓪.①/",
        "",
    ],
)
def test_addresses_that_are_never_contacted(url: str) -> None:
    with pytest.raises(ToolError):
        fetch(url, ["*"], private=False)


@settings(max_examples=25, deadline=None)
@given(st.ip_addresses())
def test_nothing_inside_a_network_is_public(address: Any) -> None:
    inside = [
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16",
        "224.0.0.0/3", "::/128", "::1/128", "fc00::/7", "fe80::/10", "ff00::/8",
    ]  # fmt: skip
    networks = [ipaddress.ip_network(text) for text in inside]
    if any(address in network for network in networks if network.version == address.version):
        assert not is_public(address)
    for form in ("::ffff:{}", "64:ff9b::{}"):
        if address.version == 4:
            assert is_public(ipaddress.ip_address(form.format(address))) == is_public(address)
    if address.version == 4:
        packed = f"{int(address):08x}"
        assert is_public(ipaddress.ip_address(f"2002:{packed[:4]}:{packed[4:]}::1")) == is_public(address)


@pytest.mark.parametrize(
    "addresses", [["127.0.0.1"], ["93.184.216.34", "10.1.2.3"], ["fe80::1%eth0"], ["::ffff:127.0.0.1"]]
)
def test_one_private_address_is_enough_to_refuse(sides: Sides, addresses: list[str]) -> None:
    with pytest.raises(AddressRefused, match="not public"):
        fetch(f"http://mixed.test:{sides.port}/", [f"*:{sides.port}"], resolver=names({"mixed.test": addresses}))
    assert not sides.inside.seen


def targets(port: int) -> list[str]:
    """Where a page on the outside may send us."""
    hosts = ("127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]",
             "localhost", "localhost.", "LOCALHOST", "inside.test", "both.test", "169.254.169.254", "10.0.0.7",
             "[64:ff9b::7f00:1]", "[fe80::1]")  # fmt: skip
    urls = [f"http://{host}:{port}/secret" for host in hosts]
    urls += [f"//127.0.0.1:{port}/", f"http:\\\\127.0.0.1:{port}\\", f"http://outside.test@127.0.0.1:{port}/"]
    return [
        *urls,
        "file:///etc/passwd",
        f"gopher://127.0.0.1:{port}/",
        f"ftp://127.0.0.1:{port}/",
        f"ws://127.0.0.1:{port}/",
    ]


def test_redirects_to_the_inside(sides: Sides) -> None:
    resolver = names({"outside.test": [OUTSIDE], "inside.test": [INSIDE], "both.test": [OUTSIDE, INSIDE]})
    start, dice = f"http://outside.test:{sides.port}", random.Random(10)
    cases = [(status, target) for target in targets(sides.port) for status in MOVED]
    cases = dice.sample(cases, times(40, len(cases)))
    held = 0
    for status, target in cases:
        url = f"/{status}?{target}"
        for _ in range(dice.randrange(3)):  # some after further redirects on the outside
            url = f"/{dice.choice(MOVED)}?{start}{url}"
        with pytest.raises(ToolError):
            fetch(start + url, [f"*:{sides.port}", "*"], resolver=resolver)
        held += not sides.inside.seen
        sides.inside.seen.clear()
    assert sides.outside.seen
    report(10, "redirects from the outside to the inside, in all spellings", len(cases), held)


def test_the_server_inside_would_have_been_reached(sides: Sides) -> None:
    """The control: a client that follows redirects reads the page on the inside, and so does our tool if it may."""
    url = f"http://{OUTSIDE}:{sides.port}/302?http://{INSIDE}:{sides.port}/secret"
    assert httpx.get(url, follow_redirects=True, trust_env=False).text == INSIDE
    assert fetch(url, [f"*:{sides.port}"], private=True)["text"] == INSIDE
    assert sides.inside.seen == ["/secret"] * 2


class Rebinding:
    """A name server that says OUTSIDE so many times, then INSIDE, to whoever asks through the system's resolver."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 1
        self.asked = 0
        self._ask = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self)

    def __call__(self, host: Any, port: Any, *rest: Any, **options: Any) -> Any:
        if host not in ("rebind.test", b"rebind.test"):
            return self._ask(host, port, *rest, **options)
        self.asked += 1
        self.left -= 1
        return self._ask(OUTSIDE if self.left >= 0 else INSIDE, port, *rest, **options)


def test_dns_rebinding(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    server, dice = Rebinding(monkeypatch), random.Random(11)
    url, count, held = f"http://rebind.test:{sides.port}", times(20, 500), 0
    for _ in range(count):
        hops, server.left = dice.randrange(4), dice.randrange(1, 4)
        path = "/page"
        for _ in range(hops):
            path = f"/{dice.choice(MOVED)}?{url}{path}"
        through = server.left > hops
        try:
            assert (fetch(url + path, [f"*:{sides.port}"])["text"] == OUTSIDE) == through
        except AddressRefused:
            assert not through
        held += not sides.inside.seen
        sides.inside.seen.clear()
    report(10, "a name that is rebound to the inside, before or after redirects", count, held)


def test_a_check_before_the_request_does_not_hold(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: with a check of the name and then a request by name, rebinding reaches the inside."""
    Rebinding(monkeypatch)
    assert asyncio.run(safe_address("rebind.test", sides.port, private=[f"{OUTSIDE}/32"])) == OUTSIDE
    assert httpx.get(f"http://rebind.test:{sides.port}/", trust_env=False).text == INSIDE


def test_a_proxy_of_the_environment_does_not_resolve_the_name_again(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://{INSIDE}:{sides.port}")
    url = f"http://outside.test:{sides.port}/"
    assert fetch(url, [f"*:{sides.port}"], resolver=names({"outside.test": [OUTSIDE]}))["text"] == OUTSIDE
    assert not sides.inside.seen
    assert httpx.get(f"http://{OUTSIDE}:{sides.port}/").text == INSIDE  # the control


# What fetches from an endpoint that the user gives


def test_what_fetches_is_on_one_of_the_lists() -> None:
    package = Path(agent_forge.__file__).parent
    found = set()
    for path in package.rglob("*.py"):
        for line in re.findall(r"^[ >]*(?:from|import) (.+)", path.read_text("utf-8"), re.MULTILINE):
            first, *rest = re.findall(r"[\w.]+", line)
            named = {first, first.partition(".")[0], *(f"{first}.{each}" for each in rest)}
            if not named.isdisjoint(CLIENTS):
                found.add(path.relative_to(package).as_posix())
    assert found == GUARDED | GIVEN | SILENT


def _ask_model(url: str, _: Path) -> object:
    model = OpenAICompatible(f"{url}/v1", "m", retries=0, timeout_s=5)
    return asyncio.run(model.answer(Request(({"role": "user", "content": "hi"},))))


def _ask_doctor(url: str, _: Path) -> object:
    finding = _endpoint(url)
    if not finding.ok:
        raise ToolError(finding.detail)
    return finding


def _download(url: str, folder: Path) -> object:
    return download("gsm8k", folder=folder, published=[Published(f"{url}/x.jsonl", "x.jsonl")], timeout_s=5)


def _ask_mcp(url: str, _: Path) -> object:
    async def tools() -> object:
        async with mcp_server(url=f"{url}/mcp", headers={"authorization": "Bearer k"}, start_s=5) as server:
            return server.tools

    return asyncio.run(tools())


CALLS: dict[str, Callable[[str, Path], object]] = {
    "agents/mcp.py": _ask_mcp,
    "cli/doctor.py": _ask_doctor,
    "curation/downloads.py": _download,
    "curation/generate.py": lambda url, _: Endpoint(url, "m", "k", timeout_s=5).complete("hi", 1),
    "inference/openai_compatible.py": _ask_model,
    "traces/export.py": lambda url, _: send_otlp([spans_of_a_trace(1)], url, headers={"X-Key": "k"}, protobuf=False),
}


def test_an_endpoint_cannot_send_us_elsewhere(sides: Sides, tmp_path: Path) -> None:
    """Nor the key that we send it. PostgreSQL has no redirects, and neither has Redis outside a cluster."""
    assert set(CALLS) == GIVEN - {"database/postgres.py", "server/postgres_events.py", "server/redis_events.py"}
    attempts = held = 0
    for name, call in CALLS.items():
        if name == "agents/mcp.py":
            pytest.importorskip("mcp")
        cases = [(status, f"http://{INSIDE}:{sides.port}/v1/traces") for status in MOVED]
        cases += [(307, "http:\\\\127.0.0.1\\"), (307, f"//{INSIDE}:{sides.port}"), (302, "file:///etc/passwd")]
        for status, target in cases[: times(2, 8)] if name == "agents/mcp.py" else cases:
            sides.outside.status, sides.outside.moved_to = status, target
            with pytest.raises(AgentForgeError):
                call(f"http://{OUTSIDE}:{sides.port}", tmp_path / "data")
            assert sides.outside.seen, name
            attempts, held = attempts + 1, held + (not sides.inside.seen)
            sides.outside.seen.clear()
            sides.inside.seen.clear()
    report(10, "redirects by an endpoint of the user's, six clients", attempts, held)


# Schemas of foreign tools


def test_a_schema_cannot_make_us_fetch_something(sides: Sides) -> None:
    from jsonschema import Draft202012Validator

    url = f"http://{INSIDE}:{sides.port}/s.json"
    schemas: list[dict[str, Any]] = [
        {"properties": {"x": {"$ref": url}}},
        {"properties": {"x": {"$dynamicRef": url}}},
        {"$id": url, "properties": {"x": {"$ref": "other.json"}}},
        {"$schema": url, "properties": {"x": {"$ref": f"{url}#/$defs/a"}}},
    ]
    held = 0
    for schema in schemas:
        foreign = Tool("foreign", "", {"type": "object", **schema}, lambda x: x)
        with pytest.raises(AgentForgeError, match="which it does not contain"):
            asyncio.run(foreign.call({"x": 1}))
        shape = AnswerShape.of(schema)
        assert shape is not None
        with pytest.raises(AgentForgeError, match="which it does not contain"):
            shape.read('{"x": 1}')
        held += 2 * (not sides.inside.seen)
    warnings.simplefilter("ignore", DeprecationWarning)
    with pytest.raises(Exception, match=r"s\.json"):  # the control: it fetches, and what it gets is no schema
        Draft202012Validator(schemas[0]).is_valid({"x": 1})
    assert sides.inside.seen
    report(10, "$ref in the schema of a foreign tool or of an answer", 2 * len(schemas), held)
