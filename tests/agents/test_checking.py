"""The check before a run, value by value; the arguments that rules find; what an agent may call with."""

from __future__ import annotations

import pickle
import time
from typing import Any, Literal, TypedDict

import pytest

from agent_forge import Plan, Task, tool
from agent_forge.agents import Missing, PlanRefused, check
from agent_forge.agents.planner.arguments import arguments
from agent_forge.agents.planner.checking import Checker, what_is_missing


@tool
def book(
    city: str, nights: int, guests: list[str], note: str = "", room: Literal["single", "double"] = "single"
) -> str:
    """Books a hotel."""
    return city


class Hotel(TypedDict):
    name: str


REQUEST = "Book a hotel in Oslo for three nights for Ann and Bob, and say that we come late on 5 May 2026"
GOOD = {"city": "Oslo", "nights": 3, "guests": ["Ann", "Bob"]}


@pytest.mark.parametrize(
    ("changed", "parameter"),
    [
        ({}, None),
        ({"room": "double"}, None),  # listed by the schema
        ({"note": "We shall arrive late on 5 May 2026."}, None),  # worded freely
        ({"note": "We arrive on 6 May 2026."}, "note"),  # … but not with another date
        ({"note": "Ask for Charlie."}, "note"),
        ({"city": "oslo"}, None),
        ({"city": "Bergen"}, "city"),
        ({"city": "Book a hotel in Oslo"}, "city"),  # the instruction is no value
        ({"city": "{s1}"}, None),  # an earlier result
        ({"city": "{s1.name}, Norway"}, "city"),
        ({"nights": 4}, "nights"),
        ({"nights": "3"}, "nights"),
        ({"guests": ["Ann", "Carl"]}, "guests"),
        ({"guests": "Ann"}, "guests"),
        ({"room": "suite"}, "room"),
        ({"stars": 5}, "stars"),
    ],
)
def test_a_value_is_typed_and_given(changed: dict[str, Any], parameter: str | None) -> None:
    task = Task("s2", "", "book", {**GOOD, **changed})
    missing = what_is_missing([task], [book], request=REQUEST)
    assert [each.parameter for each in missing] == ([parameter] if parameter else [])


@pytest.mark.parametrize(
    "request_", ["Los Angeles. For two nights.", "Find me a room, two nights please. Los Angeles."]
)
def test_a_sentence_that_only_gives_a_value_is_no_instruction(request_: str) -> None:
    task = Task("s1", "", "book", {"city": "Los Angeles", "nights": 2, "guests": []})
    assert what_is_missing([task], [book], request=request_) == []


def test_what_is_not_there_is_named_and_what_would_help() -> None:
    plan = Plan([Task("s1", "", "book", {"city": "Oslo"}), Task("s2", "Dream"), Task("s3", "", "bok")])
    with pytest.raises(PlanRefused) as caught:
        check(plan, [book], request=REQUEST)
    assert [(each.task, each.tool, each.parameter) for each in caught.value.missing] == [
        ("s1", "book", "nights"),
        ("s1", "book", "guests"),
        ("s2", None, None),
        ("s3", "bok", None),
    ]
    assert "did you mean 'book'" in str(caught.value)
    assert "--model" in str(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.missing) == (str(caught.value), caught.value.missing)
    assert caught.value.missing[0].as_dict() == {
        "tool": "book", "parameter": "nights", "why": "the request does not say it", "task": "s1",
    }  # fmt: skip
    assert isinstance(caught.value.missing[0], Missing)


@pytest.mark.parametrize(("result", "hint"), [(dict[str, str], True), (Hotel, False), (str, False)])
def test_a_result_without_named_fields_is_why_a_value_cannot_be_found(result: Any, hint: bool) -> None:
    def find(city: str) -> Any:
        """Finds a hotel."""

    find.__annotations__["return"] = result
    args = {name: value for name, value in GOOD.items() if name != "city"}
    tasks = [Task("s1", "", "find", {"city": "Oslo"}), Task("s2", "", "book", args)]
    (missing,) = what_is_missing(tasks, [tool(find), book], request=REQUEST)
    assert missing.parameter == "city"
    assert ("find does not name the fields of its result" in missing.why) is hint


def test_results_so_far_are_sources() -> None:
    task = Task("s2", "", "book", {**GOOD, "city": "Bergen"})
    assert what_is_missing([task], [book], request=REQUEST, results={"s1": {"best": "Bergen"}}) == []


def test_an_agent_may_call_with_what_it_was_told() -> None:
    checker = Checker([book], request=REQUEST, model=True)
    assert checker.ungiven("book", GOOD) == []
    assert checker.ungiven("book", {**GOOD, "city": "Bergen"}) == ["argument 'city': nobody gave 'Bergen'"]
    checker.hear('{"nearest": "Bergen"}')
    assert checker.ungiven("book", {**GOOD, "city": "Bergen"}) == []


@pytest.mark.parametrize(
    "piece", ["a ", "Oslo and ", "1,", "1 + ", "(", "/a", "a.", "a@", '"', "'a' ", "may 1 ", "http://", "single "]
)
def test_arguments_are_found_in_linear_time(piece: str) -> None:
    """By ratio, in the same run: four times the text takes at most about four times as long."""

    def seconds(size: int) -> float:
        text = f"Book a hotel in {(piece * size)[:size]}"
        start = time.process_time()
        arguments(book, text)
        return time.process_time() - start

    seconds(1_000)
    small = min(seconds(2_500) for _ in range(3))
    assert min(seconds(10_000) for _ in range(3)) <= 10 * small + 0.05
