"""E-mail addresses, URLs with credentials, IP addresses."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agent_forge.pii import checksums, context
from agent_forge.pii.match import Match

_LOCAL = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._%+-'&"
_LOCAL_MOST = 64
_DOMAIN = re.compile(r"\w[\w\-]{0,62}(?:\.\w[\w\-]{0,62}){1,9}")
_TOP = re.compile(r"(?:[^\W\d_]{2,24}|xn--[A-Za-z0-9\-]{2,59})\Z")
_TOP_JOINED = re.compile(r"(?:[A-Za-z]{2}|com|net|org|edu|gov|info)(?=[\-_])", re.IGNORECASE)
# Words of scripts without spaces around an address: 请联系jo@corp.io谢谢.
_UNSPACED_HEAD = re.compile(r".*[\u0e00-\U0010ffff](?=[A-Za-z0-9])", re.DOTALL)
_UNSPACED_TAIL = re.compile(r"(?<=[A-Za-z])[\u0e00-\U0010ffff][^.]*\Z")
_RESERVED_DOMAINS = re.compile(r"(?:^|\.)(?:example\.(?:com|net|org|edu)|example|test|invalid|localhost|local)\Z")
_SPELLED_AT = re.compile(
    r"(?<![\w.])[\w.+\-]{1,64} ?[\[({<] ?at ?[\])}>] ?[\w\-]{1,63}"
    r"(?: ?(?:\.|[\[({<] ?dot ?[\])}>]) ?[\w\-]{1,63}){1,5}(?!\w)",
    re.IGNORECASE,
)
_USERINFO = re.compile(r"[^\s/?#:@\"'<>`\\]{0,256}:[^\s/@\"'<>`\\]{1,256}@[\w\[][\w.\-:\[\]]{0,255}")
SPELLED = re.compile(r"[\[({<] ?[aA][tT] ?[\])}>]")
V4_MIDDLE = re.compile(r"\.[0-9]{1,3}\.[0-9]")
_V4 = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?:/[0-9]{1,2}(?![0-9]))?")
_V4_RANGE = re.compile(r"(?<![0-9.])[0-9]{1,3}(?:\.[0-9]{1,3}){3}-[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?![0-9.]*[0-9])")
V6_MIDDLE = re.compile(r":(?:[0-9A-Fa-f]{1,4})?:")
_V6 = re.compile(r"[0-9A-Fa-f:]{1,30}:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9A-Fa-f:]{2,39}")
_HEX_COLON = frozenset("0123456789abcdefABCDEF:")


def find_emails(text: str) -> Iterator[Match]:
    """Addresses around each `@`; what lies before and after is looked at for as far as an address may reach."""
    at = text.find("@")
    while at >= 0:
        match = _email_at(text, at)
        if match is not None:
            yield match
        at = text.find("@", at + 1)


def _email_at(text: str, at: int) -> Match | None:
    start = _local_start(text, at)
    domain = _DOMAIN.match(text, at + 1, at + 256)
    if start == at or domain is None:
        return None
    host = _real_domain(domain.group())
    if host is None:
        return None
    end = at + 1 + len(host)
    local = text[start:at]
    if local == "git" or (host.startswith("self.") and text[end : end + 1] in ("", ")", "(", "[", ".")):
        return None  # git@host:path is an address of a repository; x@self.weight is a product of matrices
    reserved = _RESERVED_DOMAINS.search(host.lower()) is not None
    return Match("EMAIL", start, end, text[start:end], reserved)


def _local_start(text: str, at: int) -> int:
    head = text[max(0, at - _LOCAL_MOST) : at]
    if head.endswith('"'):
        quote = head.rfind('"', 0, -1)
        return at - len(head) + quote if quote >= 0 and "\n" not in head[quote:] and quote < len(head) - 2 else at
    cut = len(head.rstrip(_LOCAL))
    while cut and head[cut - 1].isalnum():  # letters beyond ASCII, and what was joined to them
        cut = len(head[: cut - 1].rstrip(_LOCAL))
    if unspaced := _UNSPACED_HEAD.match(head, cut):
        cut = unspaced.end()
    while cut < len(head) and head[cut] in ".%-'&":
        cut += 1
    return at if head.endswith(".") else at - len(head) + cut


def _real_domain(host: str) -> str | None:
    """`host` without what the sentence put behind it, or None when it has no top-level domain."""
    while True:
        host = _UNSPACED_TAIL.sub("", host.rstrip("-_"))
        top = host.rpartition(".")[2]
        if "." not in host:
            return None
        if _TOP.match(top):
            return host
        if joined := _TOP_JOINED.match(top):  # jane@corp.com-old
            return host[: len(host) - len(top) + joined.end()]
        host = host.rpartition(".")[0]


def find_spelled_emails(text: str) -> Iterator[Match]:
    """`jane [at] corp [dot] com`."""
    for hit in _SPELLED_AT.finditer(text):
        yield Match("EMAIL", hit.start(), hit.end(), hit.group())


def find_url_credentials(text: str) -> Iterator[Match]:
    """`user:password@host` of `scheme://user:password@host/path`; scheme and path stay."""
    at = text.find("://")
    while at >= 0:
        hit = _USERINFO.match(text, at + 3, at + 768)
        if hit is not None:
            written = hit.group().rstrip(".:-")
            host = written.rpartition("@")[2].partition(":")[0].lower()
            reserved = _RESERVED_DOMAINS.search(host) is not None
            yield Match("URL_CREDENTIALS", at + 3, at + 3 + len(written), written, reserved)
        at = text.find("://", at + 3)


def find_v4(text: str) -> Iterator[Match]:
    done = 0
    for middle in V4_MIDDLE.finditer(text):
        start = middle.start()
        while start and middle.start() - start < 3 and text[start - 1].isdigit():
            start -= 1
        hit = _V4.match(text, start) if start >= done and start < middle.start() else None
        if hit is not None and _is_v4(text, start, hit.end()):
            done = hit.end()
            address = checksums.parse_ip(hit.group().partition("/")[0])
            if address is not None:
                yield Match("IP", start, done, hit.group(), not address.is_global)


def _is_v4(text: str, start: int, end: int) -> bool:
    """Not part of a longer dotted number, and not a version."""
    head, tail = text[max(0, start - 2) : start], text[end : end + 2]
    if context.joins(head[-1:]) or head[-1:] == "_" or context.joins(tail[:1]) or tail[:1] == "_":
        return False
    ranged = _V4_RANGE.match(text, start) or _V4_RANGE.search(text, max(0, start - 16), end)
    if tail[:1] in (".", "-") and tail[1:].isalnum() and (tail[1:].isdigit() or tail[0] == "-") and not ranged:
        return False
    if head[-1:] in (".", "-") and head[:1].isalnum() and not ranged:
        return False
    if head in ("==", ">=", "<=", "~=", "^") or (head[-1:] == "/" and head[:1].isalpha()):
        return False
    if text.startswith("0.", start) and not text.startswith("0.0.0.0", start):  # noqa: S104 (text, not a socket)
        return False
    return not context.version_context(text, start)


def find_v6(text: str) -> Iterator[Match]:
    done = 0
    for middle in V6_MIDDLE.finditer(text):
        start = middle.start()
        if start < done:
            continue
        while start > done and middle.start() - start < 32 and text[start - 1] in _HEX_COLON:
            start -= 1
        hit = _V6.match(text, start)
        if hit is None:
            continue
        done = hit.end()
        match = _v6(text, start, hit.end())
        if match is not None:
            yield match


def _v6(text: str, start: int, end: int) -> Match | None:
    while text[end - 1] == ":" and text[end - 2] != ":":
        end -= 1
    written = text[start:end]
    address = checksums.parse_ip(written)
    before, after = text[start - 1 : start], text[end : end + 1]
    if address is None or context.joins(before) or before in ("_", ".") or context.joins(after) or after in ("_", ":"):
        return None
    groups = [group for group in written.split(":") if group]
    if "::" not in written and all(len(group) < 3 and group.isdecimal() for group in groups):
        return None  # a ratio, or the bytes of a hardware address
    if len(groups) < 3 and "." not in written and not _is_short_v6(written, text[max(0, start - 3) : start]):
        return None
    return Match("IP", start, end, written, not address.is_global)


def _is_short_v6(written: str, before: str) -> bool:
    """`fe80::1` and `//[::1]` are addresses; `a[::2]` is a slice, `ab::cd` a name in C++."""
    if written.startswith("::"):
        return before.endswith("//[") or (written == "::1" and not before.endswith("["))
    first = written.partition(":")[0]
    return (len(first) == 4 and any(char.isdigit() for char in first) and not first.isdigit()) or first in (
        "2001",
        "2606",
    )
