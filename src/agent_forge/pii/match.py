"""What the detector finds, and which of two overlapping findings stands."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import NamedTuple


class Match(NamedTuple):
    """One piece of personal data or one secret: `text[start:end]`.

    `reserved` marks values that belong to nobody: example.com, 555-01xx, the published test cards.
    """

    type: str
    start: int
    end: int
    text: str
    reserved: bool = False


# Most specific first: of two matches of one length the earlier type stands.
TYPES = (
    "PRIVATE_KEY",
    "URL_CREDENTIALS",
    "SECRET",
    "CRYPTO",
    "CARD",
    "IBAN",
    "SSN",
    "NATIONAL_ID",
    "IP",
    "EMAIL",
    "PHONE",
    "PASSPORT",
    "DRIVER_LICENSE",
    "DATE_OF_BIRTH",
    "PERSON",
    "ADDRESS",
    "ORG",
)
RANK = {name: rank for rank, name in enumerate(TYPES)}
NAME_TYPES = frozenset({"PERSON", "ADDRESS", "ORG"})  # what a model finds; addresses have patterns too
PATTERN_TYPES = frozenset(TYPES) - {"PERSON", "ORG"}
SECRET_TYPES = frozenset({"PRIVATE_KEY", "URL_CREDENTIALS", "SECRET"})


def resolve_overlaps(matches: Iterable[Match]) -> list[Match]:
    """Keeps the longest, then the most specific, of the matches that overlap; sorted by start.

    >>> resolve_overlaps([Match("PHONE", 4, 9, "12345"), Match("CARD", 0, 12, "000012345000")])
    [Match(type='CARD', start=0, end=12, text='000012345000', reserved=False)]
    """
    chosen: list[tuple[int, int, Match]] = []
    for match in sorted(matches, key=lambda m: (m.start - m.end, RANK[m.type], m.start)):
        at = bisect_left(chosen, (match.start, match.end))
        if at < len(chosen) and chosen[at][0] < match.end:
            continue
        if at and chosen[at - 1][1] > match.start:
            continue
        insort(chosen, (match.start, match.end, match))
    return [match for _, _, match in chosen]
