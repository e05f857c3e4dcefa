"""The rule planner: shapes of questions, lists of instructions, tools, and that it never fails on words."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_forge.agents.actions import Combine, LookUp
from agent_forge.agents.planner import LocalPlanner, ModelPlanner, PlanningFailed, RulePlanner
from agent_forge.agents.planner.arguments import arguments
from agent_forge.agents.planner.binding import bind_task, read_goal
from agent_forge.agents.planner.tools import ToolIndex, split_name
from agent_forge.agents.tools import bundled_questions
from agent_forge.plans import PlanInvalid, Task, parse_plan, resolve, to_json, to_lines, to_xml, to_yaml


@dataclass(frozen=True)
class Card:
    name: str
    description: str = ""
    schema: dict[str, Any] = field(default_factory=dict)


def plan(request: str, *tools: Card) -> list[tuple[str, tuple[str, ...]]]:
    planned = RulePlanner().plan_now(request, tools=tools)
    return [(task.goal, task.depends_on) for task in planned]


COMPARISONS = [
    (
        "Who is older, Ann Lee or Bo Ek?",
        ["date of birth of Ann Lee", "date of birth of Bo Ek", "which is earliest of {s1} (Ann Lee), {s2} (Bo Ek)"],
    ),
    (
        "Which film came out first, Heat or Murder, She Said?",
        ["release date of film Heat", "release date of film Murder, She Said"],
    ),
    (
        "Who was born first out of Marco De Luigi and Fabio Maistro?",
        ["date of birth of Marco De Luigi", "date of birth of Fabio Maistro"],
    ),
    ("Was Vanderbilt University or Emory University founded first?", ["date founded of Vanderbilt University"]),
    ("Are Mick Jagger and Brett Scallions both musicians?", ["if Mick Jagger is musicians"]),
    (
        "Do singers Lee Donghae and Dappy have the same nationality?",
        ["nationality of Lee Donghae", "nationality of Dappy"],
    ),
    ("Does Davide Santon have the same nationality as Giuseppe Fonzi?", ["nationality of Davide Santon"]),
    ("What profession do John Landis and Gore Verbinski have in common?", ["occupation of John Landis"]),
    ("Who lived longer, Ann Lee or Bo Ek?", ["lifespan of Ann Lee"]),
    ("Who landed in Smerwick later, Fitzmaurice or Sebastiano?", ["when Fitzmaurice landed in Smerwick"]),
    ("Which skyscraper has more floors, the SNCI Tower or 8 Spruce Street?", ["number of floors of the SNCI Tower"]),
    ("Which artist was Italian, Sergio Leone or Jon Puno?", ["if Sergio Leone was Italian"]),
]


@pytest.mark.parametrize(("question", "goals"), COMPARISONS)
def test_comparisons_look_up_at_once_and_then_compare(question: str, goals: list[str]) -> None:
    steps = plan(question)
    assert [goal for goal, _ in steps][: len(goals)] == goals
    assert [after for _, after in steps] == [(), (), ("s1", "s2")]


def test_a_comparison_through_another_thing_has_two_parallel_pairs() -> None:
    steps = plan("Which film has the director who died later, Heat or Alien?")
    assert [after for _, after in steps] == [(), (), ("s1",), ("s2",), ("s3", "s4")]
    assert steps[0][0] == "director of film Heat"
    assert steps[2][0] == "date of death of {s1}"
    assert steps[4][0] == "which is latest of {s3} (Heat), {s4} (Alien)"


def test_both_directors() -> None:
    steps = plan("Are both directors of films Billy Budd (Film) and Chosen (2016 Film) from the same country?")
    assert steps[0][0] == "director of film Billy Budd (Film)"
    assert steps[1][0] == "director of film Chosen (2016 Film)"
    assert steps[-1] == ("if {s3} and {s4} are the same", ("s3", "s4"))


@pytest.mark.parametrize(
    ("question", "goals"),
    [
        ("Where was the director of film Alien born?", ["director of film Alien", "place of birth of {s1}"]),
        ("Who is the mother of the director of film Alien?", ["director of film Alien", "mother of {s1}"]),
        ("Where did Saw Thanda's husband die?", ["spouse of Saw Thanda", "place of death of {s1}"]),
        ("Who is Mark Getty's paternal grandfather?", ["father of Mark Getty", "father of {s1}"]),
        ("Who is the sibling-in-law of Elaine Marshall?", ["spouse of Elaine Marshall", "sibling of {s1}"]),
        ("When is Ann Lee's mother's birthday?", ["mother of Ann Lee", "date of birth of {s1}"]),
        ("What nationality is Azam Jah's father?", ["father of Azam Jah", "nationality of {s1}"]),
        (
            "What is the language of the country where Hans Enoksen works?",
            ["the country where Hans Enoksen works", "the language of {s1}"],
        ),
        (
            "Which movie with music by Henry Jackman did Rihanna play in?",
            ["movie with music by Henry Jackman", "{s1} that Rihanna play in"],
        ),
    ],
)
def test_bridges_follow_the_inner_description(question: str, goals: list[str]) -> None:
    steps = plan(question)
    assert [goal for goal, _ in steps] == goals
    assert [after for _, after in steps] == [(), ("s1",)]


def test_a_question_word_at_the_end() -> None:
    steps = plan("The star of the show Inkwell also appeared in what movie as O-Dog?")
    assert len(steps) == 2
    assert steps[1][1] == ("s1",)


def test_the_same_tool_twice_is_two_calls_that_need_nothing_of_each_other() -> None:
    planned = RulePlanner().plan_now('Get the weather in "Oslo", get the weather in "Rome"', tools=TOOLS)
    assert [(dict(task.args), task.depends_on) for task in planned] == [
        ({"city": "Oslo"}, ()),
        ({"city": "Rome"}, ()),
    ]


@pytest.mark.parametrize(
    ("question", "last"),
    [
        ("How many years after the Treaty of Rome did Spain join?", "difference of {s1} and {s2}"),
        ("How many more people live in Oslo than in Bergen?", "difference of {s1} and {s2}"),
        ("How many percent were not German?", "difference of 100 and {s1}"),
        ("How many bridges are there in Rome?", "number of {s1}"),
    ],
)
def test_aggregations_end_in_an_operation(question: str, last: str) -> None:
    assert plan(question)[-1][0] == last


def test_listed_steps_keep_their_order() -> None:
    assert plan("Make tea:\n1. boil water\n2. pour it\n3. drink") == [
        ("boil water", ()),
        ("pour it", ("s1",)),
        ("drink", ("s2",)),
    ]


def test_instructions_depend_on_what_they_speak_of() -> None:
    steps = plan("Get the weather in Oslo and find flights to Rome. Email the weather to Ann, then archive it")
    assert [after for _, after in steps] == [(), (), ("s1",), ("s3",)]


TOOLS = (
    Card("get_weather", "Get the weather of a city", {
        "properties": {"city": {"type": "string"}}, "required": ["city"]}),
    Card("send_email", "Send an email", {"properties": {"text": {"type": "string"}}, "required": ["text"]}),
    Card("add_numbers", "Add two numbers", {
        "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}),
)  # fmt: skip


def test_clauses_go_to_the_tools_that_fit() -> None:
    planned = RulePlanner().plan_now(
        'Add the numbers 2 and 3.5, get the weather in "Oslo", then send it by email. Thank you!', tools=TOOLS
    )
    tasks = list(planned)
    assert [task.action for task in tasks] == ["add_numbers", "get_weather", "send_email"]
    assert tasks[0].args == {"a": 2, "b": 3.5}
    assert tasks[1].args == {"city": "Oslo"}
    assert tasks[2].args == {"text": "{s2}"}
    assert tasks[2].depends_on == ("s2",)


def test_order_words_count_only_where_the_tools_say_nothing() -> None:
    request = "Get the weather in Oslo. After that, send an email about cats to Ann"
    with_schema = RulePlanner().plan_now(request, tools=TOOLS)
    bare = RulePlanner().plan_now(request, tools=[Card(t.name, t.description) for t in TOOLS])
    assert with_schema["s2"].depends_on == ()
    assert bare["s2"].depends_on == ("s1",)


def test_fill_takes_choices_first_and_leaves_what_is_not_there() -> None:
    card = Card("f", "", {
        "properties": {"unit": {"enum": ["km", "miles"]}, "n": {"type": "integer"}, "who": {"type": "string"}},
        "required": ["unit", "n", "who"]})  # fmt: skip
    assert arguments(card, "in miles for 7 days") == [{"unit": "miles", "n": 7}]


def test_names_of_tools_are_split() -> None:
    assert split_name("getWeatherReport") == "get Weather Report"
    index = ToolIndex.of(TOOLS)
    assert index.best("quantum chromodynamics") is None


def test_the_index_follows_the_tools() -> None:
    planner = RulePlanner()
    assert planner.plan_now("Get the weather", tools=TOOLS[:1])["s1"].action == "get_weather"
    assert planner.plan_now("Send an email", tools=TOOLS[1:2])["s1"].action == "send_email"


def test_the_result_says_who_planned_and_why() -> None:
    planned = asyncio.run(RulePlanner().plan("Who is older, Ann Lee or Bo Ek?"))
    assert (
        planned.provenance.planner,
        planned.provenance.model,
        planned.provenance.template,
        planned.provenance.attempts,
    ) == ("rules", None, None, 1)
    assert planned.provenance.input_tokens is None
    assert planned.provenance.shape == "comparison"


def test_no_words_no_plan() -> None:
    with pytest.raises(PlanningFailed, match="no words"):
        RulePlanner().plan_now(" ?!… ")


QUESTIONS = [
    *(question for question, _ in COMPARISONS),
    "Where was the director of film Alien born?",
    "How many percent were not German?",
    'Which film came out first, "{x}" or Bo | (Film) "II"?',
]


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("write", [to_json, to_xml, to_lines, to_yaml])
def test_plans_survive_every_text_format(question: str, write: Any) -> None:
    plan = RulePlanner().plan_now(question)
    assert list(parse_plan(write(plan))) == list(plan)


def test_a_plan_carries_what_is_meant() -> None:
    steps = list(RulePlanner().plan_now("Which film has the director who died later, Heat or Alien?"))
    assert [(step.action, step.args) for step in steps[::2]] == [
        ("look_up", {"relation": "director", "entity": "film Heat"}),
        ("look_up", {"relation": "date of death", "entity": "{s1}"}),
        ("combine", {"operation": "latest", "operands": ["{s3}", "{s4}"], "labels": ["Heat", "Alien"]}),
    ]
    (first, last) = RulePlanner().plan_now("How many percent were not German?")
    assert (first.action, first.args) == ("search", {"query": "percent were German"})
    assert last.args == {"operation": "difference", "operands": [100, "{s1}"]}


@pytest.mark.parametrize("question", [question.question for question in bundled_questions()])
def test_the_goal_says_what_the_arguments_say(question: str) -> None:
    """Words are only for the eye, but they must not say anything else."""
    for task in RulePlanner().plan_now(question):
        if task.action != "search":
            meaning = read_goal(task.goal)
            assert meaning is not None
            assert meaning.action == task.action
            assert str(meaning.args).replace(".", "") == str(task.args).replace(".", "")  # a goal may end in "U.S.A."


@pytest.mark.parametrize(
    ("goal", "meaning"),
    [
        ("date of birth of film X of Y", LookUp("date of birth", "film X of Y")),
        ("the husband of Ann.", LookUp("spouse", "Ann")),
        ("number of floors of {s1}", LookUp("number of floors", "{s1}")),
        ("which is latest of {s1} (Ann), {s2} (Bo (Film))", Combine("latest", ("{s1}", "{s2}"), ("Ann", "Bo (Film)"))),
        ("which is largest of {s1} and {s2}", Combine("largest", ("{s1}", "{s2}"))),
        ("If {s1.name} and {s2} are the same", Combine("same", ("{s1.name}", "{s2}"))),
        ("if both {s1} and {s2} are true", Combine("both", ("{s1}", "{s2}"))),
        ("what {s1} and {s2} have in common", Combine("common", ("{s1}", "{s2}"))),
        ("the difference of 100 and {s1}", Combine("difference", ("100", "{s1}"))),
        ("number of {s1}", Combine("number", ("{s1}",))),
        ("sum of {s1}", Combine("sum", ("{s1}",))),
        ("if they are the same", Combine("same", ())),
        ("if Ann is the head of Rome", None),
        ("write a poem", None),
        ("İ of {s1}", LookUp("i̇", "{s1}")),
        ("x of " + "y" * 3000, None),
    ],
)
def test_goals_in_words_are_read(goal: str, meaning: Any) -> None:
    assert read_goal(goal) == meaning


def test_words_are_bound_to_what_there_is() -> None:
    search, answer = Card("search"), Card("answer")
    look_up, compare = Task("s1", "mother of Ann"), Task("s3", "if they are the same", depends_on=("s1", "s2"))
    assert bind_task(look_up, [search]).args == {"relation": "mother", "entity": "Ann"}
    assert bind_task(look_up, []) == look_up
    assert bind_task(look_up, [search], reads=False) == look_up
    assert bind_task(compare, []).args == {"operation": "same", "operands": ["{s1}", "{s2}"]}
    assert bind_task(compare, [answer]) == compare
    call = Task("s1", 'search("mother of Ann")', "search", {"query": "mother of Ann"}, parent="g", meta={"k": 1})
    bound = bind_task(call, [search])
    assert (bound.goal, bound.action, bound.parent, bound.meta) == ("mother of Ann", "look_up", "g", {"k": 1})
    assert bind_task(Task("s1", "if they are the same"), []).action is None  # nothing to compare
    assert bind_task(Task("s1", "fetch mother of Ann", "fetch"), [search]).action == "fetch"


@pytest.mark.parametrize(
    ("goal", "expected"),
    [
        ("send_email: hello", ("send_email", {"text": "hello"}, "hello")),
        ("use `send_email` to greet", ("send_email", {"text": "greet"}, "greet")),
        ("send_email - greet", ("send_email", {"text": "greet"}, "greet")),
        ("send_email(greet)", ("send_email", {"text": "greet"}, "greet")),
        ("send_email", ("send_email", {}, "send_email")),
        ("send_emails: hello", (None, {}, "send_emails: hello")),
        ("send_email everything", (None, {}, "send_email everything")),
    ],
)
def test_goals_that_name_a_tool(goal: str, expected: Any) -> None:
    bound = bind_task(Task("a", goal), TOOLS)
    assert (bound.action, bound.args, bound.goal) == expected


def test_braces_in_a_request_are_text() -> None:
    planned = RulePlanner().plan_now("Who is older, {name} or {{s1}} {3}?")
    labels = planned["s3"].args["labels"]
    assert resolve(labels, {}, ids=set()) == ["{name}", "{{s1}} {3}"]
    assert planned["s1"].depends_on == ()


@settings(max_examples=25, deadline=None)
@given(st.text(min_size=1, max_size=200))
def test_any_text_gives_a_valid_plan(text: str) -> None:
    try:
        planned = RulePlanner().plan_now(text, tools=TOOLS)
    except PlanningFailed:
        assert not any(char.isalnum() for char in text)
    else:
        assert len(planned) >= 1


@pytest.mark.parametrize(
    "text",
    [
        "of the director of film " * 400,
        "A's mother's " * 400 + "birthday?",
        "Who is older, " + "A and B, " * 400 + "or C?",
        "please could you " * 800,
        "Which " + "the one that " * 400 + "?",
        "a" + '"' * 3000,
        "How many " + "more than " * 500 + "?",
    ],
)
def test_odd_texts_do_not_blow_up(text: str) -> None:
    start = time.monotonic()
    assert len(RulePlanner().plan_now(text)) >= 1
    assert time.monotonic() - start < 30


SIZE = 20_000


def repeated(unit: str) -> str:
    return (unit * (SIZE // len(unit) + 1))[:SIZE]


@pytest.mark.parametrize(
    "text",
    [
        "Who is older, " + "\n" * SIZE + " or B?",
        "Who is older, " + " " * SIZE + " or B?",
        "get a" + " " * SIZE + "b",
        "get a" + "." * SIZE + "b",
        "get 'a" + " " * SIZE + "b'",
        *map(
            repeated,
            ("1. ", "1. a\n", "- ", "a\n", "\n \t", "A, ", "find it and ", "get, ", "do it then ", "Find it. ", "A. ",
             "“", "'a ", "(a", "{", "{s1} ", "1", "1.", "a", "a'", "; ", " ,", "Is it A or ", "Who is A's ", "of the "),
        ),
        repeated("def f(x):\n    return {name}[x] * 2  # and then print it\n"),
    ],
    ids=lambda text: repr(text[:16]),
)  # fmt: skip
def test_a_request_of_any_shape_and_length_is_planned_or_refused(text: str) -> None:
    """Repeated blanks, quotes, clauses and list marks took minutes: patterns were tried at every pair of places."""
    started = time.process_time()
    with suppress(PlanningFailed, PlanInvalid):
        assert len(RulePlanner().plan_now(text, tools=TOOLS)) >= 1
    assert time.process_time() - started < 20  # a hang guard: five times as much text takes less than a second


def test_too_much_is_refused() -> None:
    with pytest.raises(PlanningFailed, match="has 2,000 steps, the limit is 1,000"):
        RulePlanner().plan_now("Get it. " * 2000)
    for planner in (RulePlanner(), ModelPlanner(None), LocalPlanner(None)):  # none of them gets as far as its model
        with pytest.raises(PlanningFailed, match="has 100,001 characters, the limit is 100,000"):
            asyncio.run(planner.plan("a" * 100_001))
