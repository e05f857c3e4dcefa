"""Fetches a page: only from allowed hosts on the public internet, with limits on size and time."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_forge._version import __version__
from agent_forge.agents.tools.addresses import AddressRefused, AllowList, Private, Resolve, resolve, safe_address
from agent_forge.agents.tools.tool import Tool, tool
from agent_forge.errors import ToolError

if TYPE_CHECKING:
    import httpx

_TEXTUAL = re.compile(
    r"text/|application/(?:json|xml|xhtml\+xml|yaml|x-yaml|javascript|x-ndjson)$|[\w./-]+\+(?:json|xml)$"
)
_REDIRECTS = (301, 302, 303, 307, 308)
_PORTS = {"http": 80, "https": 443}
MOST_URL = 2048


@dataclass(frozen=True, slots=True)
class Fetcher:
    """The settings of a fetch tool."""

    allow: AllowList
    private: Private = False
    most_bytes: int = 1_000_000
    timeout_s: float = 15.0
    most_redirects: int = 5
    verify: ssl.SSLContext | None = None
    resolver: Resolve = resolve

    async def fetch(self, url: str) -> dict[str, Any]:
        """The page, after redirects. Raises ToolError, and AddressRefused for a URL that is not allowed."""
        try:
            return await asyncio.wait_for(self._follow(url), self.timeout_s)
        except asyncio.TimeoutError as error:
            raise ToolError(f"no answer within {self.timeout_s:g} s", where=url[:200]) from error

    async def _follow(self, url: str) -> dict[str, Any]:
        import httpx

        verify: ssl.SSLContext | bool = self.verify or True
        # trust_env=False: a proxy would resolve the name again, bypassing the check
        async with httpx.AsyncClient(trust_env=False, verify=verify, timeout=self.timeout_s) as client:
            for _ in range(self.most_redirects + 1):
                answer = await self._request(client, url)
                if "redirect" not in answer:
                    return answer
                url = answer["redirect"]
        raise ToolError(f"more than {self.most_redirects} redirects", where=url[:200])

    async def _request(self, client: httpx.AsyncClient, url: str) -> dict[str, Any]:
        """One request to the checked address: the page, or the redirect."""
        import httpx

        parsed = check_url(url)
        host, port = parsed.raw_host.decode("ascii").lower().rstrip("."), parsed.port or _PORTS[parsed.scheme]
        if not self.allow.allows(host, port):
            raise AddressRefused(f"the host {host!r} (port {port}) is not allowed", where=url[:200])
        address = await safe_address(host, port, private=self.private, resolver=self.resolver)
        headers = {"host": parsed.netloc.decode("ascii"), "accept-encoding": "identity", "user-agent": _AGENT}
        pinned = parsed.copy_with(host=address)
        request = client.build_request("GET", pinned, headers=headers, extensions={"sni_hostname": host})
        try:
            response = await client.send(request, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL) as error:  # the second for a redirect to what is not a URL
            raise ToolError(f"the request failed: {error or type(error).__name__}", where=url[:200]) from error
        try:
            return await self._answer(response, parsed)
        except httpx.HTTPError as error:
            raise ToolError(f"the answer broke off: {error or type(error).__name__}", where=url[:200]) from error
        finally:
            await response.aclose()

    async def _answer(self, response: httpx.Response, url: httpx.URL) -> dict[str, Any]:
        if response.status_code in _REDIRECTS and "location" in response.headers:
            return {"redirect": _target(url, response.headers["location"])}
        kind = response.headers.get("content-type", "text/plain").partition(";")[0].strip().lower()
        if not _TEXTUAL.match(kind):
            raise ToolError(f"the content is {kind!r}, not text", where=str(url)[:200])
        if response.headers.get("content-encoding", "identity") != "identity":
            raise ToolError("the content is compressed although no compression was requested", where=str(url)[:200])
        content = await self._content(response, url)
        text = _decoded(content, response.charset_encoding or "utf-8")
        return {"url": str(url), "status": response.status_code, "content_type": kind, "text": text}

    async def _content(self, response: httpx.Response, url: httpx.URL) -> bytes:
        """The body, up to the size limit. A content-length above the limit is refused without reading."""
        announced = response.headers.get("content-length", "")
        too_large = ToolError(f"the content is larger than {self.most_bytes:,} bytes", where=str(url)[:200])
        if announced.isdigit() and int(announced) > self.most_bytes:
            raise too_large
        content = bytearray()
        async for chunk in response.aiter_raw():
            content += chunk
            if len(content) > self.most_bytes:
                raise too_large
        return bytes(content)


_AGENT = f"agent-forge/{__version__}"


def check_url(url: str) -> httpx.URL:
    """The parsed URL. Raises AddressRefused unless it is an http or https URL with a host and without credentials."""
    import httpx

    if len(url) > MOST_URL:
        raise AddressRefused(f"the URL has {len(url)} characters, the limit is {MOST_URL}")
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, UnicodeError, ValueError) as error:
        raise AddressRefused(f"not a URL: {error}", where=url[:200]) from error
    if parsed.scheme not in _PORTS:
        raise AddressRefused(f"only http and https are supported, not {parsed.scheme or 'a path'!r}", where=url[:200])
    if not parsed.host:
        raise AddressRefused("the URL has no host", where=url[:200])
    if parsed.userinfo:
        raise AddressRefused("the URL contains a user name", where=parsed.host)
    return parsed.copy_with(fragment=None)


def _target(url: httpx.URL, location: str) -> str:
    target = url.join(location)  # httpx has already refused a location that is not a URL
    if url.scheme == "https" and target.scheme == "http":
        raise AddressRefused("redirected from https to http", where=str(url)[:200])
    return str(target)


def _decoded(content: bytes, charset: str) -> str:
    try:
        return content.decode(charset, errors="replace")
    except (LookupError, ValueError):  # an unknown charset, or an invalid name
        return content.decode("utf-8", errors="replace")


def http_fetch(
    allow: Iterable[str],
    *,
    private: Private = False,
    most_bytes: int = 1_000_000,
    timeout_s: float = 15.0,
    most_redirects: int = 5,
    verify: ssl.SSLContext | None = None,
    resolver: Resolve = resolve,
    name: str = "fetch",
) -> Tool:
    """A tool that fetches text pages from the hosts in `allow` (see AllowList).

    Every address and every redirect is checked; private, loopback and link-local addresses are refused unless
    `private` is True or names their network ("10.0.0.0/8"). `timeout_s` limits the whole fetch. Proxy settings in the
    environment are ignored.
    """
    fetcher = Fetcher(AllowList.of(allow), private, most_bytes, timeout_s, most_redirects, verify, resolver)

    async def fetch(url: str) -> dict[str, Any]:
        """Fetches a text page from the web: its final address, status, content type and text.

        Args:
            url: an http or https URL
        """
        return await fetcher.fetch(url)

    return tool(name=name)(fetch)
