"""Where a value comes from: what a text mentions, in the forms in which a tool may want it.

A call is grounded when each of its values was said, is one that the schema lists, or is an earlier result. "8 %"
mentions 8 and 0.08, "two dozen" 24, "March 5th, 2024" 2024-03-05, "half past" nothing. Every pattern is linear
in the text.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property
from typing import Any

UNITS = {
    word: number
    for number, word in enumerate(
        [
            "zero",
            "one",
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
            "thirteen",
            "fourteen",
            "fifteen",
            "sixteen",
            "seventeen",
            "eighteen",
            "nineteen",
        ]
    )
}
TENS = {
    word: 10 * n
    for n, word in enumerate(["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], 2)
}
SCALES = {"hundred": 100, "thousand": 1_000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
ORDINALS = {
    word: number
    for number, word in enumerate(
        [
            "first",
            "second",
            "third",
            "fourth",
            "fifth",
            "sixth",
            "seventh",
            "eighth",
            "ninth",
            "tenth",
            "eleventh",
            "twelfth",
        ],
        1,
    )
}
# Words that stand for a number without being one.
COUNTS = {
    "once": 1,
    "single": 1,
    "twice": 2,
    "couple": 2,
    "pair": 2,
    "both": 2,
    "double": 2,
    "triple": 3,
    "dozen": 12,
    "half": 0.5,
    "quarter": 0.25,
    "decade": 10,
    "century": 100,
}
SUFFIXES = {"k": 1_000, "m": 10**6, "b": 10**9, "bn": 10**9, "mn": 10**6}
MONTHS = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
]
MONTH = {name[:length]: n for n, name in enumerate(MONTHS, 1) for length in {3, len(name)}} | {"sept": 9}
WEEKDAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
CURRENCIES = {
    "USD": "dollar dollars us-dollar us-dollars",
    "EUR": "euro euros",
    "GBP": "pound pounds sterling",
    "JPY": "yen",
    "CNY": "yuan renminbi rmb",
    "INR": "rupee rupees",
    "CHF": "franc francs",
    "KRW": "won",
    "BRL": "real reais",
    "RUB": "rouble roubles ruble rubles",
    "SEK": "krona kronor",
    "NOK": "krone kroner",
    "MXN": "peso pesos",
}

_NUMBER = re.compile(
    r"(?<![\w.])(?P<sign>(?<![\w)])[-−+])?(?P<digits>\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?P<part>\.\d+)?(?P<power>[eE][-+]?\d{1,3}(?!\w))?"
)
_AFTER = re.compile(
    r"\s?(%|percent|per cent|[kKmMbB]n?\b|hundred|thousand|million|billion|trillion)|\s?/\s?(\d{1,6})\b"
)
_NAMES = "|".join(sorted(MONTH, key=len, reverse=True))
_MONTH_FIRST = re.compile(rf"\b({_NAMES})\b\.? +(\d{{1,2}})(?:st|nd|rd|th)?(?:,? +(\d{{4}}))?\b", re.IGNORECASE)
_DAY_FIRST = re.compile(rf"\b(\d{{1,2}})(?:st|nd|rd|th)?(?: +of)? +({_NAMES})\b\.?(?:,? +(\d{{4}}))?\b", re.IGNORECASE)
_MONTH_YEAR = re.compile(rf"\b({_NAMES})\b\.?,? +(\d{{4}})\b", re.IGNORECASE)
_ISO = re.compile(r"\b(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})\b")
_SLASHED = re.compile(r"\b(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})\b")
_CLOCK = re.compile(
    r"\b(\d{1,2})(?:[:.](\d{2}))? ?([ap])\.?m\b|\b(\d{1,2}):(\d{2})\b|\b(noon|midnight)\b", re.IGNORECASE
)
_WORD = re.compile(r"[^\W_]+")
_SPOKEN = re.compile(r"[^\W_]+|[,;.:]")


@dataclass(frozen=True)
class Mentions:
    """What a text mentions. `today` resolves "tomorrow" and the like; without it they stay words."""

    text: str
    today: date | None = None

    @cached_property
    def numbers(self) -> tuple[float, ...]:
        """Every number that is said, in order, each once; a per cent value also as a fraction."""
        return tuple(dict.fromkeys([*_numerals(self.text), *_number_words(self.text)]))

    @cached_property
    def times(self) -> dict[str, int]:
        """How often each number is said, by the number as JSON writes it.

        >>> Mentions("2 + 2 = 4, two thirds").times
        {'2': 3, '4': 1}
        """
        said = Counter(json.dumps(number) for number in [*_numerals(self.text), *_number_words(self.text)])
        return dict(said)

    @cached_property
    def forms(self) -> tuple[str, ...]:
        """Normalised forms that do not stand in the text: ISO dates, 24-hour times, currency codes."""
        forms = [*_dates(self.text), *_relative_dates(self.text, self.today), *_times(self.text)]
        tokens = set(_WORD.findall(self.text.lower()))
        forms += [code for code, names in CURRENCIES.items() if tokens & set(names.split())]
        return tuple(form for form in dict.fromkeys(forms) if form not in self.text)

    @cached_property
    def words(self) -> str:
        """The text as words between single spaces, for comparing without case and punctuation."""
        return plain(self.text)

    def says(self, value: str) -> bool:
        """Whether a string is a part of the text, up to case and punctuation, or a normalised form of one."""
        words = plain(value)
        if value in self.forms or (words.strip() and words in self.words):
            return True
        number = as_number(value)
        return number is not None and self.counts(number)

    def counts(self, value: float) -> bool:
        """Whether a number is said."""
        return any(math.isclose(value, number, rel_tol=1e-9) for number in self.numbers)


def plain(text: str) -> str:
    """
    >>> plain("San Francisco, CA!")
    ' san francisco ca '
    """
    return f" {' '.join(_WORD.findall(text.lower()))} "


def as_number(text: str) -> float | None:
    """The number that a text is as a whole, if it is one."""
    try:
        value = float(text.replace(",", "").replace("−", "-"))
    except ValueError:
        return None
    return _whole(value) if math.isfinite(value) else None


def grounded(value: Any, schema: Mapping[str, Any], sources: Sequence[Mentions]) -> bool:
    """Whether a value is one that the schema lists, a boolean, or said in one of the sources."""
    if value is None or isinstance(value, bool) or value in listed_values(schema):
        return True
    if isinstance(value, str):
        return not value.strip() or any(source.says(value) for source in sources)
    if isinstance(value, (int, float)):
        return any(source.counts(value) for source in sources)
    if any(
        grounded(value, variant, sources)
        for key in ("anyOf", "oneOf", "allOf")
        for variant in schema.get(key) or ()
        if isinstance(variant, Mapping)
    ):
        return True
    if isinstance(value, Mapping):
        inner = schema.get("properties") or {}
        return all(grounded(each, inner.get(name) or {}, sources) for name, each in value.items())
    items = schema.get("items")
    return all(grounded(each, items if isinstance(items, Mapping) else {}, sources) for each in value)


def listed_values(schema: Mapping[str, Any]) -> list[Any]:
    """The values that a schema names itself: its enumeration, its constant, its default, and those of its variants."""
    values = [*(schema.get("enum") or ()), *(schema[key] for key in ("const", "default") if key in schema)]
    for key in ("anyOf", "oneOf", "allOf"):
        for variant in schema.get(key) or ():
            values += listed_values(variant) if isinstance(variant, Mapping) else []
    return values


def _whole(value: float) -> float:
    """
    >>> _whole(5.0), _whole(0.5)
    (5, 0.5)
    """
    return int(value) if value == int(value) and abs(value) < 2**53 else value


def _numerals(text: str) -> Iterator[float]:
    for match in _NUMBER.finditer(text):
        if not match["digits"] and not match["part"]:
            continue
        value = float(f"{match['digits'] or ''}{match['part'] or ''}{match['power'] or ''}".replace(",", ""))
        if not math.isfinite(value):
            continue
        value = -value if match["sign"] in ("-", "−") else value
        yield _whole(value)
        after = _AFTER.match(text, match.end())
        if after is None:
            continue
        if after[2]:
            if int(after[2]):
                yield _whole(value / int(after[2]))
        elif after[1] == "%" or after[1].startswith("per"):
            yield _whole(round(value / 100, 12))
        else:
            unit = after[1].lower()
            yield _whole(value * (SCALES.get(unit) or SUFFIXES[unit]))


def _number_words(text: str) -> Iterator[float]:
    """Number words, joined as they are spoken: "two hundred and five", "twenty-one", "two dozen"."""
    total: float = 0
    group: float | None = None
    for word in [*_SPOKEN.findall(text.lower()), ""]:
        if word in UNITS or word in TENS or word in ORDINALS:
            value = UNITS.get(word, TENS.get(word, ORDINALS.get(word, 0)))
            if group is not None and (group or total) and group % 10 == 0 and value < (10 if group % 100 else 100):
                group += value
            else:
                if group is not None:
                    yield _whole(total + group)
                total, group = 0, value
        elif word == "hundred" and group is not None:
            group *= 100
        elif word in SCALES and group is not None:
            total, group = total + group * SCALES[word], 0
        elif word in ("and", "a") and group is not None:
            continue
        else:
            if group is not None:
                yield _whole(total + group)
                if word == "dozen":
                    yield _whole((total + group) * 12)
            elif word in COUNTS:
                yield COUNTS[word]
            elif word in SCALES:
                yield SCALES[word]
            elif word in MONTH and word != "may":
                yield MONTH[word]
            total, group = 0, None


def _dates(text: str) -> Iterator[str]:
    for match in _MONTH_FIRST.finditer(text):
        yield from _date_forms(match[3], MONTH[match[1].lower()], match[2])
    for match in _DAY_FIRST.finditer(text):
        yield from _date_forms(match[3], MONTH[match[2].lower()], match[1])
    for match in _MONTH_YEAR.finditer(text):
        yield f"{match[2]}-{MONTH[match[1].lower()]:02}"
    for match in _ISO.finditer(text):
        yield from _date_forms(match[1], int(match[2]), match[3])
    for match in _SLASHED.finditer(text):
        yield from _date_forms(match[3], int(match[1]), match[2])  # as written in America …
        yield from _date_forms(match[3], int(match[2]), match[1])  # … and elsewhere


def _date_forms(year: str | None, month: int, day: str) -> Iterator[str]:
    if not 1 <= month <= 12 or not 1 <= int(day) <= 31:
        return
    if year is not None:
        yield f"{year}-{month:02}-{int(day):02}"
        yield f"{month:02}/{int(day):02}/{year}"
        yield f"{int(day):02}/{month:02}/{year}"
    yield f"{month:02}-{int(day):02}"


def _relative_dates(text: str, today: date | None) -> Iterator[str]:
    if today is None:
        return
    tokens = _WORD.findall(text.lower())
    for word, days in (("today", 0), ("tonight", 0), ("tomorrow", 1), ("yesterday", -1)):
        if word in tokens:
            yield (today + timedelta(days)).isoformat()
    for number, name in enumerate(WEEKDAYS):
        if name in tokens:  # the next one, today's own name meaning the one in a week too
            ahead = (number - today.weekday()) % 7
            yield (today + timedelta(ahead)).isoformat()
            yield (today + timedelta(ahead or 7)).isoformat()


def _times(text: str) -> Iterator[str]:
    for match in _CLOCK.finditer(text):
        if match[6]:
            yield "12:00" if match[6].lower() == "noon" else "00:00"
        elif match[3]:
            hour, minute = int(match[1]), int(match[2] or 0)
            if 1 <= hour <= 12 and minute < 60:
                yield f"{hour % 12 + (12 if match[3].lower() == 'p' else 0):02}:{minute:02}"
        elif int(match[4]) < 24 and int(match[5]) < 60:
            yield f"{int(match[4]):02}:{match[5]}"
