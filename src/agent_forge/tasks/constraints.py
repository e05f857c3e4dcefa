"""What several families check: dates and names in any form, and whether a text is prose rather than a list of words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from datetime import date
from typing import Any

from agent_forge.tasks.family import Verdict

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_ORDERS = (
    re.compile(r"(?P<year>\d{4})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})(?:T00:00(?::00)?Z?)?"),
    re.compile(r"(?P<day>\d{1,2})\.\s?(?P<month>\d{1,2})\.\s?(?P<year>\d{4})"),
    re.compile(r"(?P<day>\d{1,2})(?:st|nd|rd|th)?\.?(?: of)? (?P<name>[a-z]{3,9})\.?,? (?P<year>\d{4})", re.I),
    re.compile(r"(?P<name>[a-z]{3,9})\.? (?P<day>\d{1,2})(?:st|nd|rd|th)?,? (?P<year>\d{4})", re.I),
)
# English prose consists of these by a third, terse sentences by a tenth; lists of keywords have next to none.
_FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a about after all also an and are as at be because been before but by can do each every for from get has have "
        "how if in into is it its keep make more most no not of on one or our out over per so some than that the their "
        "them then there these they this to until up use was we what when where which while who will with you your",
    )
)


def day(value: Any) -> date | None:
    """A date however it is written, or None. Dates with slashes are read only if the year comes first.

    >>> day("1st of May 2027") == day("2027-05-01") == day("May 1, 2027") == day("1.5.2027") == date(2027, 5, 1)
    True
    >>> day("05/01/2027"), day("soon")
    (None, None)
    """
    for order in _ORDERS:
        if isinstance(value, str) and (match := order.fullmatch(value.strip())):
            parts = match.groupdict()
            try:
                return date(int(parts["year"]), _month(parts), int(parts["day"]))
            except ValueError:
                return None
    return None


def _month(parts: Mapping[str, str]) -> int:
    if "month" in parts:
        return int(parts["month"])
    names = [month for month in MONTHS if month.lower().startswith(parts["name"].lower())]
    return MONTHS.index(names[0]) + 1 if len(names) == 1 else 0


def long_date(when: date) -> str:
    """A date as people write it.

    >>> long_date(date(2027, 5, 1))
    '1 May 2027'
    """
    return f"{when.day} {MONTHS[when.month - 1]} {when.year}"


def same(one: str, other: str) -> bool:
    """Whether two names or phrases are the same but for case, blanks and a full stop at the end.

    >>> same(" acme  Ltd.", "Acme Ltd"), same("Acme", "Acme Ltd")
    (True, False)
    """
    return _plain(one) == _plain(other)


def _plain(text: str) -> str:
    return " ".join(text.split()).strip(" .").casefold()


def words(text: str) -> list[str]:
    """The words between blanks, in lower case and without the punctuation around them.

    >>> words("It's 3.5 kg - or 'more'.")
    ["it's", '3.5', 'kg', 'or', 'more']
    """
    return re.findall(r"\w(?:\S*\w)?", text.casefold())


def occurrences(phrase: str, text: str) -> int:
    """How often a phrase occurs in a text as whole words, whatever their case.

    >>> occurrences("red shoes", "Red shoes! Red, shoes are not redshoes.")
    2
    """
    wanted, there = words(phrase), words(text)
    return sum(there[start : start + len(wanted)] == wanted for start in range(len(there) - len(wanted) + 1))


def sentences(text: str) -> list[str]:
    """
    >>> sentences("It costs 3.50. Why? Because.")
    ['It costs 3.50.', 'Why?', 'Because.']
    """
    return [part for part in re.split(r"(?<=[.!?])\s+", text.strip()) if part]


def prose_fault(text: str, *, repeats: int = 5) -> str | None:
    """Why a text is not prose, or None: full sentences, none of them twice, no word over and over, not only keywords.

    `repeats` is how often a word of five letters or more may occur.

    >>> prose_fault("We keep a lamp for you until Friday.") or prose_fault("It is so.")
    >>> prose_fault("Lamp offer sale lamp discount.")
    'it is a list of words, not sentences'
    """
    parts, found = sentences(text), words(text)
    if not parts:
        return "it is empty"
    if fragment := next(
        (part for part in parts if not re.fullmatch(r"[\"'(]?[A-Z0-9].*[.!?][\"')]?", part, re.S)), None
    ):
        return f"{_short(fragment)!r} is not a full sentence"
    if len({_plain(part) for part in parts}) < len(parts):
        return "a sentence occurs twice"
    for word, times in Counter(word for word in found if len(word) >= 5).most_common(1):
        if times > repeats:
            return f"{word!r} occurs {times} times"
    commas = sum(word.endswith((",", ";")) for word in text.split())
    if sum(word in _FUNCTION_WORDS for word in found) < len(found) / 10 or commas > len(found) / 3:
        return "it is a list of words, not sentences"
    return None


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"


def outside(name: str, count: float, low: float, high: float) -> str | None:
    """
    >>> outside("words", 7, 3, 5)
    '7 words, not 3 to 5'
    """
    return None if low <= count <= high else f"{count:g} {name}, not {low:g} to {high:g}"


def judge(required: Mapping[str, str | None], forbidden: Mapping[str, str | None] | None = None) -> Verdict:
    """A verdict on what is required and what is forbidden: names, each with what is wrong or None.

    An answer scores by what it fulfils: leaving out what is forbidden earns nothing, doing it costs half.

    >>> judge({"title": None, "total": "missing"}, {"banned words": "cheap"})
    Verdict(score=0.25, why='total: missing; banned words: cheap', readable=True)
    """
    fulfilled, kept = Verdict.parts(required), Verdict.parts(forbidden or {"": None})
    if kept.correct:
        return fulfilled
    return Verdict(fulfilled.score / 2, "; ".join(filter(None, (fulfilled.why, kept.why))))
