"""How a server is set up."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from agent_forge.errors import UsageError

MIB = 1 << 20
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What `agent-forge serve` can be told. Everything has a safe default.

    >>> ServerSettings().loopback
    True
    >>> ServerSettings(host="0.0.0.0")
    Traceback (most recent call last):
    agent_forge.errors.UsageError: a server that listens on 0.0.0.0 needs a token. Give --token, or listen on 127.0.0.1.
    """

    host: str = "127.0.0.1"
    port: int = 8321
    home: str | None = None  # folder of traces, journals and models, or the URL of a trace store
    models: tuple[str, ...] = ()  # each `[name=]checkpoint`: a registered name or digest, a folder, or smollm2
    device: str = "cpu"
    token: str | None = None  # asked of every request when it is set
    allowed_hosts: tuple[str, ...] = ()  # names in the Host header beside the ones that are ours
    origins: tuple[str, ...] = ()  # web pages of other origins that may call us, as https://name[:port]
    tools: str | None = None  # module or file with the tools that runs may use
    max_body: int = 16 * MIB  # bytes of a request's body as it is sent
    max_unpacked: int = 64 * MIB  # bytes of a compressed body when unpacked
    body_timeout_s: float = 30.0  # seconds in which a body must have arrived
    header_timeout_s: float = 10.0  # seconds in which a request's head must have arrived
    rate: float = 500.0  # requests a second and client in the long run
    burst: int = 2_000  # requests a client may make at once
    slots: int = 64  # requests a model works on at once
    waiting: int = 256  # requests that may wait for a model
    cache_bytes: int = 4096 * MIB  # memory that the keys and values of one model's requests may take
    models_at_once: int = 2  # registered checkpoints loaded on demand, beside those named at the start
    intake_waiting: int = 64 * MIB  # bytes of trace requests taken in and not stored yet
    runs: int = 16  # agent runs at once
    otlp_endpoint: str | None = None  # where the spans of our own work are sent as well, such as Jaeger
    log_level: str = "info"

    def __post_init__(self) -> None:
        if not self.loopback and not self.token:
            raise UsageError(
                f"a server that listens on {self.host} needs a token", fix="Give --token, or listen on 127.0.0.1"
            )

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own.

    >>> is_loopback("127.0.0.2"), is_loopback("localhost"), is_loopback("example.org")
    (True, True, False)
    """
    if host.lower() in LOOPBACK:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
