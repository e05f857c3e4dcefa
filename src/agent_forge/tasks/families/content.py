"""Content: an article to a brief: headings, lengths, facts word for word, banned words and how hard it is to read."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent_forge.tasks.constraints import judge, occurrences, outside, prose_fault, same, sentences, words
from agent_forge.tasks.family import Draft, Verdict, task_family

_PLACES = ("library", "market hall", "swimming pool", "museum", "cinema", "sports centre", "theatre", "youth club")
_TOWNS = ("Marlow", "Eastby", "Langford", "Port Allen", "Wexcombe", "Thornhill")
# What can be said under each heading, with the bounds of the number that is #.
_FACTS: dict[str, tuple[tuple[str, int, int], ...]] = {
    "Opening": (
        ("opens on # May 2027", 2, 30), ("is open until #.30 in the evening", 6, 11),
        ("is closed for # days in August", 3, 15),
    ),
    "Prices": (
        ("costs # euros a month", 8, 40), ("is free for children under #", 5, 15), ("sells tickets from # euros", 3, 12)
    ),
    "The place": (("has # seats", 40, 300), ("covers # square metres", 200, 950), ("was built in # months", 9, 40)),
    "Getting there": (
        ("is # minutes from the station", 3, 20), ("is served by bus #", 10, 99), ("has room for # bicycles", 20, 90)
    ),
    "Programme": (
        ("offers # courses a week", 3, 20), ("hosts # concerts a year", 5, 40), ("invites # guests every month", 2, 9)
    ),
}  # fmt: skip
_BANNED = ("amazing", "best", "unique", "exciting", "great", "perfect", "very", "really", "world-class", "modern")
SCHEMA = {
    "type": "object",
    "properties": {
        "headline": {"type": "string", "maxLength": 120},
        "sections": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "heading": {"type": "string", "maxLength": 40},
                    "text": {"type": "string", "maxLength": 700},
                },
                "required": ["heading", "text"],
                "additionalProperties": False,
            },
            "maxItems": 4,
        },
    },
    "required": ["headline", "sections"],
    "additionalProperties": False,
}


def reading_grade(text: str) -> float:
    """The automated readability index: 4.71 letters and digits per word + 0.5 words per sentence - 21.43.

    >>> round(reading_grade("We meet at noon. Bring some bread and a cup."), 2)
    -3.39
    """
    count = len(text.split())
    characters = sum(character.isalnum() for character in text)
    return 4.71 * characters / count + 0.5 * count / len(sentences(text)) - 21.43


def check(answer: Mapping[str, Any], expected: Mapping[str, Any]) -> Verdict:
    """What the brief requires, piece by piece; banned words and numbers that it does not contain halve the score."""
    wanted, texts = expected["sections"], [section["text"] for section in answer["sections"]]
    whole = " ".join(texts)
    headings = [section["heading"] for section in answer["sections"]]
    in_order = len(headings) == len(wanted) and all(
        same(one, each["heading"]) for one, each in zip(headings, wanted, strict=True)
    )
    faults = {
        "headline": outside("words", len(answer["headline"].split()), *expected["headline"])
        or (
            None
            if occurrences(expected["place"], answer["headline"]) == 1
            else f"{expected['place']!r} is not in it once"
        ),
        "headings": None if in_order else f"{headings} instead of {[section['heading'] for section in wanted]}",
    }
    for section in wanted:
        found = [each["text"] for each in answer["sections"] if same(each["heading"], section["heading"])]
        faults |= _section_faults(found[0] if len(found) == 1 else "", section)
    if expected["grade"]:
        grade = reading_grade(whole) if whole.split() else 99.0
        faults["reading grade"] = outside("is the grade", round(grade, 2), *expected["grade"])
    return judge(faults, dict(_violations(answer["headline"], whole, expected)))


def _section_faults(text: str, section: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    name, parts = section["heading"], sentences(text)
    yield name, outside("words", len(text.split()), *section["words"]) or prose_fault(text)
    for fact in section["facts"]:
        # Inside a sentence: the fact alone is a quotation, not a statement.
        stated = any(occurrences(fact, part) and len(words(part)) >= len(words(fact)) + 2 for part in parts)
        yield f"{name}, {fact!r}", None if stated else "it is in no sentence of this section"


def _violations(headline: str, whole: str, expected: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    facts = " ".join(fact for section in expected["sections"] for fact in section["facts"])
    banned = [word for word in expected["banned"] if occurrences(word, f"{headline} {whole}")]
    yield "banned words", ", ".join(banned) or None
    invented = sorted(set(re.findall(r"\d+", f"{headline} {whole}")) - set(re.findall(r"\d+", facts)))
    yield "numbers that are not in the brief", ", ".join(invented) or None
    twice = [fact for section in expected["sections"] for fact in section["facts"] if occurrences(fact, whole) > 1]
    parts = [part.casefold() for part in sentences(whole)]
    yield "repeated", ", ".join(twice) or ("a sentence" if len(set(parts)) < len(parts) else None)


_PLAIN = (
    "You can come and see it for yourself.", "Bring a friend if you like.", "The door is wide, and there are no steps.",
    "Ask at the desk if you need help.", "Most of us live close by.", "We will be glad to show you the rooms.",
    "There is tea for all who come.", "Some of the work was done by people from the town.", "It is warm in there.",
    "You do not have to book.", "A small team will look after it.", "Many of you have asked for this.",
)  # fmt: skip
_RICH = (
    "The surrounding neighbourhood has supported the project with donations and volunteers since the beginning.",
    "Visitors with questions about the facilities can always contact the information desk beside the entrance.",
    "Several local organisations have already announced that they will cooperate with the new management.",
    "Additional information for families and schools is available from the municipal administration.",
    "Experienced employees are responsible for the building and will gladly accompany interested visitors.",
    "The council considers further improvements and welcomes suggestions from all inhabitants.",
)


def solve(expected: Mapping[str, Any]) -> dict[str, Any]:
    """An article with as many long sentences as the reading grade asks for."""
    for rich in range(len(_RICH) + 1):
        article = _article(expected, [*_RICH[:rich], *_PLAIN])
        if check(article, expected).correct:
            break
    return article


def _article(expected: Mapping[str, Any], fillers: Sequence[str]) -> dict[str, Any]:
    left, sections, start = list(fillers), [], f"The new {expected['place']}"
    for section in expected["sections"]:
        parts = [f"It {fact}, too." if place else f"{start} {fact}." for place, fact in enumerate(section["facts"])]
        for filler in list(left):
            length = sum(len(part.split()) for part in parts)
            if length < section["words"][0] and length + len(filler.split()) <= section["words"][1]:
                parts.append(filler)
                left.remove(filler)
        sections.append({"heading": section["heading"], "text": " ".join(parts)})
    return {"headline": f"A new {expected['place']} for {expected['town']}", "sections": sections}


@task_family("content", check=check, solve=solve, schema=SCHEMA)
def content(rng: random.Random, level: float) -> Draft:
    """More sections with more facts, banned words and a reading grade as the level rises."""
    sections = []
    for heading in rng.sample(list(_FACTS), 1 + round(2 * level)):
        low = rng.randrange(5, 10) + round(15 * level)
        sections.append(
            {
                "heading": heading,
                "words": [low, low + 25 if level > 0.2 else 60],
                "facts": [
                    fact.replace("#", str(rng.randrange(least, most)))
                    for fact, least, most in rng.sample(_FACTS[heading], 1 + (level > 0.6))
                ],
            }
        )
    low = rng.randrange(1, 4)
    grade = [low, low + 5] if level > 0.75 else [-5, rng.randrange(7, 11)]
    expected = {
        "place": rng.choice(_PLACES),
        "town": rng.choice(_TOWNS),
        "headline": [3, 12 - round(4 * level)],
        "sections": sections,
        "banned": rng.sample(_BANNED, round(6 * level)),
        "grade": grade if level > 0.45 else [],
    }
    return Draft(_prompt(expected), expected)


def _prompt(expected: Mapping[str, Any]) -> str:
    lines = []
    for section in expected["sections"]:
        facts = " and ".join(f'"{fact}"' for fact in section["facts"])
        low, high = section["words"]
        lines.append(f'- "{section["heading"]}", {low} to {high} words. Say, word for word and once, that it {facts}.')
    rules = ["Write full sentences, none twice, and no word of five letters or more over five times in a section."]
    rules.append("State the facts inside sentences, and use no other numbers in digits.")
    if expected["banned"]:
        rules.append(f"Banned words: {', '.join(expected['banned'])}.")
    if expected["grade"]:
        low, high = expected["grade"]
        bounds = f"between {low} and {high}" if low >= 0 else f"at most {high}"
        rules.append(
            f"The reading grade of all section texts together must be {bounds}: 4.71 x (letters and digits / words) "
            "+ 0.5 x (words / sentences) - 21.43."
        )
    listed, ruled = "\n".join(lines), "\n".join(rules)
    place, (low, high) = expected["place"], expected["headline"]
    which = "these sections, in this order" if len(lines) > 1 else "this section"
    return (
        f"Write an article about the new {place} in {expected['town']}: a headline of {low} to {high} words that "
        f'contains "{place}" once, and {which} (heading and text):\n{listed}\n{ruled}'
    )
