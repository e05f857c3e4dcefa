"""Sentences, clauses and stems."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_forge.agents.language import clauses, plain, sentences
from agent_forge.tasks.words import content_words, words


def texts(request: str) -> list[str]:
    return [clause.text for clause in clauses(request)]


@pytest.mark.parametrize(
    ("request_text", "expected"),
    [
        ("Find the brand and understand it", ["Find the brand", "understand it"]),
        ("Buy bread and butter and milk", ["Buy bread and butter and milk"]),
        ("Could you please get the news, then email it", ["get the news", "email it"]),
        ("Search for 'rock and roll, then jazz'", ["Search for 'rock and roll, then jazz'"]),
        ("Open http://a.b/x?then=1 and save it", ["Open http://a.b/x?then=1", "save it"]),
        ("I need to book a room. Finally, cancel the flight.", ["book a room", "cancel the flight"]),
        ("Adjust next Monday's alarm", ["Adjust next Monday's alarm"]),
    ],
)
def test_clauses(request_text: str, expected: list[str]) -> None:
    assert texts(request_text) == expected


def test_what_joins_clauses_is_kept() -> None:
    found = clauses("Get a, then sort b and print c. Finally, send d. After that, stop e")
    assert [clause.joined_by for clause in found] == ["", "then", "and", ".", "then"]


def test_further_verbs_may_begin_a_clause() -> None:
    assert texts("Get the list and frobnicate the first") == ["Get the list and frobnicate the first"]
    assert [c.text for c in clauses("Get the list and frobnicate the first", ["frobnicate"])][
        1
    ] == "frobnicate the first"


def test_sentences_keep_abbreviations_and_decimals() -> None:
    assert sentences("Meet Dr. No at 3.5 km. Then call.") == ["Meet Dr. No at 3.5 km.", "Then call."]


def test_stems_meet() -> None:
    assert content_words("films directed") == content_words("the film's directors") == ["film", "direct"]


def test_plain_strips_only_the_beginning() -> None:
    assert plain("Then, could you please help me find it.") == "find it"
    assert plain("please") == "please"


@given(st.text(max_size=300))
def test_any_text_is_taken(text: str) -> None:
    for clause in clauses(text):
        assert words(clause.text)
        assert clause.joined_by in {"", "and", "then", "."}
