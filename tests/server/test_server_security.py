"""Who may ask, from where, how often, how much and how slowly: each wrong way in gets its clear answer."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from agent_forge.errors import UsageError
from agent_forge.server.security import COOKIE, Buckets, host_name, same
from agent_forge.server.settings import MIB, ServerSettings, is_loopback

TOKEN = "correct-horse-battery-staple"


def raw(port: int, data: bytes, *, slowly: bool = False) -> bytes:
    """Sends bytes as they are, and gives what comes back until the server closes or stops sending."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        if slowly:
            for byte in data:
                try:
                    connection.sendall(bytes([byte]))
                except OSError:
                    break
                time.sleep(0.05)
        else:
            connection.sendall(data)
        answer = b""
        try:
            while chunk := connection.recv(65536):
                answer += chunk
        except OSError:
            pass
        return answer


def get(port: int, path: str, *headers: str) -> tuple[int, bytes]:
    """A GET with exactly this path."""
    lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close", *headers, "", ""]
    answer = raw(port, "\r\n".join(lines).encode())
    return int(answer.split(b" ", 2)[1]), answer.partition(b"\r\n\r\n")[2]


# Tokens


def test_beyond_loopback_there_must_be_a_token() -> None:
    with pytest.raises(UsageError, match="needs a token"):
        ServerSettings(host="0.0.0.0")
    assert not ServerSettings(host="0.0.0.0", token=TOKEN).loopback


@pytest.fixture(scope="module")
def guarded(start_server: Callable[..., Any]) -> Any:
    """A server that can be reached from elsewhere."""
    return start_server(host="0.0.0.0", token=TOKEN, origins=("https://app.example",), allowed_hosts=("forge.example",))


def test_the_token_opens_by_header_and_a_wrong_one_does_not(guarded: Any) -> None:
    with guarded.client() as client:
        assert client.get("/v1/models", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
        assert client.get("/v1/models", headers={"X-Api-Key": TOKEN}).status_code == 200
        for wrong in (f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer", f"Bearer {TOKEN[:-1]}"):
            assert client.get("/v1/models", headers={"Authorization": wrong}).status_code == 401
        assert client.get("/v1/models", headers=[(b"authorization", b"Bearer \xff\xfe")]).status_code == 401


def test_a_link_with_the_token_becomes_a_cookie(guarded: Any) -> None:
    with guarded.client() as client:
        first = client.get(f"/v1/models?token={TOKEN}")
        assert first.status_code == 303
        assert first.headers["location"] == "/v1/models"
        cookie = first.headers["set-cookie"]
        assert COOKIE in cookie
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert client.get("/v1/models").status_code == 200  # httpx sends the cookie back
    away = raw(
        guarded.port,
        f"GET //evil.example?token={TOKEN} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode(),
    )
    assert b"location: /evil.example\r\n" in away


def test_guessing_is_slowed_down(start_server: Callable[..., Any]) -> None:
    server = start_server(token=TOKEN)
    with server.client() as client:
        codes = [client.get("/v1/runs", headers={"X-Api-Key": f"guess {n}"}).status_code for n in range(25)]
    assert codes[0] == 401
    assert codes[-1] == 429


def test_comparison_takes_any_text() -> None:
    assert same(TOKEN, TOKEN)
    assert not same("ü\udcff", TOKEN)


def test_health_needs_no_token(guarded: Any) -> None:
    with guarded.client() as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/readyz").status_code == 200


# Names and origins


@pytest.mark.parametrize(
    "name", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "192.168.0.7", ""]
)
def test_a_foreign_host_is_refused(plain: Any, name: str) -> None:
    with plain.client() as client:
        answer = client.get("/healthz", headers={"Host": name})
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "host_not_allowed"
    assert "--allow-host" in answer.json()["error"]["message"]


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST:9", "127.0.0.1:80", "[::1]:8321", "localhost."])
def test_our_own_names_are_taken(plain: Any, name: str) -> None:
    with plain.client() as client:
        assert client.get("/healthz", headers={"Host": name}).status_code == 200


def test_two_hosts_are_none(plain: Any) -> None:
    answer = raw(
        plain.port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
    )
    assert answer.split(b" ", 2)[1] in (b"400", b"403")


def test_beyond_loopback_addresses_and_allowed_names_are_taken(guarded: Any) -> None:
    key = {"X-Api-Key": TOKEN}
    with guarded.client() as client:
        assert client.get("/v1/models", headers={"Host": "10.1.2.3:8321", **key}).status_code == 200
        assert client.get("/v1/models", headers={"Host": "forge.example", **key}).status_code == 200
        assert client.get("/v1/models", headers={"Host": "evil.example", **key}).status_code == 403


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "//["])
def test_an_origin_that_is_no_url_is_refused(plain: Any, origin: str) -> None:
    with plain.client() as client:
        answer = client.get("/v1/models", headers={"Origin": origin})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_origin"


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1.evil.example", "http://localhost:1"]
)
def test_a_foreign_page_may_not_call(plain: Any, origin: str) -> None:
    with plain.client() as client:
        for method in ("GET", "POST", "OPTIONS"):
            answer = client.request(method, "/v1/models", headers={"Origin": origin})
            assert answer.status_code == 403
            assert "access-control-allow-origin" not in answer.headers


def test_our_own_pages_and_allowed_ones_may(plain: Any, guarded: Any) -> None:
    with plain.client() as client:
        assert client.get("/v1/models", headers={"Origin": plain.url}).status_code == 200
    allowed = {"Origin": "https://app.example", "X-Api-Key": TOKEN}
    with guarded.client() as client:
        answer = client.get("/v1/models", headers=allowed)
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert "Origin" in answer.headers["vary"]
        ask = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
        preflight = client.options("/v1/chat/completions", headers=ask)  # browsers send no token with it
        assert preflight.status_code == 204
        assert "POST" in preflight.headers["access-control-allow-methods"]


def test_every_answer_has_the_security_headers(plain: Any) -> None:
    with plain.client() as client:
        for answer in (client.get("/healthz"), client.get("/nowhere"), client.get("/", headers={"Host": "evil"})):
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy or "default-src 'self'" in policy
            assert "unsafe-eval" not in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["x-frame-options"] == "DENY"


def test_names_in_host_headers() -> None:
    assert [host_name(text) for text in ("[::1]:80", "a.b:1", "A.B.")] == ["::1", "a.b", "a.b"]
    assert is_loopback("127.9.9.9")
    assert is_loopback("[::1]")
    assert not is_loopback("0.0.0.0")


# Paths

SECRET = "root:"
PATHS = [
    "/../../../../etc/passwd",
    "/static/../../../../../../etc/passwd",
    "/static/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
    "/static/..%2f..%2f..%2f..%2fetc%2fpasswd",
    "/static//etc/passwd",
    "/static/%00/etc/passwd",
    "/v1/models/..%2f..%2f..%2fetc%2fpasswd",
    "/v1/models/%2fetc%2fpasswd",
    "/v1/models/~root",
    "/v1/models/$HOME",
    "/v1/runs/..%2f..%2fetc%2fpasswd",
    "/v1/runs/%00",
    "/v1/runs/..%5c..%5cetc%5cpasswd/events",
    "/runs/..%2f..%2f..%2fetc%2fpasswd",
    "/traces/..%2f..%2f..%2fetc%2fpasswd",
    "file:///etc/passwd",
]


@pytest.mark.parametrize("path", PATHS)
def test_no_path_leads_out(plain: Any, path: str) -> None:
    status, body = get(plain.port, path)
    assert status in (303, 400, 404)
    assert SECRET.encode() not in body


def test_a_model_is_never_a_path(live: Any, tiny_path: Any) -> None:
    for name in (str(tiny_path), "../tiny", f"{tiny_path}/", "smollm2"):
        with live.client() as client:
            body = {"model": name, "messages": [{"role": "user", "content": "hi"}]}
            assert client.post("/v1/chat/completions", json=body).status_code == 404


# Sizes and speeds


@pytest.fixture(scope="module")
def small(start_server: Callable[..., Any]) -> Any:
    """A server with little room."""
    return start_server(max_body=10_000, max_unpacked=20_000)


@pytest.fixture(scope="module")
def impatient(start_server: Callable[..., Any]) -> Any:
    """A server with little patience: on a busy machine it may give up an honest client, too."""
    return start_server(body_timeout_s=0.5, header_timeout_s=0.5)


def test_a_body_that_says_it_is_too_large_is_refused_unread(small: Any) -> None:
    head = "POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n"
    answer = raw(small.port, head.encode())
    assert b" 413 " in answer.splitlines()[0]
    assert b"body_too_large" in answer


def test_a_body_that_turns_out_too_large_is_refused(small: Any) -> None:
    def parts() -> Any:
        for _ in range(20):
            yield b"x" * 1000

    with small.client() as client:
        answer = client.post("/v1/runs", content=parts(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert "0.00953674 MiB" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/runs", "/v1/traces", "/v1/chat/completions"])
def test_a_body_that_does_not_come_is_given_up(impatient: Any, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    answer = raw(impatient.port, head.encode() + b"{")
    assert b" 408 " in answer.splitlines()[0]
    assert b"0.5 s" in answer


def test_a_head_that_does_not_come_is_given_up(impatient: Any) -> None:
    answer = raw(impatient.port, b"GET /healthz HTTP/1.1\r\nHost: localh", slowly=True)
    assert b" 408 " in answer.splitlines()[0]
    assert b"slow_client" in answer


def test_a_head_that_does_not_come_is_given_up_on_a_used_connection_too(impatient: Any) -> None:
    with socket.create_connection(("127.0.0.1", impatient.port), timeout=20) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in connection.recv(65536).splitlines()[0]
        for _ in range(100):  # 5 s: without a limit the connection stays open
            try:
                connection.sendall(b"G")
            except OSError:
                break
            time.sleep(0.05)
        else:
            pytest.fail("a second head may take as long as it likes")
        assert b"HTTP/1.1 408 " in connection.recv(65536)


def test_unfinished_bodies_count_together(start_server: Callable[..., Any]) -> None:
    """Each is below the limit for one body; together they would fill the memory. When they are gone, others pass."""
    server = start_server(max_body=40_000, bodies_in_memory=100_000)
    head = b"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    uploads = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(10)]
    try:
        refused = 0
        for upload in uploads:
            upload.sendall(head + b"Content-Length: 40000\r\n\r\n" + b" " * 30_000)
            time.sleep(0.05)
        for upload in uploads:
            upload.settimeout(0.5)
            with contextlib.suppress(TimeoutError):
                refused += upload.recv(65536).startswith(b"HTTP/1.1 429 ")
        assert 7 <= refused < 10
        with server.client() as client:
            assert client.get("/healthz").status_code == 200  # nothing is needed for it
            full = client.post("/v1/runs", json={"request": "x" * 20_000})
            assert full.status_code == 429
            assert full.headers["retry-after"] == "1"
    finally:
        for upload in uploads:
            upload.close()
    with server.client() as client:
        codes = []
        while not codes or (codes[-1] == 429 and len(codes) < 200):
            codes.append(client.post("/v1/traces", json={"resourceSpans": []}).status_code)
            time.sleep(0.02)
        assert codes[-1] == 200


def test_a_gzip_bomb_is_refused_before_it_is_unpacked(small: Any) -> None:
    bomb = gzip.compress(b"\0" * (5 * MIB))
    assert len(bomb) < 10_000
    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
    with small.client() as client:
        answer = client.post("/v1/traces", content=bomb, headers=headers)
    assert answer.status_code == 413
    assert b"unpacks to more than" in answer.content


def test_a_client_that_asks_too_often_waits(start_server: Callable[..., Any]) -> None:
    server = start_server(rate=0.5, burst=5)
    with server.client() as client:
        answers = [client.get("/healthz") for _ in range(8)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(refused) >= 3
    assert int(refused[0].headers["retry-after"]) >= 1
    assert refused[0].json()["error"]["code"] == "rate_limited"


def test_the_memory_of_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_forge.server.security.CLIENTS", 3)
    buckets = Buckets(rate=1, burst=1)
    for client in "abcdef":
        buckets.take(client)
    assert len(buckets._left) == 3


# Bodies


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b'{"request": NaN}', "invalid_json"),
        (b'{"request": "\\ud800"}', "invalid_json"),
        (b"\xff\xfe{}", "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b'{"request": 1' + b"0" * 10_000 + b"}", "invalid_json"),
        (b"[]", "invalid_body"),
        (b"{}", "invalid_body"),
        (b'{"request": "x", "plan": "y"}', "invalid_body"),
        (b'{"request": "x", "colour": 1}', "invalid_body"),
        (b'{"request": "x", "concurrency": 0}', "invalid_body"),
        (b'{"plan": {"tasks": [{"id": "a", "depends_on": ["a"]}]}}', "invalid_plan"),
        (b'{"plan": "<graph"}', "invalid_plan"),
    ],
)
def test_a_bad_body_gets_a_sentence(plain: Any, body: bytes, code: str) -> None:
    with plain.client() as client:
        answer = client.post("/v1/runs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == code
    assert error["type"] == "invalid_request_error"
    assert len(error["message"]) > 10


def test_a_body_of_another_type_is_refused(plain: Any) -> None:
    with plain.client() as client:
        assert client.post("/v1/runs", data={"request": "x"}).status_code == 415


def test_unknown_paths_and_methods_are_told_in_json(plain: Any) -> None:
    with plain.client() as client:
        assert client.get("/v1/nothing").json()["error"]["code"] == "not_found"
        answer = client.delete("/v1/models")
        assert answer.status_code == 405
        assert json.loads(answer.content)["error"]["code"] == "method_not_allowed"


def test_the_token_is_not_in_the_log(start_server: Callable[..., Any], capfd: pytest.CaptureFixture[str]) -> None:
    server = start_server(token=TOKEN, log_level="debug")
    with httpx.Client(base_url=server.url, trust_env=False) as client:
        client.get(f"/v1/models?token={TOKEN}")
        client.get("/v1/models", headers={"Authorization": f"Bearer {TOKEN}"})
    written = capfd.readouterr().err
    assert "/v1/models" in written
    assert TOKEN not in written
