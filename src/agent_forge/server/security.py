"""Who may ask, from where, how often: checked before a request reaches a route.

A browser is the way in for others: any web page can make it send requests to 127.0.0.1. So the name in the Host header
must be ours (a page whose name was rebound to our address still sends its own name), and an Origin must be ours or
allowed.
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

from agent_forge.server.answers import Refused
from agent_forge.server.settings import ServerSettings, is_loopback

COOKIE = "agent_forge_token"
OPEN = frozenset(("/healthz", "/readyz"))  # need no token: they tell nothing
CLIENTS = 10_000  # addresses whose rate is remembered
FAILURES_A_MINUTE = 20  # wrong tokens from one address

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
    """ASGI middleware: refuses what may not pass, and puts the security headers on every answer."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self.app = app
        self.settings = settings
        self._names = {name.lower() for name in settings.allowed_hosts} | _own_names(settings)
        self._origins = {origin.rstrip("/").lower() for origin in settings.origins}
        self._rate = Buckets(settings.rate, settings.burst)
        self._failures = Buckets(FAILURES_A_MINUTE / 60, FAILURES_A_MINUTE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        try:
            early = self._check(scope, headers, origin)
        except Refused as refused:
            early, origin = refused.answer, None
        answer = early if early is not None else self.app
        await answer(scope, receive, _with_headers(send, origin if origin in self._origins else None))

    def _check(self, scope: Scope, headers: Headers, origin: str | None) -> Response | None:
        """An answer that spares the routes the request; None lets it through. Raises Refused."""
        client = (scope.get("client") or ("local", 0))[0]
        self._rate.take(client)
        self._check_host(headers)
        self._check_origin(headers, origin)
        if scope["method"] == "OPTIONS" and origin is not None and "access-control-request-method" in headers:
            return Response(status_code=204, headers=_PREFLIGHT)
        return self._check_token(scope, headers, client)

    def _check_host(self, headers: Headers) -> None:
        given = headers.getlist("host")
        name = host_name(given[0]) if len(given) == 1 else ""
        if name in self._names or (not self.settings.loopback and _is_address(name)):
            return
        if self.settings.loopback and is_loopback(name):
            return
        raise Refused(
            403,
            f"this server does not answer to the name {name!r}",
            code="host_not_allowed",
            fix="start it with --allow-host NAME if that is its name",
        )

    def _check_origin(self, headers: Headers, origin: str | None) -> None:
        if origin is None or origin.lower() in self._origins:
            return
        parts = urlsplit(origin)
        if parts.netloc and parts.netloc.lower() == headers.get("host", "").lower():
            return
        raise Refused(
            403,
            f"a page of {origin[:200]!r} may not call this server",
            code="origin_not_allowed",
            fix="start it with --allow-origin ORIGIN if it may",
        )

    def _check_token(self, scope: Scope, headers: Headers, client: str) -> Response | None:
        token = self.settings.token
        if token is None or scope["path"] in OPEN:
            return None
        query = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [None])[0]
        given = _bearer(headers) or _cookie(headers) or query
        if given is not None and same(given, token):
            return _signed_in(scope, token) if given is query and scope["method"] == "GET" else None
        if given is not None:
            self._failures.take(client)
        raise Refused(
            401,
            "this server asks for its token" if given is None else "the token is wrong",
            code="invalid_api_key",
            fix="send `Authorization: Bearer TOKEN`; the server printed it when it started",
            headers={"WWW-Authenticate": "Bearer"},
        )


@dataclass(slots=True)
class Buckets:
    """A token bucket for each client: `rate` requests a second in the long run, `burst` at once.

    >>> moments = iter((0.0, 0.0, 0.0, 2.0))
    >>> buckets = Buckets(rate=0.5, burst=2, clock=lambda: next(moments))
    >>> buckets.take("a"), buckets.take("a")
    (None, None)
    >>> buckets.take("a")
    Traceback (most recent call last):
    agent_forge.server.answers.Refused: too many requests. Wait 2 s.
    >>> buckets.take("a")
    """

    rate: float
    burst: int
    clock: Callable[[], float] = time.monotonic
    _left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def take(self, client: str) -> None:
        """Counts a request. Raises Refused (429) when the client's bucket is empty."""
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
            raise Refused(
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


def same(given: str, token: str) -> bool:
    """Compares in constant time, whatever characters were sent."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode())


def host_name(header: str) -> str:
    """The name in a Host header, without the port and in small letters.

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
    """An address cannot be rebound to another one, so it is no danger."""
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
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return found.value if found is not None else None


def _signed_in(scope: Scope, token: str) -> Response:
    """A person followed the link with the token: a cookie takes its place, and the address bar is rid of it."""
    answer = RedirectResponse("/" + scope["path"].lstrip("/\\"), 303)
    answer.set_cookie(COOKIE, token, httponly=True, samesite="strict", path="/")
    return answer
