"""Access control: who may send requests, from where, and how often, checked before a request reaches a route.

The way in for others is a browser: any web page can make it send requests to 127.0.0.1. So the name in the Host header
must be ours (after DNS rebinding, a page still sends its own name), and an Origin must be ours or allowed.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_forge.refusal import Refusal
from agent_forge.server.responses import refusal_response
from agent_forge.server.settings import ServerSettings, is_loopback

COOKIE = "agent_forge_token"
OPEN = frozenset(("/healthz", "/readyz"))  # need no token: they reveal nothing
CLIENTS = 10_000  # addresses whose rate is remembered
FAILURES_PER_MINUTE = 20  # wrong tokens from one address

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """ASGI middleware: refuses requests that may not pass, and adds security headers to every response."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self.app = app
        self.settings = settings
        self._names = {name.lower() for name in settings.allowed_hosts} | _own_names(settings)
        self._origins = {origin.rstrip("/").lower() for origin in settings.origins}
        self._rate = Buckets(settings.rate, settings.burst)
        self._failures = Buckets(FAILURES_PER_MINUTE / 60, FAILURES_PER_MINUTE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        try:
            early = self._check(scope, headers, origin)
        except Refusal as refusal:
            early, origin = refusal_response(refusal), None
        handler = early if early is not None else self.app
        await handler(scope, receive, _with_headers(send, origin if origin in self._origins else None))

    def _check(self, scope: Scope, headers: Headers, origin: str | None) -> Response | None:
        """A response that needs no route, or None to let the request through. Raises Refusal."""
        client = (scope.get("client") or ("local", 0))[0]
        self._rate.take(client)
        self._check_host(headers)
        self._check_origin(headers, origin)
        if scope["method"] == "OPTIONS" and origin is not None and "access-control-request-method" in headers:
            return Response(status_code=204, headers=_PREFLIGHT)
        return self._check_token(scope, headers, client)

    def _check_host(self, headers: Headers) -> None:
        hosts = headers.getlist("host")
        name = host_name(hosts[0]) if len(hosts) == 1 else ""
        if name in self._names or (not self.settings.loopback and _is_address(name)):
            return
        if self.settings.loopback and is_loopback(name):
            return
        raise Refusal(
            403,
            f"this server is not called {name!r}",
            code="host_not_allowed",
            fix="If that is its name, start it with --allow-host NAME",
        )

    def _check_origin(self, headers: Headers, origin: str | None) -> None:
        if origin is None or origin.lower() in self._origins:
            return
        try:
            parts = urlsplit(origin)
        except ValueError as error:
            raise Refusal(400, f"the Origin {origin[:200]!r} is not a URL", code="invalid_origin") from error
        if parts.netloc and parts.netloc.lower() == headers.get("host", "").lower():
            return
        raise Refusal(
            403,
            f"pages of {origin[:200]!r} may not call this server",
            code="origin_not_allowed",
            fix="To allow it, start the server with --allow-origin ORIGIN",
        )

    def _check_token(self, scope: Scope, headers: Headers, client: str) -> Response | None:
        token = self.settings.token
        if token is None or scope["path"] in OPEN:
            return None
        query = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [None])[0]
        sent = _bearer(headers) or _cookie(headers) or query
        if sent is not None and same(sent, token):
            return _signed_in(scope, token) if sent is query and scope["method"] == "GET" else None
        if sent is not None:
            self._failures.take(client)
        raise Refusal(
            401,
            "this server requires a token" if sent is None else "the token is wrong",
            code="invalid_api_key",
            fix="Send `Authorization: Bearer TOKEN`; the server printed the token when it started",
            headers={"WWW-Authenticate": "Bearer"},
        )


@dataclass(slots=True)
class Buckets:
    """A token bucket per client: `rate` requests per second in the long run, `burst` at once.

    >>> moments = iter((0.0, 0.0, 0.0, 2.0))
    >>> buckets = Buckets(rate=0.5, burst=2, clock=lambda: next(moments))
    >>> buckets.take("a"), buckets.take("a")
    (None, None)
    >>> buckets.take("a")
    Traceback (most recent call last):
    agent_forge.refusal.Refusal: too many requests. Wait 2 s.
    >>> buckets.take("a")
    """

    rate: float
    burst: int
    clock: Callable[[], float] = time.monotonic
    _left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def take(self, client: str) -> None:
        """Takes a token for a request. Raises Refusal (429) if the bucket of the client is empty."""
        now = self.clock()
        left, before = self._left.get(client, (float(self.burst), now))
        left = min(float(self.burst), left + (now - before) * self.rate)
        allowed = left >= 1
        self._left[client] = (left - 1 if allowed else left, now)
        self._left.move_to_end(client)
        if len(self._left) > CLIENTS:
            self._left.popitem(last=False)
        if not allowed:
            wait = max(1, round((1 - left) / self.rate))
            raise Refusal(
                429, "too many requests", code="rate_limited", fix=f"Wait {wait} s", headers={"Retry-After": str(wait)}
            )


_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST, DELETE",
    "Access-Control-Allow-Headers": "authorization, content-type, content-encoding, traceparent",
    "Access-Control-Max-Age": "600",
}


def _with_headers(send: Send, origin: str | None) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            if origin is not None:
                headers["Access-Control-Allow-Origin"] = origin
                headers.add_vary_header("Origin")
        await send(message)

    return guarded


def same(sent: str, token: str) -> bool:
    """Compares in constant time, whatever characters were sent."""
    return hmac.compare_digest(sent.encode("utf-8", "surrogateescape"), token.encode())


def host_name(header: str) -> str:
    """The name in a Host header, in lower case and without the port.

    >>> host_name("LOCALHOST:8321"), host_name("[::1]:80"), host_name("10.0.0.1")
    ('localhost', '::1', '10.0.0.1')
    """
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].rstrip(".").lower()


def _own_names(settings: ServerSettings) -> set[str]:
    if settings.loopback:
        return set()
    return {settings.host.lower(), socket.gethostname().lower(), "localhost"}


def _is_address(name: str) -> bool:
    """Addresses are safe: unlike a name, an address cannot be rebound."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _bearer(headers: Headers) -> str | None:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if scheme.lower() == "bearer" and value.strip() else headers.get("x-api-key")


def _cookie(headers: Headers) -> str | None:
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return cookie.value if cookie is not None else None


def _signed_in(scope: Scope, token: str) -> Response:
    """After a link with the token was followed: a cookie replaces it, and it vanishes from the address bar."""
    response = RedirectResponse("/" + scope["path"].lstrip("/\\"), 303)
    response.set_cookie(COOKIE, token, httponly=True, samesite="strict", path="/")
    return response
