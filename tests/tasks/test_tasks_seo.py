"""SEO: pages by hand, and every rule broken in turn."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from mutations import survivors

from agent_forge.tasks import Exercise, family

BRIEF: dict[str, Any] = {
    "keyword": "oak table",
    "title": [15, 45],
    "description": [40, 100],
    "words": [12, 40],
    "mentions": [1, 2],
    "topics": ["Care", "Sizes"],
    "images": ["/a.jpg", "/b.jpg"],
    "canonical": "https://shop.example/oak-table",
    "lang": "en",
    "most": 8,
}
PAGE = """<!doctype html>
<HTML lang=en-GB><head><meta charset=utf-8><title>An Oak  Table &amp; more</title>
<meta content="We make an oak table for you, and it will last." name="Description"/>
<link href='https://shop.example/oak-table' rel=Canonical></head>
<body><!-- oak table oak table oak table oak table oak table oak table oak table -->
<h1>The <em>OAK</em> table</h1>
<img alt="seen from above" src="/b.jpg"><img src="/a.jpg" alt="with six guests"/>
<h2>care</h2><p>Keep the oak table dry.<p>Clean it with a soft cloth.
<h2>Sizes</h2><h3>Large</h3><p>There is one for eight people, too.</p>
</body></HTML>"""
SIMPLE = {**BRIEF, "description": [], "words": [], "topics": [], "images": [], "canonical": "", "lang": ""}


@pytest.mark.parametrize("page", [PAGE, f"Here is the page:\n```html\n{PAGE}\n```\nI hope it helps.", json.dumps(PAGE)])
def test_an_unusual_page_that_keeps_the_rules_is_right(page: str) -> None:
    verdict = family("seo").check(page, BRIEF)
    assert verdict.correct, verdict.why


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("An Oak  Table &amp; more", "Oak table, oak table", "title: 'oak table' 2 times"),
        ("An Oak  Table &amp; more", "An oaken table and more", "title: 'oak table' 0 times"),
        ("An Oak  Table &amp; more", "The oak table", "title: 13 characters, not 15 to 45"),
        ("</title>", "</title><title>Oak table and more</title>", "title: 2 instead of one"),
        ("</h1>", "</h1><h1>Another oak table</h1>", "h1: 2 instead of one"),
        ("<em>OAK</em>", "", "h1: 'oak table' 0 times"),
        ("</em>", "", "tags: </h1> closes nothing"),
        ("<em>", "<![x[<em>", "h1: "),
        ("it will last.", "it will last", "'We make an oak table for you, and it wi…' is not a full sentence"),
        ("We make an oak table for you, and it will last.", "Oak table. Oak table. Oak table for all.", "table' 3"),
        ("<h2>Sizes</h2>", "<h2>Size</h2>", "headings: the h2 headings are ['care', 'size']"),
        ("<h3>Large</h3>", "<h4>Large</h4>", "headings: 'Large' is an h4 after an h2"),
        ('alt="seen from above"', 'alt=""', "images: the alt text of /b.jpg has less than two words"),
        ("seen from above", "with six guests", "images: two have the same alt text"),
        ("/b.jpg", "/c.jpg", "images"),
        ("oak-table'", "oak-tables'", "canonical"),
        ("lang=en-GB", "", "lang"),
        ("lang=en-GB", "lang=enx", "lang"),
        ("Clean it with a soft cloth.", "Keep the oak table dry.", "text: a sentence occurs twice"),
        ("Clean it with a soft cloth.", "Clean oak table furniture, soft oak table cloth.", "in the text, not 1 to 2"),
        ("<p>Clean", "<p style='display: none'>Clean", "hidden: something is hidden"),
        ("seen from above", "oak table oak table oak table oak table oak table", "stuffing: 'oak table' 9 times"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_named(old: str, new: str, why: str) -> None:
    assert old in PAGE
    verdict = family("seo").check(PAGE.replace(old, new), BRIEF)
    assert not verdict.correct
    assert why in verdict.why


def test_text_that_is_not_html_is_unreadable() -> None:
    verdict = family("seo").check("An oak table, title, h1, oak table", BRIEF)
    assert verdict.score == 0
    assert not verdict.readable


def test_stuffing_scores_below_an_honest_page() -> None:
    stuffed = "<title>Oak table</title><h1>Oak table</h1><p>" + "Oak table. " * 20 + "</p>"
    honest = "<title>An oak table and more</title><h1>Oak table</h1><p>It is sturdy.</p>"
    assert family("seo").check(stuffed, SIMPLE).score < family("seo").check(honest, SIMPLE).score == 1


def _break(exercise: Exercise, rng: random.Random) -> Iterator[str]:
    """The right page with one rule of the brief broken."""
    page, expected = exercise.solution(), exercise.expected
    keyword = re.compile(re.escape(expected["keyword"]), re.IGNORECASE)
    changes = [
        (r"<title>.*</title>", ""),
        (r"(<title>.*</title>)", r"\1\1"),
        (r"(<title>).*(</title>)", r"\1" + "x" * rng.randrange(90, 200) + r"\2"),
        (r"<h1>(.*)</h1>", r"<h2>\1</h2>"),
        (r"</h1>", ""),
        (r"(<h1>.*</h1>)", r"\1\1"),
        (r"<body>", "<body hidden>"),
        (r"</title>", "</title><em>"),
        (r"<body>", "<body><div>" + f"{expected['keyword']} " * 12 + "</div>"),
        (r'name="description"', 'name="keywords"'),
        (r'(content=").*?"', r'\1Short."'),
        (r"<p>.*?</p>", ""),
        (r"<p>(\w.*?)</p>", r"<p>\1 \1</p>"),
        (r"<h2>(\w+)</h2>", r"<h2>\1s</h2>"),
        (r"<h2>(\w+)</h2>", r"<h3>\1</h3>"),
        (r'alt="[^"]*"', 'alt=""'),
        (r"<img[^>]*>", ""),
        (r"-front.jpg", "-back.jpg"),
        (r'rel="canonical"', 'rel="next"'),
        (r'(href="https://)', r"\1www."),
        (r'lang="en"', 'lang="de"'),
    ]
    while True:
        pattern, new = rng.choice(changes)
        changed = re.sub(pattern, new, page, count=1)
        if rng.random() < 0.2:  # the keyword is missing where it must be
            tag = rng.choice(("title", "h1"))
            changed = re.sub(f"<{tag}>.*</{tag}>", lambda match: keyword.sub("thing", match[0]), page)
        if changed != page and "<p>" + "</p>" not in changed:
            yield changed


def test_mutants_of_right_pages_are_caught() -> None:
    alive = survivors("seo", _break)
    assert len(alive) <= 10, [mutant for _, mutant in alive[:3]]
