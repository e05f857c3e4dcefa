"""`find_pii`: the one detector that scrubbing, auditing and the span masker share."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import lru_cache

from agent_forge.pii import addresses, national
from agent_forge.pii.identity import LABELS, find_base58, find_bech32, find_ethereum, find_labelled
from agent_forge.pii.match import Match, resolve_overlaps
from agent_forge.pii.network import (
    SPELLED,
    V4_MIDDLE,
    V6_MIDDLE,
    find_emails,
    find_spelled_emails,
    find_url_credentials,
    find_v4,
    find_v6,
)
from agent_forge.pii.numbers import find_numbers
from agent_forge.pii.secrets import (
    FIXED,
    TAIL,
    find_assigned,
    find_fixed,
    find_jwt,
    find_private_keys,
    find_tokens,
    find_webhooks,
)

NameFinder = Callable[[str], Iterable[Match]]
Finder = Callable[[str], Iterable[Match]]

# Six digits with few separators between them (`numbers.RUN`), or what may be a Bitcoin address: one search for both.
DIGITS = re.compile(r"[0-9](?:(?:[ ().\-/]{0,3}[0-9]){5}|(?<=[13])[1-9A-HJ-NP-Za-km-z]{25})")


def find_by_digits(text: str) -> Iterator[Match]:
    yield from find_numbers(text)
    yield from find_base58(text)


# A finder runs only where its anchor is: these searches begin with a character class or a literal, which the regular
# expression engine skips to, so that prose costs a few passes and nothing else.
_NUMBERS = frozenset({"SSN", "CARD", "PHONE", "IBAN", "CRYPTO", "NATIONAL_ID"})
_ADDRESS, _NATIONAL = frozenset({"ADDRESS"}), frozenset({"NATIONAL_ID"})
_SECRETS = frozenset({"SECRET", "PRIVATE_KEY"})
_Scan = tuple[Callable[[str], object], Finder, frozenset[str]]
_WITH_DIGITS: tuple[_Scan, ...] = (
    (DIGITS.search, find_by_digits, _NUMBERS),
    (V4_MIDDLE.search, find_v4, frozenset({"IP"})),
    (national.TAIL.search, national.find_lettered, _NATIONAL),
    (addresses.STREET_NUMBER.search, addresses.find_streets, _ADDRESS),
    (addresses.has_compound, addresses.find_compound, _ADDRESS),
    (addresses.FRENCH.search, addresses.find_french, _ADDRESS),
    (addresses.KIND_FIRST.search, addresses.find_kind_first, _ADDRESS),
    (national.NINO.search, national.find_nino, _NATIONAL),
)
_SCANS: tuple[_Scan, ...] = (
    (V6_MIDDLE.search, find_v6, frozenset({"IP"})),
    (SPELLED.search, find_spelled_emails, frozenset({"EMAIL"})),
    (TAIL.search, find_tokens, _SECRETS),
    (FIXED.search, find_fixed, _SECRETS),
)
_ANCHORS: tuple[tuple[str, Finder, frozenset[str]], ...] = (
    ("@", find_emails, frozenset({"EMAIL"})),
    ("@", find_url_credentials, frozenset({"URL_CREDENTIALS"})),
    ("-----BEGIN", find_private_keys, _SECRETS),
    (".eyJ", find_jwt, _SECRETS),
    ("hooks.slack.com/", find_webhooks, _SECRETS),
    ("号", addresses.find_chinese, _ADDRESS),
    (" Box ", addresses.find_boxes, _ADDRESS),
    ("0x", find_ethereum, frozenset({"CRYPTO"})),
    ("bc1", find_bech32, frozenset({"CRYPTO"})),
)
_BY_KEYWORD = frozenset({"SECRET", "DATE_OF_BIRTH", "PASSPORT", "DRIVER_LICENSE"})
_DIGIT = re.compile(r"[0-9]")
# The words that introduce a secret or a document, each found by its rarest letter: what the pattern matched, the word,
# and how many of its letters stand before the match.
_WORDS = {
    "w": ("passw", 4),
    "wd": ("pwd", 1),
    "phrase": ("passphrase", 4),
    "port": ("passport", 4),
    "ken": ("token", 2),
    "key": ("key", 0),
    "bearer": ("bearer", 0),
    "birth": ("birth", 0),
    "born": ("born", 0),
    "b": ("dob", 2),
    "b.": ("dob", 4),
    "cret": ("secret", 2),
    "cred": ("credential", 0),
    "cen": ("licen", 2),
    "horiz": ("authorization", 3),
}
_KEYWORD = re.compile(
    r"wd(?<=pwd)|w(?<=passw)|phrase(?<=passphrase)|port(?<=passport)|ken(?<=token)|key|bearer|birth|born|b\.(?<=d\.o\.b\.)|"
    r"b(?<=dob)|cret(?<=secret)|cred|cen(?<=licen)|horiz(?<=authoriz)"
)

# Characters that people type for an ASCII one: full width forms, other scripts' digits, typographic dashes and spaces.
# One for one, so that offsets hold.
_FOLDS = {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
_FOLDS |= dict.fromkeys("‐‑‒–—−﹣", "-") | dict.fromkeys("\u00a0\u2002\u2003\u2007\u2009\u202f\u3000\t", " ")
_FOLDS |= {chr(zero + digit): str(digit) for zero in (0x660, 0x6F0, 0x966, 0x9E6) for digit in range(10)}
_FOLDS |= dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", " ") | {"\u00ad": "-"}  # what cannot be seen between digits
_FOLDS |= dict.fromkeys("․。", ".") | {"﹫": "@"}
_FOLDED = re.compile(f"[{re.escape(''.join(_FOLDS))}]")


def fold(text: str) -> str:
    """`text` with full width and typographic characters as ASCII, at the same offsets.

    >>> fold("＋４４ 20‑7946")
    '+44 20-7946'
    """
    if text.isascii():
        return text.replace("\t", " ") if "\t" in text else text
    return _FOLDED.sub(lambda hit: _FOLDS[hit.group()], text)


def find_pii(
    text: str,
    *,
    types: Collection[str] | None = None,
    hint: str | None = None,
    names: NameFinder | None = None,
) -> list[Match]:
    """Personal data and secrets in `text`, sorted, without overlaps.

    `hint` is a label that stands for the words before the text, such as the JSON key it lies under. `names` finds
    people, addresses and organisations (see `load_names`); without it those are not searched. `types` selects types.

    >>> [(m.type, m.text) for m in find_pii("Mail jo@corp.io or call (555) 123-4567")]
    [('EMAIL', 'jo@corp.io'), ('PHONE', '(555) 123-4567')]
    >>> find_pii("order 1730764800, version 7.1.4.34")
    []
    """
    if names is None and text.isalpha():
        return []  # one word: roles, labels, categories
    lead = f"{hint.replace('_', ' ')}: " if hint else ""
    folded = fold(lead + text)
    matches = _patterns(folded, types)
    if names is not None:
        matches += [m._replace(start=m.start + len(lead), end=m.end + len(lead)) for m in names(text)]
    if types is not None:
        matches = [match for match in matches if match.type in types]
    if len(matches) > 1:
        matches = resolve_overlaps(matches)
    shift = len(lead)
    return [
        Match(m.type, m.start - shift, m.end - shift, text[m.start - shift : m.end - shift], m.reserved)
        for m in matches
        if m.start >= shift
    ]


def _patterns(text: str, types: Collection[str] | None) -> list[Match]:
    matches: list[Match] = []
    with_digits, scans, anchors, keywords = _ALL if types is None else _rules(frozenset(types))
    if (with_digits or keywords) and _DIGIT.search(text):  # much prose has no digit at all
        for search, find in with_digits:
            if search(text):
                matches += find(text)
        if keywords and _KEYWORD.search(lowered := text.lower()):
            matches += _by_keyword(text, lowered)
    for search, find in scans:
        if search(text):
            matches += find(text)
    for anchor, find in anchors:
        if anchor in text:
            matches += find(text)
    return matches


_Pairs = tuple[tuple[Callable[[str], object], Finder], ...]


@lru_cache(64)
def _rules(types: frozenset[str] | None) -> tuple[_Pairs, _Pairs, tuple[tuple[str, Finder], ...], bool]:
    """The searches that can find one of these types; all of them for None."""

    def relevant(kinds: frozenset[str]) -> bool:
        return types is None or bool(kinds & types)

    with_digits = tuple((search, find) for search, find, kinds in _WITH_DIGITS if relevant(kinds))
    scans = tuple((search, find) for search, find, kinds in _SCANS if relevant(kinds))
    anchors = tuple((anchor, find) for anchor, find, kinds in _ANCHORS if relevant(kinds))
    return with_digits, scans, anchors, relevant(_BY_KEYWORD)


def _by_keyword(text: str, lowered: str) -> Iterator[Match]:
    if len(lowered) != len(text):  # a few letters grow in lower case; offsets must hold
        lowered = "".join(char.lower()[:1] for char in text)
    for hit in _KEYWORD.finditer(lowered):
        word, back = _WORDS[hit.group()]
        if word in LABELS:
            yield from find_labelled(text, word, hit.start() - back)
        else:
            yield from find_assigned(text, word, hit.start() - back)


_ALL = _rules(None)
