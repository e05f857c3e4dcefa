"""The server as a process: uvicorn around the application."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from agent_forge.errors import UsageError
from agent_forge.server.app import create_app
from agent_forge.server.logs import make_log, take_over
from agent_forge.server.responses import error_document, json_response
from agent_forge.server.settings import ServerSettings
from agent_forge.server.sse import end_streams

LONGEST_HEAD = 64 * 1024


def serve(settings: ServerSettings, *, say: Callable[[str], None], show_token: bool = False) -> None:
    """Serves until interrupted. Raises UsageError if the address is not available."""
    listening = listen(settings)
    port = listening.getsockname()[1]
    server = Server(config(settings))
    url = f"http://{'[' + settings.host + ']' if ':' in settings.host else settings.host}:{port}"
    say(f"agent-forge is listening on {url} (stop with Ctrl-C)")
    if show_token:
        say(f"token, shown only once: {settings.token}\nopen {url}/?token={settings.token}")
    server.run(sockets=[listening])


class Server(uvicorn.Server):
    """uvicorn's server, which does not wait for endless streams when it shuts down."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        end_streams()
        await super().shutdown(sockets)


def config(settings: ServerSettings) -> uvicorn.Config:
    """The configuration of uvicorn."""

    class Protocol(HeaderTimeoutProtocol):
        seconds = settings.header_timeout_s

    take_over(make_log(settings.log_level))
    return uvicorn.Config(
        create_app(settings),
        http=Protocol,
        loop="asyncio",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=10,
        h11_max_incomplete_event_size=LONGEST_HEAD,
    )


def listen(settings: ServerSettings) -> socket.socket:
    """A socket on the address of the settings. Raises UsageError."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
    except OSError as error:
        listening.close()
        raise UsageError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}", fix="Try another --port or --host"
        ) from error
    listening.listen(1024)
    listening.set_inheritable(True)
    return listening


class HeaderTimeoutProtocol(H11Protocol):
    """uvicorn's protocol with a time limit for the head of every request: then it responds with 408 and closes the
    connection. Without it, a client that sends a byte per minute keeps its connection for ever."""

    seconds = 10.0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._deadline: asyncio.TimerHandle | None = self.loop.call_later(self.seconds, self._too_slow)

    def data_received(self, data: bytes) -> None:
        if self._deadline is None and self.cycle is not None and self.cycle.response_complete:
            self._deadline = self.loop.call_later(self.seconds, self._too_slow)  # another request has begun
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_deadline()
        super().connection_lost(exc)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            message = f"the head of the request did not arrive within {self.seconds:g} s"
            body = json_response(error_document(408, message, "slow_client")).body
            head = f"HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            self.transport.write(f"{head}Connection: close\r\n\r\n".encode() + bytes(body))
            self.transport.close()
