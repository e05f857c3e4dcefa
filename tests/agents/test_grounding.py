"""What a text mentions: a table of forms, agreement with an independent reading of numbers, and linear time."""

from __future__ import annotations

import sys
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_forge.agents.grounding import Mentions, as_number, grounded, listed_values

TODAY = date(2026, 11, 16)  # a Monday


@pytest.mark.parametrize(
    ("text", "said", "unsaid"),
    [
        ("an 8 % fee", [8, 0.08], [80, 800]),
        ("two dozen eggs", [2, 24], [12]),
        ("two hundred and five", [205], [200, 5]),
        ("twenty-one guests", [21], [20]),
        ("three thousand two hundred", [3200], [3000]),
        ("1,250 rows", [1250], [1, 250]),
        ("-3.5 degrees", [-3.5], [3.5]),
        ("2.5 million people", [2.5, 2_500_000], [2_000_000]),
        ("15k users", [15, 15_000], [1500]),
        ("3/4 of it", [0.75], []),
        ("1e6 steps", [1_000_000], []),
        ("twice a day", [2], [1]),
        ("the third one", [3], [2]),
        ("no number here", [], [0, 1]),
        ("half past", [0.5], [30]),
    ],
)
def test_numbers(text: str, said: list[float], unsaid: list[float]) -> None:
    mentions = Mentions(text)
    assert [value for value in said if not mentions.counts(value)] == []
    assert [value for value in unsaid if mentions.counts(value)] == []


@pytest.mark.parametrize(
    ("text", "said", "unsaid"),
    [
        ("Fly on March 5th, 2024", ["2024-03-05", "March 5th, 2024", "03-05"], ["2024-05-03", "2024-03-06"]),
        ("on 5 March 2024", ["2024-03-05"], ["2024-03-04"]),
        ("due 3/4/2025", ["2025-03-04", "2025-04-03"], ["2025-03-05"]),
        ("in March 2024", ["2024-03"], ["2024-04"]),
        ("at 9:30 am", ["09:30"], ["21:30"]),
        ("at 9 p.m.", ["21:00"], ["09:00"]),
        ("at noon", ["12:00"], ["00:00"]),
        ("pay in euros", ["EUR"], ["USD"]),
        ("in San Francisco, CA!", ["San Francisco, CA", "san francisco"], ["Francisco San", "San Fran"]),
        ("in São Paulo", ["São Paulo"], ["Sao Paulo"]),
    ],
)
def test_strings(text: str, said: list[str], unsaid: list[str]) -> None:
    mentions = Mentions(text)
    assert [value for value in said if not mentions.says(value)] == []
    assert [value for value in unsaid if mentions.says(value)] == []


def test_relative_days_need_a_today() -> None:
    assert Mentions("tomorrow", TODAY).says("2026-11-17")
    assert not Mentions("tomorrow").says("2026-11-17")
    assert Mentions("tomorrow").says("tomorrow")
    assert {"2026-11-16", "2026-11-23"} <= set(Mentions("on Monday", TODAY).forms)


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        ("Oslo", {}, True),
        ("Rome", {}, False),
        ("Rome", {"enum": ["Rome"]}, True),
        ("Rome", {"default": "Rome"}, True),
        ("Rome", {"anyOf": [{"const": "Rome"}, {"type": "null"}]}, True),
        (3, {}, True),
        (4, {}, False),
        (True, {}, True),
        (None, {}, True),
        (["Oslo", 3], {"items": {}}, True),
        (["Oslo", "Rome"], {"items": {}}, False),
        ({"city": "Oslo", "unit": "C"}, {"properties": {"unit": {"enum": ["C"]}}}, True),
        ({"city": "Oslo", "unit": "K"}, {"properties": {"unit": {"enum": ["C"]}}}, False),
    ],
)
def test_grounded(value: Any, schema: dict[str, Any], expected: bool) -> None:
    assert grounded(value, schema, [Mentions("three days"), Mentions("in Oslo")]) is expected


def test_listed_values_of_all_variants() -> None:
    schema = {"enum": [1], "default": 2, "oneOf": [{"const": 3}, {"allOf": [{"enum": [4]}]}]}
    assert listed_values(schema) == [1, 2, 3, 4]


@given(st.integers(0, 999_999))
def test_a_number_in_words_is_the_number(number: int) -> None:
    assert Mentions(f"about {in_words(number)} of them").counts(number)


@given(st.integers(-(10**12), 10**12))
def test_a_number_in_digits_is_the_number_with_or_without_commas(number: int) -> None:
    assert Mentions(f"exactly {number} of them").counts(number)
    assert Mentions(f"exactly {number:,} of them").counts(number)
    assert as_number(f"{number:,}") == number


@given(st.text(max_size=60), st.text(max_size=60))
def test_every_part_between_blanks_is_said(left: str, right: str) -> None:
    """Whatever the text: a word of it is grounded in it."""
    mentions = Mentions(f"{left} harbour {right}")
    assert mentions.says("harbour")
    assert grounded("harbour", {}, [mentions])


SHAPES = [
    "1,",
    "1.",
    "one ",
    "twenty-",
    "may 1 ",
    "1 may ",
    "12:",
    "1-1-",
    "-",
    "1e",
    "a ",
    " ",
    "1 %",
    "euro,",
    "1/",
    "1:1 a",
    "1st of ",
]


@pytest.mark.parametrize("piece", SHAPES)
def test_time_is_linear(piece: str) -> None:
    """The work of the interpreter for 4 times the text is at most about 4 times the work."""

    def work(size: int) -> int:
        text = (piece * size)[:size]
        counted = 0

        def count(frame: Any, event: str, argument: Any) -> Any:
            nonlocal counted
            counted += 1
            return count

        before = sys.gettrace()
        sys.settrace(count)
        try:
            mentions = Mentions(text, TODAY)
            _ = mentions.numbers, mentions.forms, mentions.words
        finally:
            sys.settrace(before)
        return counted

    assert work(2_000) <= 6 * work(500) + 500
    mentions = Mentions((piece * 30_000)[:30_000], TODAY)  # regular expressions do not count steps: this must just end
    assert mentions.numbers is not None
    assert mentions.forms is not None


UNITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
         "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")  # fmt: skip
TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def in_words(number: int) -> str:
    """An independent writer of numbers."""
    if number < 20:
        return UNITS[number]
    if number < 100:
        return TENS[number // 10] + (f"-{UNITS[number % 10]}" if number % 10 else "")
    if number < 1000:
        rest = f" and {in_words(number % 100)}" if number % 100 else ""
        return f"{UNITS[number // 100]} hundred{rest}"
    rest = f" {in_words(number % 1000)}" if number % 1000 else ""
    return f"{in_words(number // 1000)} thousand{rest}"
