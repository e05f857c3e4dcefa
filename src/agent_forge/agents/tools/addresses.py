"""Which hosts may be contacted, and at which address: protection against requests to internal networks (SSRF).

A name is resolved once, all of its addresses are checked, and the connection goes to the checked address, so a name
server that answers differently the second time (DNS rebinding) gains nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from agent_forge.errors import ToolError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[list[str]]]
Private = bool | Sequence[str]
"""Whether non-public addresses may be contacted: never, always, or only those in the given networks."""

_PORTS = {"http": 80, "https": 443}
# The IPv6 range of NAT64, whose addresses carry an IPv4 address.
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class AddressRefused(ToolError):
    """A URL that is not allowed; nothing was sent."""


@dataclass(frozen=True, slots=True)
class AllowList:
    """Hosts that may be contacted: `example.org`, `*.example.org` (its subdomains), `example.org:8080`, or `*`.

    An entry without a port means the default ports 80 and 443.

    >>> hosts = AllowList.of(["example.org", "*.wikipedia.org"])
    >>> hosts.allows("en.wikipedia.org", 443), hosts.allows("wikipedia.org.evil.com", 443)
    (True, False)
    >>> hosts.allows("example.org", 22)
    False
    """

    entries: tuple[str, ...]

    @classmethod
    def of(cls, hosts: Iterable[str]) -> AllowList:
        entries = tuple(host.strip().lower().rstrip(".") for host in ([hosts] if isinstance(hosts, str) else hosts))
        if not entries or not all(entries):
            raise ToolError("the list of allowed hosts is empty", fix='Name the hosts, or "*" for every public one')
        for entry in entries:
            if "/" in entry or "@" in entry:
                raise ToolError(f"{entry!r} is not a host", fix="Write example.org or example.org:8080, without a path")
        return cls(entries)

    def allows(self, host: str, port: int) -> bool:
        for entry in self.entries:
            name, ports = _split(entry)
            same = host.endswith(name[1:]) if name.startswith("*.") else name in ("*", host)
            if same and port in ports:
                return True
        return False


def _split(entry: str) -> tuple[str, tuple[int, ...]]:
    """The host and the ports of an entry."""
    name, colon, port = entry.rpartition(":")
    if colon and port.isdigit() and (":" not in name or name.endswith("]")):
        return name.strip("[]"), (int(port),)
    return entry.strip("[]"), tuple(_PORTS.values())


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, from the system's resolver."""
    try:
        entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ToolError(f"the host {host!r} cannot be resolved: {error}") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


async def safe_address(host: str, port: int, *, private: Private = False, resolver: Resolve = resolve) -> str:
    """An address of the host to connect to. Raises AddressRefused if any of its addresses is not public."""
    addresses = [ipaddress.ip_address(text.partition("%")[0]) for text in await resolver(host, port)]
    if not addresses:
        raise ToolError(f"the host {host!r} has no address")
    networks = [] if isinstance(private, bool) else [ipaddress.ip_network(network) for network in private]
    for address in addresses:
        if private is not True and not is_public(address) and not any(address in network for network in networks):
            raise AddressRefused(
                f"the host {host!r} has the address {address}, which is not public",
                fix="If it is intended, create the tool with private=True or private=['10.0.0.0/8']",
            )
    return str(addresses[0])


def is_public(address: Address) -> bool:
    """Whether an address is on the public internet: not private, loopback, link-local, multicast, reserved.

    >>> [is_public(ipaddress.ip_address(text)) for text in ("93.184.216.34", "169.254.169.254", "::ffff:10.0.0.1")]
    [True, False, False]
    """
    inner = _carried(address)
    if inner is not None:
        return is_public(inner)
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def _carried(address: Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that an IPv6 address leads to, if it does."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
