"""A model behind a URL that speaks the OpenAI chat API: vLLM, SGLang, Ollama, llama.cpp, hosted models."""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agent_forge.errors import ModelError, UsageError
from agent_forge.inference.chat import ChatClient
from agent_forge.inference.client import Completion, Request
from agent_forge.inference.wire import DONE, Assembly, events, read_completion, server_message
from agent_forge.urls import without_credentials

if TYPE_CHECKING:
    import httpx

API_KEY = "AGENT_FORGE_API_KEY"
RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
MOST_BYTES = 64 << 20  # per answer
_OPENAI = "api.openai.com"


def key_for(base_url: str) -> str | None:
    """The API key for this host from the environment; OPENAI_API_KEY is sent to OpenAI's own host only."""
    with suppress(ValueError):  # not a URL: the connection reports that
        if urlsplit(base_url).hostname == _OPENAI and not os.environ.get(API_KEY):
            return os.environ.get("OPENAI_API_KEY") or None
    return os.environ.get(API_KEY) or None


class OpenAICompatible(ChatClient):
    """A chat model behind a URL.

    The key comes from the environment variable `api_key_env`: by default AGENT_FORGE_API_KEY, and for OpenAI's own
    host also OPENAI_API_KEY. It is sent as a bearer token and appears in no message, span or repr.

    `timeout_s` limits the wait for each piece of an answer, `connect_timeout_s` the wait for the connection. Failed
    connections and the statuses in RETRIED are retried up to `retries` times, after the delay in Retry-After, or else
    with exponential backoff from `backoff_s`. If a server demands more than `most_wait_s`, the call fails instead.
    """

    provider = "openai"
    public_prices = True

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key_env: str | None = None,
        timeout_s: float = 120.0,
        connect_timeout_s: float = 5.0,
        retries: int = 4,
        backoff_s: float = 0.5,
        most_wait_s: float = 60.0,
        stream_usage: bool = True,
        extra: Mapping[str, Any] | None = None,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        if not base_url.startswith(("http://", "https://")) or not model:
            raise UsageError(
                f"{without_credentials(base_url)!r} with model {model!r} is not a model",
                fix="Write http://host:port/v1#name",
            )
        self.base_url = base_url.rstrip("/")
        self.shown_url = without_credentials(self.base_url)  # in errors and wherever it is kept
        self.name = model
        self.timeout_s, self.connect_timeout_s = timeout_s, connect_timeout_s
        self.retries, self.backoff_s, self.most_wait_s = retries, backoff_s, most_wait_s
        self.stream_usage = stream_usage
        self.extra = dict(extra or {})
        self._api_key_env = api_key_env
        self._sleep = sleep
        self._random = random.Random()
        # One connection pool per event loop: a pool cannot outlive its loop.
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient]
        self._clients = weakref.WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"OpenAICompatible({self.shown_url!r}, {self.name!r})"

    async def aclose(self) -> None:
        """Closes the connections of the running event loop."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    async def answer(self, request: Request) -> Completion:
        """The whole answer. Raises ModelError."""
        async with self._open(self._body(request, stream=False)) as response:
            content = await self._read(response)
        try:
            document = json.loads(content)
        except ValueError as error:
            text = content[:200].decode("utf-8", errors="replace")
            raise ModelError(f"the answer is not JSON: {self._masked(text)!r}", where=self.shown_url) from error
        return read_completion(document, model=self.name, where=self.shown_url)

    async def pieces(self, request: Request) -> AsyncIterator[str | Completion]:
        """The text as it arrives, then the Completion. Raises ModelError; BrokenStream carries the partial text."""
        import httpx

        assembly, ended = Assembly(self.name, self.shown_url), False
        async with self._open(self._body(request, stream=True)) as response:
            try:
                async for data in events(self._bytes(response)):
                    if data.strip() == DONE:
                        ended = True
                        break
                    text = assembly.add(data)
                    if text:
                        yield text
            except httpx.TimeoutException as error:
                raise assembly.broken(f"the stream stalled for {self.timeout_s:g} s") from error
            except httpx.HTTPError as error:
                raise assembly.broken(f"the stream broke off: {error or type(error).__name__}") from error
        yield assembly.completion(ended=ended)

    def _body(self, request: Request, *, stream: bool) -> dict[str, Any]:
        body = {"model": self.name, **request.body, **self.extra}
        if request.may_call:
            # Servers that decode under the schema (vLLM, SGLang) could not write a call any more.
            body.pop("response_format", None)
        if not stream:
            return body
        usage = {"stream_options": {"include_usage": True}} if self.stream_usage else {}
        return {**body, "stream": True, **usage}

    async def _read(self, response: httpx.Response) -> bytes:
        import httpx

        try:
            return b"".join([piece async for piece in self._bytes(response)])
        except httpx.TimeoutException as error:
            raise self._timed_out() from error
        except httpx.HTTPError as error:
            raise ModelError(f"the answer broke off: {error or type(error).__name__}", where=self.shown_url) from error

    async def _bytes(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """The body as it arrives. `timeout_s` applies to each piece only, so an endless body must be cut off."""
        received = 0
        async for piece in response.aiter_bytes():
            received += len(piece)
            if received > MOST_BYTES:
                raise ModelError(f"the answer is larger than {MOST_BYTES >> 20} MiB", where=self.shown_url)
            yield piece

    def _timed_out(self) -> ModelError:
        return ModelError(f"no answer within {self.timeout_s:g} s", where=self.shown_url, fix="Increase timeout_s")

    @asynccontextmanager
    async def _open(self, body: dict[str, Any]) -> AsyncIterator[httpx.Response]:
        """A successful response whose body has not been read yet."""
        response = await self._send_with_retries(body)
        try:
            yield response
        finally:
            await response.aclose()

    async def _send_with_retries(self, body: dict[str, Any]) -> httpx.Response:
        for attempt in range(self.retries + 1):
            last = attempt == self.retries
            response = await self._send(body, last=last)
            if response is not None and response.is_success:
                return response
            wait = self.backoff_s * 2**attempt * self._random.uniform(0.5, 1.0)
            if response is not None:
                wait = await self._retry_delay(response, wait, last=last)
            await self._sleep(min(wait, self.most_wait_s))
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _send(self, body: dict[str, Any], *, last: bool) -> httpx.Response | None:
        """The response, or None if the connection failed and may be retried."""
        import httpx

        client = self._client()
        url = f"{self.base_url}/chat/completions"
        try:
            headers = {"authorization": f"Bearer {key}"} if (key := self._key()) else {}
            request = client.build_request("POST", url, json=body, headers=headers)
            return await client.send(request, stream=True)
        except (httpx.ReadTimeout, httpx.WriteTimeout) as error:
            raise self._timed_out() from error
        except httpx.HTTPError as error:
            if not last:
                return None
            raise ModelError(
                f"the model cannot be reached: {error or type(error).__name__}",
                where=self.shown_url,
                fix="Check that the server is running and that the URL is right",
            ) from error
        except (httpx.InvalidURL, UnicodeError) as error:
            raise UsageError(f"not a URL: {error}", where=self.shown_url) from error

    async def _retry_delay(self, response: httpx.Response, wait: float, *, last: bool) -> float:
        """Seconds to wait before the next attempt. Raises ModelError if the refusal is final."""
        try:
            content = await self._read(response)
        finally:
            await response.aclose()
        text = content[:2000].decode("utf-8", errors="replace").strip()
        with suppress(ValueError):
            text = server_message(json.loads(content)) or text
        message = self._masked(text[:500] or response.reason_phrase or "no reason given")
        demanded = retry_after(response.headers, time.time())
        patient = demanded is None or demanded <= self.most_wait_s
        if response.status_code in RETRIED and not last and patient:
            return wait if demanded is None else demanded
        fix = None
        if response.status_code in (401, 403):
            fix = f"Set the environment variable {self._api_key_env or API_KEY}"
        elif not patient:
            fix = f"The server demands a wait of {demanded:.0f} s; most_wait_s={self.most_wait_s:g} allows less"
        raise ModelError(f"status {response.status_code}: {message}", where=self.shown_url, fix=fix)

    def _client(self) -> httpx.AsyncClient:
        import httpx

        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            timeout = httpx.Timeout(self.timeout_s, connect=self.connect_timeout_s)
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
            self._clients[loop] = httpx.AsyncClient(timeout=timeout, limits=limits)
        return self._clients[loop]

    def _key(self) -> str | None:
        return key_for(self.base_url) if self._api_key_env is None else os.environ.get(self._api_key_env)

    def _masked(self, text: str) -> str:
        """The text without the key, which some servers echo when they reject it."""
        key = self._key()
        return text.replace(key, "***") if key else text


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """The delay that a server demands, in seconds: Retry-After in seconds or as a date, or retry-after-ms.

    >>> retry_after({"retry-after": "7"}, 0), retry_after({"retry-after": "Thu, 01 Jan 1970 00:00:09 GMT"}, 4)
    (7.0, 5.0)
    """
    for name, scale in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        with suppress(ValueError):
            seconds = float(value) / scale
            return max(0.0, seconds) if math.isfinite(seconds) else None
        with suppress(ValueError, TypeError):
            return max(0.0, parsedate_to_datetime(value).timestamp() - now)
    return None
