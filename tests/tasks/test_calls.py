"""Are these the right calls? By hand-made tables, and by brute force over all ways to pair calls."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from many import in_one_test

from agent_forge.tasks.calls import accepted_calls, f1, loose, score_calls


def call(tool: str, after: list[int] | None = None, **args: Any) -> dict[str, Any]:
    return {"tool": tool, "args": args} | ({"after": after} if after else {})


def ref(number: int, field: str | None = None) -> dict[str, Any]:
    return {"ref": number, "field": field}


FIND, BOOK = call("find", city="Oslo", stars=4), call("book", id=ref(1, "id"))


@pytest.mark.parametrize(
    ("actual", "right", "tools", "arguments", "edges"),
    [
        ([FIND, BOOK], True, 1, 1, 1),
        ([call("find", stars=4.0, city="oslo"), BOOK], True, 1, 1, 1),  # order of arguments, case, 4 and 4.0
        ([call("find", city="Oslo", stars="4"), BOOK], True, 1, 1, 1),
        ([FIND, call("book", id=ref(1, "name"))], False, 1, 2 * 2 / 6, 1),  # another field
        ([FIND, call("book", id=ref(1))], False, 1, 2 * 2 / 6, 1),
        ([FIND, call("book", id="1")], False, 1, 2 * 2 / 6, 0),
        ([FIND], False, 2 / 3, 2 * 2 / 5, 0),
        ([call("find", city="Rome", stars=4), BOOK], False, 1, 2 * 1 / 6, 1),  # the reference is to a wrong call
        ([call("find", city="Oslo"), BOOK], False, 1, 2 * 1 / 5, 1),
        ([FIND, BOOK, BOOK], False, 4 / 5, 2 * 3 / 7, 2 / 3),
        ([], False, 0, 0, 0),
        ([call("book", id=ref(2, "id")), FIND], False, 1, 2 * 2 / 6, 1),  # nothing can be used before it is there
        ([FIND, call("book", id=ref(7, "id"))], False, 1, 2 * 2 / 6, 0),
    ],
)
def test_a_plan_of_two_calls(
    actual: list[dict[str, Any]], right: bool, tools: float, arguments: float, edges: float
) -> None:
    score = score_calls([FIND, BOOK], actual)
    assert score.right == right
    assert (score.tools, score.arguments, score.edges) == pytest.approx((tools, arguments, edges))


def test_references_count_by_what_they_refer_to() -> None:
    """Two independent searches may come in either order; their numbers then change."""
    oslo, rome = call("find", city="Oslo"), call("find", city="Rome")
    expected = [oslo, rome, call("book", id=ref(2, "id")), call("mail", text=ref(1))]
    swapped = [rome, oslo, call("mail", text=ref(2)), call("book", id=ref(1, "id"))]
    assert score_calls(expected, swapped).right
    swapped[3] = call("book", id=ref(2, "id"))
    assert not score_calls(expected, swapped).right


def test_waiting_is_a_part_of_a_plan() -> None:
    expected = [call("a"), call("b", after=[1])]
    assert score_calls(expected, [call("a"), call("b", after=[1])]).right
    alone = score_calls(expected, [call("a"), call("b")])
    assert not alone.right
    assert (alone.tools, alone.edges) == (1, 0)


def test_no_calls_are_right_where_none_are_wanted() -> None:
    assert score_calls([], []).right
    assert not score_calls([], [FIND]).right


def test_lists_keep_their_order_and_objects_do_not() -> None:
    assert not score_calls([call("f", x=[1, 2])], [call("f", x=[2, 1])]).right
    assert score_calls([call("f", x=[1, {"a": 1, "b": "X"}])], [call("f", x=[1.0, {"b": "x", "a": "1"}])]).right


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("San Francisco, CA", "san francisco ca", True),
        ("2024-03-05", "2024/03/05", True),
        (5, 5.0, True),
        (5, "5", True),
        (0.5, "0.50", True),
        (True, "true", True),
        (True, 1, False),
        ("Oslo", "Rome", False),
        ("", None, False),
        (float("inf"), "inf", True),
        (10**400, "x", False),
    ],
)
def test_values_are_compared_loosely(one: Any, other: Any, same: bool) -> None:
    assert (loose(one) == loose(other)) == same


@pytest.mark.parametrize("seed", range(20))
def test_f1_is_the_best_pairing_of_two_bags(seed: int) -> None:
    rng = random.Random(seed)
    one, other = rng.choices("abc", k=rng.randint(0, 5)), rng.choices("abc", k=rng.randint(0, 5))
    shorter, longer = sorted((one, other), key=len)
    hits = max(
        sum(a == b for a, b in zip(picked, shorter, strict=True))
        for picked in itertools.permutations(longer, len(shorter))
    )
    assert f1(one, other) == pytest.approx(2 * hits / (len(one) + len(other)) if one or other else 1.0)


# BFCL's rules: a list of right values for each argument, "" among them where it may be left out


WEATHER = {"get_weather": {"city": ["Oslo", "Oslo, Norway"], "unit": ["celsius", ""], "days": [3]}}


@pytest.mark.parametrize(
    ("args", "accepted"),
    [
        ({"city": "Oslo", "unit": "celsius", "days": 3}, True),
        ({"city": "Oslo, Norway", "days": 3}, True),
        ({"city": "oslo norway", "days": 3}, True),  # case, spaces and , . / - _ * ^ do not count
        ({"city": "Oslo", "days": 3.0}, True),
        ({"city": "Oslo", "days": "3"}, False),  # a text is no number
        ({"city": "Oslo", "days": 4}, False),
        ({"city": "Oslo"}, False),  # `days` may not be left out
        ({"city": "Bergen", "days": 3}, False),
        ({"city": "Oslo", "days": 3, "lang": "no"}, False),  # unknown
        ({"city": "Oslo", "days": 3, "unit": "kelvin"}, False),
        ({"city": ["Oslo"], "days": 3}, False),
        ({"city": "Oslo", "days": True}, False),
    ],
)
def test_one_call_by_the_rules_of_bfcl(args: dict[str, Any], accepted: bool) -> None:
    assert accepted_calls([WEATHER], [call("get_weather", **args)]) == accepted
    assert not accepted_calls([WEATHER], [call("weather_get", **args)])


@pytest.mark.parametrize(
    ("options", "value", "accepted"),
    [
        ([[1, 2]], [1, 2], True),
        ([[1, 2]], [2, 1], False),
        ([[1, 2], [2, 1]], [2, 1], True),
        ([["a b"]], ["A-B"], True),
        ([True], True, True),
        ([True], 1, False),
        ([1], True, False),
        ([{"a": [1, 2], "b": ["x", ""]}], {"a": 2}, True),
        ([{"a": [1, 2], "b": ["x", ""]}], {"a": 3}, False),
        ([{"a": [1]}], {"a": 1, "z": 1}, False),
        ([[{"a": [1]}, {"a": [2]}]], [{"a": 1}, {"a": 2}], True),
        (["it's"], 'it"s', True),
        ([0.1], 0.1, True),
        ([None], None, True),
    ],
)
def test_values_by_the_rules_of_bfcl(options: list[Any], value: Any, accepted: bool) -> None:
    assert accepted_calls([{"f": {"x": options}}], [call("f", x=value)]) == accepted


def test_calls_come_in_any_order_and_each_once() -> None:
    answers = [{"f": {"x": [1]}}, {"f": {"x": [2]}}]
    assert accepted_calls(answers, [call("f", x=2), call("f", x=1)])
    assert not accepted_calls(answers, [call("f", x=1), call("f", x=1)])
    assert not accepted_calls(answers, [call("f", x=1)])
    assert not accepted_calls(answers, [call("f", x=1), call("f", x=2), call("f", x=2)])
    assert accepted_calls([], [])


@in_one_test(range(60))
def test_calls_are_paired_as_well_as_they_can_be(seed: int) -> None:
    """A call may satisfy several answers: the pairing is right if any is, as trying all of them shows."""
    rng = random.Random(seed)
    size = rng.randint(1, 4)
    answers = [{"f": {"x": rng.sample([1, 2, 3], rng.randint(1, 3))}} for _ in range(size)]
    actual = [call("f", x=rng.choice([1, 2, 3])) for _ in range(size)]
    possible = any(
        all(each["args"]["x"] in answer["f"]["x"] for each, answer in zip(actual, order, strict=True))
        for order in itertools.permutations(answers)
    )
    assert accepted_calls(answers, actual) == possible
