"""Control flow in plans: conditions against Python itself, what is refused, and every format."""

from __future__ import annotations

import random
from typing import Any

import pytest

from agent_forge.plans import Plan, PlanInvalid, Task, parse_plan, to_json, to_lines, to_mermaid, to_xml, to_yaml
from agent_forge.plans.conditions import LONGEST, Condition, ConditionError

RESULTS: dict[str, Any] = {
    "n": 3,
    "x": 0.5,
    "t": "text",
    "e": "",
    "l": [1, 2, 3],
    "o": {"k": 1, "deep": {"l": [5]}},
    "z": None,
}


def random_condition(rng: random.Random, depth: int = 0) -> tuple[str, str]:
    """A condition, and the same in Python over a dictionary `r`."""
    kind = rng.random()
    if depth < 3 and kind < 0.35:
        (one, python_one), (two, python_two) = (random_condition(rng, depth + 1) for _ in range(2))
        word = rng.choice(["and", "or"])
        return f"({one}) {word} ({two})", f"({python_one}) {word} ({python_two})"
    if depth < 3 and kind < 0.45:
        inner, python = random_condition(rng, depth + 1)
        return f"not ({inner})", f"not ({python})"
    numbers = [
        ("{n}", "r['n']"),
        ("{x}", "r['x']"),
        ("{o.k}", "r['o']['k']"),
        ("len({l})", "len(r['l'])"),
        ("3", "3"),
        ("{o.deep.l[0]}", "r['o']['deep']['l'][0]"),
        ("len({t})", "len(r['t'])"),
        ("-1", "-1"),
        ("0.5", ".5"),
    ]
    if kind < 0.8:
        parts = [rng.choice(numbers) for _ in range(rng.choice([2, 2, 3]))]
        signs = [rng.choice(["==", "!=", "<", "<=", ">", ">="]) for _ in parts[1:]]
        texts = []
        for side in (0, 1):
            text = parts[0][side]
            for sign, part in zip(signs, parts[1:], strict=True):
                text += f" {sign} {part[side]}"
            texts.append(text)
        return texts[0], texts[1]
    simple = [
        ("{n} in [1, 3]", "r['n'] in [1, 3]"), ("'ex' not in {t}", "'ex' not in r['t']"), ("{e}", "r['e']"),
        ("{z} == null", "r['z'] is None"), ("{o.k} == true", "r['o']['k'] == True"), ("'k' in {o}", "'k' in r['o']"),
        ("{l} == [1, 2, 3]", "r['l'] == [1, 2, 3]"), ("{z}", "r['z']"), ('{t} == "{{n}}"', "r['t'] == '{n}'"),
    ]  # fmt: skip
    return rng.choice(simple)


def test_a_condition_holds_when_python_says_so() -> None:
    rng = random.Random(3)
    answers = set()
    for _ in range(400):
        text, python = random_condition(rng)
        answer = bool(eval(python, {"r": RESULTS}))
        assert Condition(text).holds(RESULTS) is answer, text
        answers.add(answer)
    assert answers == {True, False}


@pytest.mark.parametrize(
    "text",
    ["", "{a", "import os", "{a}.real", "{a}[0]", "{a}()", "len({a}, 1)", "open('x')", "__import__('os')", "{a} + 1",
     "{a} ** 9", "x > 1", "[y for y in {a}]", "lambda: 1", "{a} if {b} else 1", "f'{a}'", "'{a}' == 1", "{a} is None",
     "{a} := 1", "{a}; {b}", "b'x' == {a}", "1j < {a}", "... == {a}", "{a} == " + "1" * LONGEST, "(" * 300 + ")" * 300,
     "not " * 400 + "{a}", "*{a}", "len", "{1: 2} == {a}"],
)  # fmt: skip
def test_anything_else_of_python_is_refused(text: str) -> None:
    if text.startswith("not "):  # long, and still a condition
        assert Condition(text).holds({"a": True}) is True
        return
    with pytest.raises(ConditionError):
        Condition(text)
    with pytest.raises(PlanInvalid):
        Plan([Task("a"), Task("b"), Task("c", when=text)])


CONDITIONS = [
    "{a} < 3",
    "{a} <3 or {a}> 4",
    '"x" in {a}',
    '{a} == "a | b"',
    "{a} == '</plan>' or {a} == '<b>'",
    '"x" in {a} and {a} != "y"',
    "{a} == 'it\\'s' and {a.k[0]} != \"&amp;\"",
    " {a}\n== 1",
    "{a} == 'Limit: 3'",
    '{a} == "é \\u2028"',
    "len({a}) >= 1 and not ({a} in [1, 'x'])",
]


@pytest.mark.parametrize("text", CONDITIONS)
def test_every_format_carries_every_condition(text: str) -> None:
    inside = [Task("d1", when=text), Task("d2", "{item}", until="{d2} == 1", args={"x": "{last}"})]
    plan = Plan(
        [
            Task("a"),
            Task("task_1", "Go", when=text, fallback=["odd id", "task_2"]),
            Task("odd id"),
            Task("task_2"),
            Task("loop", until=text, limit=3, action="poll"),
            Task("x, y"),
            Task("none"),
            Task("j", first_of=["x, y", "none"]),
            Task("each", for_each="{a}", do=inside),
        ]
    )
    for write in (to_lines, to_xml, to_json, to_yaml):
        assert parse_plan(write(plan)) == plan, write(plan)


def test_prose_with_the_new_words_stays_prose() -> None:
    plan = parse_plan(
        "<plan>\nTask 1: Find out | When: the shop opens | Dependencies: none\nTask 2: What to do: wait\n</plan>"
    )
    assert plan["task_1"].goal == "Find out | When: the shop opens"
    assert plan["task_1"].control is plan["task_2"].control is None


REFUSED = {
    "an unknown task in when": ([Task("a", when="{b} > 1")], "unknown_dependency"),
    "itself": ([Task("a", when="{a}")], "cycle"),
    "a fallback that another needs": ([Task("a", fallback=["b"]), Task("b"), Task("c", "{b}")], "malformed"),
    "a fallback in a circle": ([Task("a", fallback=["b"]), Task("b", "{c}"), Task("c", "{a}")], "cycle"),
    "a fallback of two": ([Task("a", fallback=["b"]), Task("b"), Task("c", fallback=["b"])], "malformed"),
    "an unknown fallback": ([Task("a", fallback=["b"])], "unknown_dependency"),
    "its own fallback": ([Task("a", fallback=["a"])], "malformed"),
    "a first_of that another needs": ([Task("a"), Task("j", first_of=["a"]), Task("c", "{a}")], "malformed"),
    "a first_of that is called": ([Task("a"), Task("j", action="x", first_of=["a"])], "malformed"),
    "do and a call": ([Task("a", action="x", do=[Task("b")])], "malformed"),
    "a use of what is inside": ([Task("a", do=[Task("b")]), Task("c", args={"x": "{b}"})], "unknown_dependency"),
    "one id inside and outside": ([Task("a", do=[Task("b")]), Task("b")], "duplicate_id"),
    "a cycle inside": ([Task("a", do=[Task("b", "{c}"), Task("c", "{b}")])], "cycle"),
    "a part that waits for the whole": ([Task("a", do=[Task("b", depends_on=["a"])])], "unknown_dependency"),
    "item outside of for_each": ([Task("a", do=[Task("b", args={"x": "{item}"})])], "unknown_dependency"),
    "last outside of until": ([Task("a", do=[Task("b", args={"x": "{last}"})])], "unknown_dependency"),
    "both for_each and until": ([Task("a"), Task("b", for_each="{a}", until="{b}")], "malformed"),
    "a group with a condition": ([Task("a"), Task("g", when="{a}"), Task("c", parent="g")], "malformed"),
    "a part with a parent": ([Task("a", do=[Task("b"), Task("c", parent="b")])], "malformed"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_carried_out_is_refused(case: str) -> None:
    tasks, code = REFUSED[case]
    with pytest.raises(PlanInvalid) as refused:
        Plan(tasks)
    assert code in refused.value.codes


def test_unknown_keys_and_endless_nesting_are_refused() -> None:
    with pytest.raises(PlanInvalid, match="unknown field 'wen', did you mean 'when'"):
        parse_plan('{"tasks": [{"id": "a", "do": [{"id": "b", "wen": "{c}"}]}]}')
    with pytest.raises(PlanInvalid, match="do that is text, not a list of tasks"):
        parse_plan('{"tasks": [{"id": "a", "do": "b"}]}')
    with pytest.raises(PlanInvalid, match="unknown field 'wen'"):
        parse_plan("""<graph><node id="a" do='[{"id": "b", "wen": 1}]'/></graph>""")
    with pytest.raises(PlanInvalid, match="unknown field 'wen'"):
        parse_plan('<plan>\nTask 1: x | Dependencies: none | Do: [{"id": "b", "wen": 1}]\n</plan>')
    deep = '{"id": "x", "do": [' * 40 + '{"id": "y"}' + "]}" * 40
    with pytest.raises(PlanInvalid, match="nested"):
        parse_plan(f'{{"tasks": [{deep}]}}')
    task = Task("t0")
    for number in range(1, 60):
        task = Task(f"t{number}", do=[task])
    with pytest.raises(PlanInvalid, match="nested too deeply"):
        Plan([task])


def test_what_a_part_needs_from_outside_holds_back_the_whole() -> None:
    plan = Plan(
        [
            Task("a"),
            Task("b"),
            Task("each", for_each="{a}", do=[Task("x", args={"i": "{item}"}), Task("y", "{x} {b}", depends_on=["x"])]),
            Task("end", "{each[0].y}"),
        ]
    )
    assert plan.dependencies == {"a": (), "b": (), "each": ("a", "b"), "end": ("each",)}


def test_the_drawing_shows_the_flow() -> None:
    drawn = to_mermaid(
        Plan([Task("a", fallback=["b"]), Task("b"), Task("l", until="{x.ok}", do=[Task("x"), Task("y", "{x}")])])
    )
    assert "n0 -. if it fails .-> n1" in drawn
    assert "n0 --> n1" not in drawn
    assert 'subgraph n2["l (until {x.ok})"]' in drawn
    assert "n3 --> n4" in drawn
