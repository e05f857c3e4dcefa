"""The settings of a server."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from agent_forge.errors import UsageError

MIB = 1 << 20
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The options of `agent-forge serve`, and limits. Everything has a safe default.

    >>> ServerSettings().loopback
    True
    >>> ServerSettings(host="0.0.0.0")
    Traceback (most recent call last):
    agent_forge.errors.UsageError: a server that listens on 0.0.0.0 needs a token. Add --token, or listen on 127.0.0.1.
    """

    host: str = "127.0.0.1"
    port: int = 8321
    home: str | None = None  # folder of traces, journals and models, or the URL of a trace store
    events: str | None = None  # URL of a Redis server that connects several servers; None: the PostgreSQL store does
    models: tuple[str, ...] = ()  # each `[name=]checkpoint`: a registered name or digest, a folder, or smollm2
    device: str = "cpu"
    token: str | None = None  # required of every request if set
    allowed_hosts: tuple[str, ...] = ()  # further names to accept in the Host header
    origins: tuple[str, ...] = ()  # web origins that may call the API, as https://name[:port]
    tools: str | None = None  # module or file with the tools that runs may use
    max_body: int = 16 * MIB  # bytes of a request body as sent
    max_unpacked: int = 64 * MIB  # bytes of a compressed body when unpacked
    body_timeout_s: float = 30.0  # time limit for a body
    header_timeout_s: float = 10.0  # time limit for the head of a request
    rate: float = 500.0  # requests per second and client in the long run
    burst: int = 2_000  # requests that a client may make at once
    slots: int = 64  # concurrent requests per model
    waiting: int = 256  # requests that may wait per model
    cache_bytes: int = 4096 * MIB  # limit for the key/value cache of one model
    models_at_once: int = 2  # registered checkpoints to keep loaded, besides those named at the start
    bodies_in_memory: int = 64 * MIB  # bytes of all request bodies, arriving or waiting to be stored
    runs: int = 16  # concurrent agent runs
    mask: str | None = None  # what to mask in traces, own and received: secrets, pii or none; None: the setting
    sample: float | None = None  # share of own traces to record; None: the setting
    otlp_endpoint: str | None = None  # also send the server's own spans there
    log_level: str = "info"

    def __post_init__(self) -> None:
        if not self.loopback and not self.token:
            raise UsageError(
                f"a server that listens on {self.host} needs a token", fix="Add --token, or listen on 127.0.0.1"
            )

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether a host name or address is a loopback one.

    >>> is_loopback("127.0.0.2"), is_loopback("localhost"), is_loopback("example.org")
    (True, True, False)
    """
    if host.lower() in LOOPBACK:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
