"""The fetch tool against a real server on this machine, and everything it must not reach."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agent_forge.agents.tools.addresses import AddressRefused, AllowList, resolve
from agent_forge.agents.tools.http import check_url, http_fetch
from agent_forge.errors import ToolError


class Pages(BaseHTTPRequestHandler):
    seen: ClassVar[list[tuple[str, str | None]]] = []
    release = threading.Event()

    def do_GET(self) -> None:
        Pages.seen.append((self.path, self.headers["Host"]))
        name, _, argument = self.path.partition("?")
        getattr(self, f"page_{name.strip('/')}", self.page_missing)(argument)

    def answer(self, body: bytes, kind: str = "text/plain; charset=utf-8", status: int = 200, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def page_hello(self, _: str) -> None:
        self.answer("hällo".encode())

    def page_json(self, _: str) -> None:
        self.answer(b'{"a": 1}', "application/ld+json")

    def page_latin(self, _: str) -> None:
        self.answer("é".encode("latin-1"), "text/html; charset=latin-1")

    def page_nocharset(self, _: str) -> None:
        self.answer("é".encode(), "text/html; charset=zlib")

    def page_to(self, argument: str) -> None:
        self.answer(b"", status=302, Location=argument)

    def page_nolocation(self, _: str) -> None:
        self.answer(b"moved", status=302)

    def page_image(self, _: str) -> None:
        self.answer(b"\x89PNG", "image/png")

    def page_gzip(self, _: str) -> None:
        self.answer(b"\x1f\x8b", Content_Encoding="gzip")

    def page_announced(self, _: str) -> None:
        self.answer(b"", Content_Length="999999999")

    def page_endless(self, _: str) -> None:
        self.answer(b"")
        try:
            while not Pages.release.is_set():
                self.wfile.write(b"x" * 10_000)
        except OSError:
            pass

    def page_slow(self, _: str) -> None:
        Pages.release.wait(20)

    def page_short(self, _: str) -> None:
        self.answer(b"abc", Content_Length="100")

    def page_missing(self, _: str) -> None:
        self.answer(b"no such page", status=404)

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def serving(wrap: ssl.SSLContext | None = None) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    server.daemon_threads = True
    if wrap is not None:
        server.socket = wrap.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    Pages.release.clear()
    Pages.seen.clear()
    try:
        yield server.server_port
    finally:
        Pages.release.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def port() -> Iterator[int]:
    with serving() as number:
        yield number


def fetch(url: str, allow: list[str], **options: Any) -> Any:
    return asyncio.run(http_fetch(allow, **options).call({"url": url}))


def test_a_page(port: int) -> None:
    got = fetch(f"http://127.0.0.1:{port}/hello#part", [f"127.0.0.1:{port}"], private=True)
    assert got == {
        "url": f"http://127.0.0.1:{port}/hello",
        "status": 200,
        "content_type": "text/plain",
        "text": "hällo",
    }
    assert Pages.seen == [("/hello", f"127.0.0.1:{port}")]


@pytest.mark.parametrize(
    ("path", "kind", "text", "status"),
    [
        ("json", "application/ld+json", '{"a": 1}', 200),
        ("latin", "text/html", "é", 200),
        ("nocharset", "text/html", "é", 200),
        ("none", "text/plain", "no such page", 404),
        ("nolocation", "text/plain", "moved", 302),
    ],
)
def test_kinds_of_text(port: int, path: str, kind: str, text: str, status: int) -> None:
    got = fetch(f"http://127.0.0.1:{port}/{path}", [f"127.0.0.1:{port}"], private=True)
    assert (got["content_type"], got["text"], got["status"]) == (kind, text, status)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("image", "the content is 'image/png', not text"),
        ("gzip", "compressed"),
        ("announced", "larger than 1,000 bytes"),
        ("endless", "larger than 1,000 bytes"),
        ("slow", r"no answer within 0.3 s"),
        ("short", "broke off"),
        ("to?/to?/to?/hello", "more than 1 redirects"),
        ("to?http://a:b:c/", "Invalid URL in location"),
        ("to?file:///etc/passwd", "only http and https"),
    ],
)
def test_answers_that_are_refused(port: int, path: str, words: str) -> None:
    with pytest.raises(ToolError, match=words):
        fetch(
            f"http://127.0.0.1:{port}/{path}",
            [f"127.0.0.1:{port}"],
            private=True,
            most_bytes=1000,
            timeout_s=0.3 if path == "slow" else 20,
            most_redirects=1,
        )


def test_a_redirect_is_followed_and_checked(port: int) -> None:
    here = f"http://127.0.0.1:{port}"
    got = fetch(f"{here}/to?/hello", [f"127.0.0.1:{port}"], private=True)
    assert got["url"] == f"{here}/hello"
    Pages.seen.clear()
    with pytest.raises(AddressRefused, match=r"'localhost' \(port \d+\) is not allowed"):
        fetch(f"{here}/to?http://localhost:{port}/hello", [f"127.0.0.1:{port}"], private=True)
    assert len(Pages.seen) == 1


def test_unknown_hosts_and_no_addresses() -> None:
    async def nothing(host: str, number: int) -> list[str]:
        return []

    with pytest.raises(ToolError, match="cannot be resolved"):
        asyncio.run(resolve("no-such-host.invalid", 80))
    with pytest.raises(ToolError, match="has no address"):
        fetch("http://empty.test/", ["*"], resolver=nothing)


def test_a_dead_port() -> None:
    with serving() as number:
        pass
    with pytest.raises(ToolError, match="the request failed"):
        fetch(f"http://127.0.0.1:{number}/", [f"127.0.0.1:{number}"], private=True)


def test_allow_lists() -> None:
    hosts = AllowList.of(["Example.org.", "*.wiki.org", "api.test:8080", "[::1]:90", "::1"])
    assert hosts.allows("example.org", 443)
    assert hosts.allows("en.wiki.org", 80)
    assert hosts.allows("api.test", 8080)
    assert hosts.allows("::1", 90)
    assert hosts.allows("::1", 80)
    for host, number in [
        ("example.org", 8080),
        ("wiki.org", 80),
        ("xwiki.org", 80),
        ("api.test", 80),
        ("evil.com", 80),
    ]:
        assert not hosts.allows(host, number)
    for bad in ([], [""], ["http://example.org/"], ["a@b"]):
        with pytest.raises(ToolError):
            AllowList.of(bad)
    assert AllowList.of("example.org").entries == ("example.org",)


def test_urls_are_taken_apart() -> None:
    assert check_url("HTTP://Example.org:8080/a?b#c").host == "example.org"
    assert check_url("http://bücher.example/").raw_host == b"xn--bcher-kva.example"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_tls_is_checked_against_the_name_although_the_address_is_pinned(tmp_path: Path) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", tmp_path / "key.pem", "-out",
         tmp_path / "cert.pem", "-days", "2", "-subj", "/CN=good.test", "-addext", "subjectAltName=DNS:good.test"],
        check=True, capture_output=True,
    )  # fmt: skip
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    trusting = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))

    async def here(host: str, number: int) -> list[str]:
        return ["127.0.0.1"]

    with serving(server) as port:
        options: dict[str, Any] = {"private": True, "resolver": here, "verify": trusting}
        assert fetch(f"https://good.test:{port}/hello", [f"*:{port}"], **options)["text"] == "hällo"
        with pytest.raises(ToolError, match=r"(?i)certificate|hostname"):
            fetch(f"https://bad.test:{port}/hello", [f"*:{port}"], **options)
        with pytest.raises(AddressRefused, match="from https to http"):
            fetch(f"https://good.test:{port}/to?http://good.test:{port}/", [f"*:{port}"], **options)
