"""Design: published contrasts, screens by hand, and every rule of the brief broken in turn."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import pytest
from mutations import survivors

from agent_forge.tasks import Exercise, family
from agent_forge.tasks.families.design import contrast

BRIEF: dict[str, Any] = {
    "screen": [320, 400],
    "grid": 8,
    "components": ["title", "email", "submit", "cancel"],
    "tap": 44,
    "font": [12, 18],
    "title_font": [24, 32],
    "palette": ["#112233", "#ffffff", "#888888"],
    "above": [["title", "email"]],
    "rows": [["submit", "cancel"]],
    "margin": 16,
    "gap": 8,
}


def part(name: str, x: int, y: int, width: int, height: int, **other: Any) -> dict[str, Any]:
    place = {"fill": "#FFF", "text_color": "#123", "font_size": 14, "height": height, "width": width, "y": y, "x": x}
    return place | {"id": name} | other


TITLE = part("title", 16, 16, 288, 32, font_size=24, text_color="#888888")  # large text may have less contrast: 3.54
EMAIL, SUBMIT, CANCEL = (
    part("email", 16, 56, 288, 48),
    part("submit", 16, 336, 136, 48),
    part("cancel", 168, 336, 136, 48),
)


@pytest.mark.parametrize(
    ("one", "other", "ratio"),
    [("#000000", "#ffffff", 21.0), ("#777777", "#ffffff", 4.48), ("#767676", "#fff", 4.54), ("#f00", "#ffffff", 4.0),
     ("#0000ff", "#ffffff", 8.59), ("#abcdef", "#abcdef", 1.0)],
)  # fmt: skip
def test_contrast_is_as_published(one: str, other: str, ratio: float) -> None:
    assert contrast(one, other) == pytest.approx(ratio, abs=0.005)
    assert contrast(one, other) == contrast(other, one)


def test_an_unusual_screen_that_keeps_the_rules_is_right() -> None:
    verdict = family("design").check({"components": [CANCEL, TITLE, SUBMIT, EMAIL]}, BRIEF)
    assert verdict.correct, verdict.why


@pytest.mark.parametrize(
    ("components", "why"),
    [
        ([TITLE, EMAIL, SUBMIT], "cancel, place: it is missing"),
        ([TITLE, EMAIL, SUBMIT, CANCEL, EMAIL], "not in the brief: email"),
        ([TITLE, EMAIL, SUBMIT, CANCEL, part("help", 16, 160, 48, 48)], "not in the brief: help"),
        ([TITLE, EMAIL | {"x": 20}, SUBMIT, CANCEL], "email, place: x is not a multiple of 8"),
        ([TITLE, EMAIL | {"x": 24}, SUBMIT, CANCEL], "email, place: it is not within the screen, 16 pixels"),
        ([TITLE | {"y": 8}, EMAIL, SUBMIT, CANCEL], "title, place: it is not within the screen"),
        ([TITLE, EMAIL | {"height": 40}, SUBMIT, CANCEL], "email, size: it is less than 44 pixels"),
        ([TITLE | {"height": 16}, EMAIL, SUBMIT, CANCEL], "title, size: it is less than 24 pixels"),
        ([TITLE, EMAIL | {"y": 48}, SUBMIT, CANCEL], "less than 8 pixels between: title and email"),
        ([TITLE, EMAIL | {"y": 24}, SUBMIT, CANCEL], "title above email: it is not"),
        ([TITLE, EMAIL, SUBMIT, CANCEL | {"y": 328}], "submit beside cancel: they do not have the same y"),
        ([TITLE, EMAIL, SUBMIT | {"x": 168}, CANCEL | {"x": 16}], "submit beside cancel: submit is not to the left"),
        ([TITLE | {"font_size": 20}, EMAIL, SUBMIT, CANCEL], "title, text: 20 pixels of font_size, not 24 to 32"),
        ([TITLE, EMAIL | {"text_color": "#888888"}, SUBMIT, CANCEL], "email, text: a contrast of 3.54 instead of 4.5"),
        ([TITLE, EMAIL | {"text_color": "#000000"}, SUBMIT, CANCEL], "email, text: #000000 is not in the palette"),
        ([TITLE, EMAIL, SUBMIT | {"fill": "white"}, CANCEL], "schema"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_named(components: list[dict[str, Any]], why: str) -> None:
    verdict = family("design").check({"components": components}, BRIEF)
    assert not verdict.correct
    assert why in verdict.why


def test_an_empty_screen_earns_nothing() -> None:
    assert family("design").check({"components": []}, BRIEF).score < 1e-9


def _break(exercise: Exercise, rng: random.Random) -> Iterator[dict[str, Any]]:
    right, expected = exercise.solution(), exercise.expected
    width, height = expected["screen"]
    while True:
        changed = copy.deepcopy(right)
        parts = changed["components"]
        one, other = rng.choice(parts), rng.choice(parts)
        key = rng.choice(("x", "y", "width", "height"))
        title = one["id"] == "title"
        changes: list[dict[str, Any]] = [
            {key: one[key] + 1},
            {key: one[key] + expected["grid"] - 1},
            {"x": width // expected["grid"] * expected["grid"]},
            {"y": height // expected["grid"] * expected["grid"]},
            {"width": one["width"] + width // expected["grid"] * expected["grid"]},
            {rng.choice(("width", "height")): 0},
            {"font_size": expected["title_font" if title else "font"][1] + 1},
            {"font_size": expected["title_font" if title else "font"][0] - 1},
            {"font_size": expected["font" if title else "title_font"][0]},
            {"text_color": one["fill"]},
            {"fill": one["text_color"]},
            {"text_color": f"{one['text_color']}0"},
        ]
        if other is not one:
            changes += [{"id": other["id"]}, {"x": other["x"], "y": other["y"]}]
        kind = rng.random()
        if kind < 0.1:
            parts.remove(one)
        elif kind < 0.2:
            parts.append(dict(one))
        else:
            one.update(rng.choice(changes))
        yield changed


def test_mutants_of_right_screens_are_caught() -> None:
    alive = survivors("design", _break)
    assert len(alive) <= 10, [mutant for _, mutant in alive[:3]]
