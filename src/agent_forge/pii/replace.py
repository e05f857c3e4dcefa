"""Replacements for personal data: a placeholder, a surrogate, a keyed hash, or none (the row is dropped)."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from agent_forge.errors import UsageError
from agent_forge.pii import Match, find_pii
from agent_forge.pii.detector import NameFinder

ACTIONS = ("placeholder", "surrogate", "hash", "drop")
_MOST_PASSES = 4
# Hexadecimal digits as letters: a hash without digits cannot be read as a number the next time.
_LETTERS = str.maketrans("0123456789abcdef", "abcdefghijklmnop")
# JSON keys that describe their value. `text` and `message` do not, although they are telephone words.
_DESCRIPTIVE_KEY = re.compile(
    r"phone|mobile|\bcell\b|\bfax\b|\btel\b|\bssn\b|social sec|passport|licen[cs]e|birth|\bdob\b|passw|pwd|secret|"
    r"token|(?:api|access|private) ?key|\bcard\b|iban|\bip\b|version|release|build|order|invoice|"
    r"tracking|isbn|sku|serial"
)
_WORD_START = re.compile(r"(?<=[a-z])(?=[A-Z])|[_\-.]")


@lru_cache(4096)
def hint_of(key: str) -> str | None:
    """The words that the JSON key `key` puts before its value, or None if it does not describe it.

    >>> hint_of("phoneNumber"), hint_of("content")
    ('phone number', None)
    """
    words = _WORD_START.sub(" ", key).lower()
    return words if len(words) < 48 and _DESCRIPTIVE_KEY.search(words) else None


# Surrogates as they are written. They belong to nobody and stay, so that scrubbing twice changes nothing.
_SURROGATE = re.compile(
    r"person\d+@example\.com|\(\d{3}\) 555-01\d\d|400000\d{10}|GB\d\dTEST000000\d{8}|"
    r"user\d+:password\d+@host\d+\.example|(?:192\.0\.2|198\.51\.100|203\.0\.113)\.\d{1,3}|2001:db8::1:[0-9a-f]+"
)


@dataclass(slots=True)
class Surrogates:
    """The surrogates of one document: equal values get equal surrogates, so a person stays the same person.

    They come from ranges that belong to nobody, in order of appearance, except those `taken` in the document.

    >>> pool = Surrogates()
    >>> [pool.of("EMAIL", value) for value in ("a@corp.io", "b@corp.io", "a@corp.io")]
    ['person1@example.com', 'person2@example.com', 'person1@example.com']
    """

    taken: set[str] = field(default_factory=set)
    issued: dict[tuple[str, str], str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    @classmethod
    def beside(cls, document: str) -> Surrogates:
        """A pool without the surrogates that the document already contains."""
        return cls(set(_SURROGATE.findall(document)))

    def of(self, kind: str, value: str) -> str:
        surrogate = self.issued.get((kind, value))
        while surrogate is None:
            self.counts[kind] = number = self.counts.get(kind, 0) + 1
            make = _SURROGATES.get(kind)
            candidate = make(number) if make is not None else f"[{kind}_{number}]"
            if candidate not in self.taken:
                surrogate = self.issued[kind, value] = candidate
        return surrogate


def _card(number: int) -> str:
    from agent_forge.pii.checksums import luhn

    body = f"400000{number:09d}"
    return next(body + check for check in "0123456789" if luhn(body + check))


def _iban(number: int) -> str:
    account = f"TEST000000{number:08d}"
    remainder = int("".join(str(int(char, 36)) for char in account + "GB00")) % 97
    return f"GB{98 - remainder:02d}{account}"


def _ip(number: int) -> str:
    block, last = divmod(number - 1, 254)
    documentation = ("192.0.2", "198.51.100", "203.0.113")  # RFC 5737
    return f"{documentation[block]}.{last + 1}" if block < 3 else f"2001:db8::1:{number:x}"


def _phone(number: int) -> str:
    area, last = divmod(number - 1, 100)
    return f"({212 + area % 700}) 555-01{last:02d}"


_SURROGATES: dict[str, Callable[[int], str]] = {
    "EMAIL": lambda number: f"person{number}@example.com",
    "PHONE": _phone,
    "CARD": _card,
    "IBAN": _iban,
    "IP": _ip,
    "URL_CREDENTIALS": lambda number: f"user{number}:password{number}@host{number}.example",
}


@dataclass(frozen=True, slots=True)
class Scrubber:
    """Finds and replaces. `action` is one of `ACTIONS`; `hash` needs a `key`.

    >>> Scrubber().text("mail jo@corp.io")[0]
    'mail [EMAIL]'
    """

    action: str = "placeholder"
    key: bytes | None = None
    types: frozenset[str] | None = None
    names: NameFinder | None = None

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise UsageError(f"there is no action {self.action!r}", fix=f"Use one of {', '.join(ACTIONS)}")
        if self.action == "hash" and not self.key:
            fix = "Set AGENT_FORGE_SCRUB_KEY or --key: without a key anybody can hash a list of addresses"
            raise UsageError("hashing needs a key", fix=fix)

    def find(self, text: str, hint: str | None = None) -> list[Match]:
        """What this scrubber would replace; when it makes surrogates, not those in the text already."""
        matches = find_pii(text, types=self.types, hint=hint, names=self.names)
        if self.action != "surrogate" or not matches:
            return matches
        own = [surrogate.span() for surrogate in _SURROGATE.finditer(text)]
        return [m for m in matches if not any(start < m.end and m.start < end for start, end in own)]

    def text(
        self, text: str, *, hint: str | None = None, surrogates: Surrogates | None = None
    ) -> tuple[str, list[Match]]:
        """`text` without its personal data, and the matches in it."""
        matches = self.find(text, hint)
        if not matches:
            return text, matches
        return self.replaced(text, matches, hint, surrogates if surrogates is not None else Surrogates.beside(text))

    def replaced(self, text: str, matches: list[Match], hint: str | None, pool: Surrogates) -> tuple[str, list[Match]]:
        """`text` with these matches replaced, and with those that the replacements reveal."""
        if self.action == "drop":
            return text, matches
        text = self._replace(text, matches, pool)
        for _ in range(_MOST_PASSES):
            more = self.find(text, hint)
            if not more:
                break
            matches = matches + more
            text = self._replace(text, more, pool)
        return text, matches

    def _replace(self, text: str, matches: Sequence[Match], pool: Surrogates) -> str:
        parts: list[str] = []
        at = 0
        for match in matches:
            parts += (text[at : match.start], self._replacement(match, pool))
            at = match.end
        return "".join(parts) + text[at:]

    def _replacement(self, match: Match, pool: Surrogates) -> str:
        if self.action == "surrogate":
            return pool.of(match.type, match.text)
        if self.action == "hash":
            digest = hmac.new(
                self.key or b"", f"{match.type}\0{match.text}".encode("utf-8", "surrogatepass"), hashlib.sha256
            )
            return f"[{match.type}:{digest.hexdigest()[:16].translate(_LETTERS)}]"
        return f"[{match.type}]"


def scrub_text(
    text: str, *, action: str = "placeholder", key: bytes | None = None, types: Collection[str] | None = None
) -> str:
    """`text` with its personal data and secrets replaced.

    >>> scrub_text("SSN 123-45-6789, card 4242 4242 4242 4242")
    'SSN [SSN], card [CARD]'
    """
    return Scrubber(action, key, frozenset(types) if types is not None else None).text(text)[0]


def mask_pii(value: Any, scrubber: Scrubber | None = None) -> Any:
    """Any JSON value with the personal data and secrets in its strings replaced; keys and numbers stay.

    The span recorder takes `Recorder(mask=masked(scrub_text))`, which runs the same detector on every string it writes.

    >>> mask_pii({"to": ["jo@corp.io"], "retries": 3, "password": "hunter22"})
    {'to': ['[EMAIL]'], 'retries': 3, 'password': '[SECRET]'}
    """
    used = scrubber or Scrubber()
    pool = (
        Surrogates.beside(json.dumps(value, ensure_ascii=False, default=str))
        if used.action == "surrogate"
        else Surrogates()
    )
    return _mask(value, used, None, pool)


def _mask(value: Any, scrubber: Scrubber, hint: str | None, pool: Surrogates) -> Any:
    if isinstance(value, str):
        return scrubber.text(value, hint=hint, surrogates=pool)[0]
    if isinstance(value, dict):
        return {key: _mask(item, scrubber, hint_of(str(key)), pool) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mask(item, scrubber, hint, pool) for item in value]
    return value
