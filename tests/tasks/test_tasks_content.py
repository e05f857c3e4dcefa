"""Content: articles by hand, and every rule of the brief broken in turn."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from mutations import survivors

from agent_forge.tasks import Exercise, family
from agent_forge.tasks.families.content import reading_grade

BRIEF: dict[str, Any] = {
    "place": "market hall",
    "town": "Eastby",
    "headline": [3, 8],
    "sections": [
        {"heading": "Opening", "words": [8, 25], "facts": ["opens on 3 May 2027"]},
        {"heading": "Prices", "words": [8, 25], "facts": ["is free for children under 6"]},
    ],
    "banned": ["great", "world-class"],
    "grade": [-5, 6],
}
OPENING = "In spring, the market hall Opens on 3 May 2027! Come with friends."
PRICES = "The hall is free for children under 6, and cheap for others. Why wait?"


def article(
    opening: str = OPENING, prices: str = PRICES, headline: str = "Market Hall: open at last"
) -> dict[str, Any]:
    sections = [{"text": opening, "heading": "opening"}, {"heading": "PRICES", "text": prices}]
    return {"sections": sections, "headline": headline}


def test_an_unusual_article_that_keeps_the_rules_is_right() -> None:
    for answer in (article(), f"Sure!\n```json\n{json.dumps(article(), indent=1)}\n```"):
        verdict = family("content").check(answer, BRIEF)
        assert verdict.correct, verdict.why


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (article(headline="Open at last"), "headline: 'market hall' is not in it once"),
        (article(headline="Market hall, market hall, market hall"), "headline: 'market hall' is not in it once"),
        (article(headline="The market hall of Eastby is open for you at last"), "headline: 11 words, not 3 to 8"),
        (article(opening=OPENING.replace("3 May", "4 May")), "numbers that are not in the brief: 4"),
        (article(opening=OPENING.replace("3 May", "3rd May")), "'opens on 3 May 2027': it is in no sentence"),
        (article(opening=f"{PRICES} And so on.", prices=OPENING), "Opening, 'opens on"),  # the wrong section
        (article(opening="Opens on 3 May 2027. This is what we all have been told."), "it is in no sentence"),
        (article(opening=f"{OPENING} It opens on 3 May 2027, all say."), "repeated: opens on 3 May 2027"),
        (article(prices=f"{PRICES} Come with friends."), "repeated: a sentence"),
        (article(prices=f"{PRICES} It is great!"), "banned words: great"),
        (article(prices=f"{PRICES} A World-Class hall."), "banned words: world-class"),
        (article(prices=f"{PRICES} Others pay 5 euros."), "numbers that are not in the brief: 5"),
        (article(prices="It is free for children under 6."), "Prices: 7 words, not 8 to 25"),
        (article(prices=PRICES.rstrip("?")), "Prices: 'Why wait' is not a full sentence"),
        (article(prices="Hall, price, hall, ticket, family, is free for children under 6 hall."), "it is a list"),
        (
            article(opening="Internationally acknowledged institutional infrastructure opens on 3 May 2027."),
            "reading grade",
        ),
        ({"headline": "A market hall for all", "sections": []}, "headings: [] instead of ['Opening', 'Prices']"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_named(answer: dict[str, Any], why: str) -> None:
    verdict = family("content").check(answer, BRIEF)
    assert not verdict.correct
    assert why in verdict.why


def test_the_reading_grade_is_the_published_index() -> None:
    """12 words in 2 sentences, with 63 letters."""
    text = "These twelve words make two quite plain sentences. Count each letter, please."
    assert reading_grade(text) == pytest.approx(4.71 * 63 / 12 + 0.5 * 6 - 21.43)


def test_stuffing_scores_below_an_honest_article() -> None:
    stuffed = article(
        opening="Market hall opens on 3 May 2027 market hall opens on 3 May 2027 great market hall", prices="is free"
    )
    honest = article(
        opening="The market hall opens on 3 May 2027. All are welcome.",
        prices="It is cheap. Come and see it for yourself.",
    )
    assert family("content").check(stuffed, BRIEF).score < family("content").check(honest, BRIEF).score < 1
    assert family("content").check({"headline": "", "sections": []}, BRIEF).score == 0


def _break(exercise: Exercise, rng: random.Random) -> Iterator[dict[str, Any]]:
    """The right article with one rule of the brief broken."""
    expected, right = exercise.expected, exercise.solution()
    while True:
        answer = copy.deepcopy(right)
        section = rng.choice(answer["sections"])
        text, wanted = (
            section["text"],
            next(each for each in expected["sections"] if each["heading"] == section["heading"]),
        )
        fact = rng.choice(wanted["facts"])
        word = rng.choice(fact.split())
        changes = [
            (section, "text", text.replace(fact, fact.replace(word, f"{word}s", 1))),
            (section, "text", text.replace(fact, " ".join(fact.split()[:-1]))),
            (section, "text", text.replace(fact, fact.replace(" ", " not ", 1))),
            (section, "text", f"{text} It was 31 years ago."),
            (section, "text", f"{text} {text.split('. ')[0].rstrip('.')}."),
            (section, "text", text.rstrip(".")),
            (section, "text", " ".join(text.split()[:4]) + "."),
            (section, "text", f"{text} {fact.capitalize()}."),
            (section, "text", ""),
            (section, "heading", f"{section['heading']} now"),
            (answer, "headline", answer["headline"].replace(expected["place"], "building")),
            (answer, "headline", f"{answer['headline']}, {expected['place']}"),
            (answer, "headline", answer["headline"] + " and so on" * 4),
            (answer, "sections", answer["sections"][:-1]),
            (answer, "sections", [*answer["sections"], section]),
        ]
        if len(answer["sections"]) > 1:
            changes.append((answer, "sections", answer["sections"][::-1]))
        if expected["banned"]:
            changes.append((section, "text", f"{text} It is {rng.choice(expected['banned'])}."))
        where, key, new = rng.choice(changes)
        where[key] = new
        yield answer


def test_mutants_of_right_articles_are_caught() -> None:
    alive = survivors("content", _break)
    assert len(alive) <= 10, [mutant for _, mutant in alive[:3]]
