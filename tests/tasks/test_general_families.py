"""Arithmetic, programs, tool calls, plan graphs, retrieval: answers in unusual forms, and some that only look right."""

from __future__ import annotations

import copy
import random
import re
from typing import Any

import pytest
from tasks_checking import LEVELS, changed, exercises, missed

from agent_forge.errors import DataError
from agent_forge.tasks import Exercise, family
from agent_forge.tasks.families import arithmetic, programs

# Arithmetic


def test_expressions_have_the_value_that_python_gives_them() -> None:
    for exercise in exercises("arithmetic", 300):
        value = eval(exercise.expected["expression"])
        assert exercise.check({"answer": value}).correct
        assert exercise.check(f"Let me see. {{'wrong'}}\n```json\n{{\"answer\": {value}}}\n```").correct


def test_word_problems_ask_for_what_their_expression_says() -> None:
    """Read again, sentence by sentence."""
    for exercise in exercises("arithmetic", 200):
        start = re.match(r"\w+ has (\d+) ", exercise.prompt)
        if start is None:
            continue
        total = int(start[1])
        for sentence in exercise.prompt.split(". ")[1:-1]:
            numbers = [int(n) for n in re.findall(r"\d+", sentence)]
            if "boxes" in sentence:
                total += numbers[0] * numbers[1]
            elif "half" in sentence:
                total //= 2
            elif "as many" in sentence:
                total *= 2
            else:
                total += numbers[0] if "gets" in sentence else -numbers[0]
        last = exercise.prompt.split(". ")[-1].split("How many")[0]
        assert not last.strip(), exercise.prompt
        assert exercise.check({"answer": total}).correct, exercise.prompt


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        (12, True), ("12", True), (12.0, True), ("12 apples", True), ("= 12", True), ("+12", True), ("1.2e1", True),
        ("012", True), (-12, False), (12.0001, False), ("12 or 13", False), ("twelve", False), ("", False),
        ("1e999999", False), ("5 + 7", False), ("12%3", False),
    ],
)  # fmt: skip
def test_numbers(answer: Any, right: bool) -> None:
    assert family("arithmetic").check({"answer": answer}, {"expression": "5 + 7"}).correct == right


@pytest.mark.parametrize("expression", ["1 / 0", "2 ** 9", "__import__('os')", "1.5 + 1", "", "(1", "True + 1", "-1"])
def test_what_is_no_arithmetic_is_refused(expression: str) -> None:
    with pytest.raises(DataError):
        arithmetic.evaluate(expression)


# Programs


def test_shown_inputs_leave_one_behaviour() -> None:
    """By brute force over all programs of that length: whoever fits what is shown fits what is hidden."""
    for seed in range(12):
        exercise = family("programs").make(seed, 0.5)
        expected = exercise.expected
        known = exercise.prompt.partition("There are: ")[2].partition(".\n")[0].split(", ")
        for one in known:
            for two in known:
                shown, hidden = (
                    [
                        programs.perform([one, two], value) == programs.perform(expected["steps"], value)
                        for value in values
                    ]
                    for values in (expected["inputs"], expected["hidden"])
                )
                assert not all(shown) or all(hidden)
                verdict = exercise.check({"steps": [one, two]})
                assert verdict.correct == all(shown + hidden)


def test_another_program_that_does_the_same_is_right() -> None:
    expected = {"steps": ["double", "sort"], "inputs": [[3, 1]], "hidden": [[5, -2, 0], []]}
    check = family("programs").check
    for steps in (["sort", "double"], ["double", "sort"], ["sort", "reverse", "reverse", "double"]):
        assert check({"steps": steps}, expected).correct
    for steps in (["double"], ["sort"], [], ["double", "sort", "reverse"], ["upper"], ["double", "sort", "positives"]):
        assert not check({"steps": steps}, expected).correct
    assert not check({"steps": ["explode"]}, expected).readable


@pytest.mark.parametrize(
    ("given", "right"),
    [([2, 4], True), ([2.0, 4], True), ('{"output": [2, 4]}', True), ([4, 2], False), ("[2, 4]", False), ([2], False),
     ([True, 4], False), ([2, 4, 4], False), (["2", "4"], False)],
)  # fmt: skip
def test_outputs(given: Any, right: bool) -> None:
    expected = {"source": "def f(value):\n    return [n * 2 for n in value]\n", "function": "f", "arguments": [[1, 2]]}
    answer = given if isinstance(given, str) and given.startswith("{") else {"output": given}
    assert family("program_output").check(answer, expected).correct == right


# Tool calls

TWO = {
    "tools": ["find_contact", "send_email", "get_weather"],
    "calls": [
        {"tool": "find_contact", "args": {"name": "Ana Ruiz"}},
        {"tool": "send_email", "args": {"to": {"ref": 1, "field": "email"}, "subject": "Lunch"}},
        {"tool": "get_weather", "args": {"city": "Oslo", "unit": "celsius"}},
    ],
}
FIND, MAIL, WEATHER = TWO["calls"]


def calls(*wanted: Any) -> dict[str, Any]:
    return {"calls": list(wanted)}


@pytest.mark.parametrize(
    ("answer", "right", "why"),
    [
        (calls(FIND, MAIL, WEATHER), True, ""),
        (calls(FIND, MAIL, {"tool": "get_weather", "args": {"city": "oslo"}}), True, ""),  # its default
        (
            calls(
                WEATHER, FIND, {"tool": "send_email", "args": {"to": {"ref": 2, "field": "email"}, "subject": "lunch"}}
            ),
            True,
            "",
        ),
        (calls(FIND, MAIL), False, "expected"),
        (calls(FIND, MAIL, WEATHER, WEATHER), False, "expected"),
        (calls(FIND, {**MAIL, "args": {"to": "Ana Ruiz", "subject": "Lunch"}}, WEATHER), False, "expected"),
        (calls(MAIL, FIND, WEATHER), False, "not an earlier one"),
        (
            calls(FIND, {**MAIL, "args": {"to": {"ref": 1, "field": "mail"}, "subject": "Lunch"}}, WEATHER),
            False,
            "field",
        ),
        (
            calls(FIND, {**MAIL, "args": {"to": {"ref": 2, "field": "email"}, "subject": "Lunch"}}, WEATHER),
            False,
            "earlier",
        ),
        (
            calls(FIND, {**MAIL, "args": {"to": {"ref": True, "field": "email"}, "subject": "x"}}, WEATHER),
            False,
            "earlier",
        ),
        (calls(FIND, {**MAIL, "args": {"to": {"ref": 1, "field": "email"}}}, WEATHER), False, "missing"),
        (calls(FIND, MAIL, {"tool": "get_weather", "args": {"city": "Oslo", "unit": "kelvin"}}), False, "kelvin"),
        (calls(FIND, MAIL, {"tool": "get_weather", "args": {"city": "Oslo", "days": 2}}), False, "days"),
        (calls(FIND, MAIL, {"tool": "get_weather", "args": {"city": 3}}), False, "string"),
        (calls(FIND, MAIL, {"tool": "set_alarm", "args": {"time": "07:00"}}), False, "no tool"),
        (calls(), False, "expected"),
    ],
)
def test_calls(answer: Any, right: bool, why: str) -> None:
    verdict = family("tool_calls").check(answer, TWO)
    assert verdict.correct == right, verdict
    assert why in verdict.why


# Plan graphs

PLAN = {
    "tasks": [
        {"id": "t1", "tool": "area", "args": {"city": "Oslo"}},
        {"id": "t2", "tool": "area", "args": {"city": "Lima"}},
        {"id": "t3", "tool": "add", "args": {"a": "{t1}", "b": "{t2}"}},
        {"id": "t4", "tool": "multiply", "args": {"a": "{t3}", "b": 2}},
    ],
    "worlds": 3,
}


def plan(*tasks: tuple[Any, ...]) -> dict[str, Any]:
    return {
        "tasks": [
            {"id": name, "tool": tool, "args": args} | ({"depends_on": list(after)} if after else {})
            for name, tool, args, *after in tasks
        ]
    }


NESTED: list[Any] = []
for _ in range(900):
    NESTED = [NESTED]
OSLO, LIMA = ("a", "area", {"city": "Oslo"}), ("b", "area", {"city": "Lima"})


@pytest.mark.parametrize(
    ("answer", "right", "why"),
    [
        ({"tasks": PLAN["tasks"]}, True, ""),
        (plan(LIMA, OSLO, ("s", "add", {"b": "{a}", "a": "{b}"}), ("p", "multiply", {"a": 2, "b": "{ s }"})), True, ""),
        (plan(OSLO, LIMA, ("s", "add", {"a": "{a}", "b": "{b}"}), ("p", "add", {"a": "{s}", "b": "{s}"})), True, ""),
        (
            plan(OSLO, (*LIMA, "a"), ("s", "add", {"a": "{a}", "b": "{b}"}), ("p", "multiply", {"a": "{s}", "b": 2})),
            False,
            "waits",
        ),
        (plan(OSLO, LIMA, ("s", "add", {"a": "{a}", "b": "{b}"})), False, "instead of"),
        (plan(("p", "multiply", {"a": 12, "b": 2})), False, "instead of"),  # no number is right in all worlds
        (plan(OSLO, ("s", "add", {"a": "{a}", "b": 7}), ("p", "multiply", {"a": "{s}", "b": 2})), False, "instead of"),
        (
            plan(OSLO, LIMA, ("p", "multiply", {"a": "{s}", "b": 2}), ("s", "add", {"a": "{a}", "b": "{b}"})),
            False,
            "result",
        ),
        (plan(OSLO, LIMA, ("s", "add", {"a": "{a}", "b": "{c}"})), False, ""),
        (plan(("a", "add", {"a": "{b}", "b": 1}), ("b", "add", {"a": "{a}", "b": 1})), False, "not valid"),
        (plan(OSLO, OSLO), False, "not valid"),
        (plan(("a", "area", {"city": "Rome"})), False, "nothing is known"),
        (plan(("a", "area", {"town": "Oslo"})), False, "fails"),
        (plan(("a", "capital", {"city": "Oslo"})), False, "no tool"),
        (plan(OSLO, ("x", "add", {"a": "{a}"})), False, "fails"),
        (plan(OSLO, ("x", "add", {"a": "{a}", "b": NESTED})), False, ""),
        (
            plan(
                OSLO,
                *(
                    (f"x{n}", "multiply", {"a": f"{{x{n - 1}}}", "b": f"{{x{n - 1}}}"})
                    if n
                    else ("x0", "add", {"a": "{a}", "b": 0})
                    for n in range(18)
                ),
            ),
            False,
            "too large",
        ),
    ],
)
def test_plans(answer: Any, right: bool, why: str) -> None:
    verdict = family("plan_graph").check(answer, PLAN)
    assert verdict.correct == right, verdict
    assert why in verdict.why or "instead of" in verdict.why
    assert verdict.correct or verdict.why


# Retrieval

FACTS = {
    "facts": {"Ana Ruiz": {"employer": "Altiva"}, "Altiva": {"seat": "Corran"}, "Corran": {"river": "Esk"}},
    "start": "Ana Ruiz",
    "path": ["employer", "seat"],
}


@pytest.mark.parametrize(
    ("answer", "support", "score"),
    [
        ("Corran", ["Ana Ruiz", "Altiva"], 1),
        ("corran.", ["altiva", "Ana  Ruiz", "Altiva"], 1),
        ("Corran", ["Altiva"], 0.5),
        ("Corran", ["Ana Ruiz", "Altiva", "Corran"], 0.5),
        ("Altiva", ["Ana Ruiz", "Altiva"], 0.5),
        ("Corran or Altiva", ["Ana Ruiz", "Altiva"], 0.5),
        ("Esk", [], 0),
        ("", [], 0),
    ],
)
def test_retrieval(answer: str, support: list[str], score: float) -> None:
    assert family("retrieval").check({"answer": answer, "support": support}, FACTS).score == score


def test_passages_say_what_the_question_needs() -> None:
    """The facts of the passages on the way are in the prompt, and in no other passage."""
    for exercise in exercises("retrieval", 100):
        solution = exercise.solution()
        passages = dict(re.findall(r"^\[(.*?)\] (.*)$", exercise.prompt, re.MULTILINE))
        assert set(solution["support"]) <= passages.keys()
        assert solution["answer"] in passages[solution["support"][-1]]
        assert solution["support"][0] in exercise.prompt.partition("Question:")[2]


# All of them


def other_steps(answer: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Steps that do something else, as trying them on many inputs shows."""
    steps = answer["steps"]
    probes: list[Any] = [[3, -1, 2, 2], [0, 5, -4, -4, 7], []] if steps[0] in programs._LIST_STEPS else []
    probes += ["Banana Tree", "aAbB e", ""] if all(step in programs._TEXT_STEPS for step in steps) else []
    while True:
        other = list(steps)
        place = rng.randrange(len(other))
        other[place] = rng.choice(list(programs._LIST_STEPS | programs._TEXT_STEPS))
        if rng.random() < 0.3:
            other.pop(place)
        try:
            same = all(programs.perform(other, probe) == programs.perform(steps, probe) for probe in probes)
        except KeyError:
            same = False
        if not same:
            return {"steps": other}


def other_plan(answer: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Another city, tool or operand, or a task left out; not one that adds and multiplies the same."""
    answer = copy.deepcopy(answer)
    task = rng.choice(answer["tasks"])
    if "city" in task["args"] and rng.random() < 0.5:
        task["args"]["city"] = "Bergen"
    elif rng.random() < 0.4:
        task["tool"] = {"add": "subtract", "subtract": "multiply", "multiply": "add", "larger": "add"}.get(
            task["tool"], "mood"
        )
    elif rng.random() < 0.5 and "a" in task["args"]:
        task["args"]["a"] = 1234
    else:
        answer["tasks"].remove(task)
        answer["tasks"] = answer["tasks"] or [{"id": "x", "tool": "add", "args": {"a": 1, "b": 1}}]
    return answer


def other_support(answer: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Not merely a title named twice."""
    while True:
        other = changed(answer, rng)
        if other["answer"] != answer["answer"] or set(other["support"]) != set(answer["support"]):
            return other


CHANGES = {
    "arithmetic": changed,
    "program_output": changed,
    "programs": other_steps,
    "tool_calls": changed,
    "plan_graph": other_plan,
    "retrieval": other_support,
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_answers_are_refused(name: str) -> None:
    found = missed(name, CHANGES[name])
    assert len(found) <= 10, found[:3]


def effort(exercise: Exercise) -> int:
    solution = exercise.solution()
    sizes = {
        "arithmetic": lambda: len(re.findall(r"[-+*/]", exercise.expected["expression"])),
        "program_output": lambda: exercise.expected["source"].count("\n"),
        "programs": lambda: len(solution["steps"]),
        "tool_calls": lambda: len(solution["calls"]) + len(exercise.expected["tools"]),
        "plan_graph": lambda: len(solution["tasks"]),
        "retrieval": lambda: len(solution["support"]) + exercise.prompt.count("\n["),
    }
    return sizes[exercise.family]()


@pytest.mark.parametrize("name", CHANGES)
def test_there_is_more_to_do_at_higher_levels(name: str) -> None:
    work = [sum(effort(family(name).make(seed, level)) for seed in range(16)) for level in LEVELS]
    assert work == sorted(work)
    assert work[-1] >= 2 * work[0]
