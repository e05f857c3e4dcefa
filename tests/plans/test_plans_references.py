"""The reference grammar: what is one, what is text, what it resolves to, and every way it can fail."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_forge.plans import Plan, PlanInvalid, Reference, ReferenceUnresolved, Task, find_references, look_up, resolve
from agent_forge.plans.references import split_text

RESULTS = {"s1": {"rows": [{"name": "Ada", "n": 3}], "odd key": None}, "s2": "price $15", "1": 7, "a b": [1.5, True]}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{s1.rows[0].name}", "Ada"),
        ("{s1.rows[-1].n}", 3),
        ('{s1["odd key"]}', None),
        ("{ s2 }", "price $15"),
        ("{1}", 7),
        ('{"a b"[1]}', True),
        ("{s1.rows}", [{"name": "Ada", "n": 3}]),
        ("n={s1.rows[0].n}, {s2}!", "n=3, price $15!"),
        ("{s2}{s2}", "price $15price $15"),
        ('{"found": {s1.rows[0].n}}', '{"found": 3}'),
        ("{s1.rows} of {s2}", '[{"name": "Ada", "n": 3}] of price $15'),
        ("{{s2}} stays, {{{s2}}} loses a pair", "{s2} stays, {{s2}} loses a pair"),
        (
            '$15 {} {not a ref} {"json": {"a": 1}} ${HOME x} \\d{3} {\'s1\'}',
            '$15 {} {not a ref} {"json": {"a": 1}} ${HOME x} \\d{3} {\'s1\'}',
        ),
        ("{{}} {{ x y }} }} {{", "{{}} {{ x y }} }} {{"),
        (["{s2}", {"k": "{1}"}, 5], ["price $15", {"k": 7}, 5]),
        (("{1}",), [7]),
        (None, None),
    ],
)
def test_what_a_value_resolves_to(text: object, value: object) -> None:
    assert resolve(text, RESULTS) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{s9}", "no_result"),
        ("{s1.nothing}", "missing_field"),
        ("{s1.rows[7]}", "index_out_of_range"),
        ("{s1.rows[-2]}", "index_out_of_range"),
        ("{s1.rows.name}", "not_a_container"),
        ("{s2[0]}", "not_a_container"),
        ("{s1.rows[0].name.first}", "not_a_container"),
        ("{s2.__class__}", "not_a_container"),
    ],
)
def test_what_cannot_be_resolved_says_why(text: str, reason: str) -> None:
    with pytest.raises(ReferenceUnresolved) as failed:
        resolve({"in": [text]}, RESULTS)
    assert failed.value.reason == reason
    assert str(failed.value.reference) == text
    again = pickle.loads(pickle.dumps(failed.value))
    assert (again.reason, str(again)) == (reason, str(failed.value))


def test_ids_say_which_heads_count() -> None:
    assert resolve("/film/{film_id} of {s2}", RESULTS, ids={"s2"}) == "/film/{film_id} of price $15"
    with pytest.raises(ReferenceUnresolved):
        resolve("{3}", RESULTS, ids={"3"})
    assert resolve("{3}", RESULTS) == "{3}"


@given(head=st.text(min_size=1), path=st.lists(st.text() | st.integers(-999, 999), max_size=4))
def test_a_written_reference_reads_back(head: str, path: list[str | int]) -> None:
    reference = Reference(head, tuple(path))
    assert split_text(str(reference)) == [reference]
    assert find_references([f"x {reference} y"]) == [reference]


@given(st.text())
def test_text_without_references_survives(text: str) -> None:
    if not find_references(text) and "{{" not in text:
        assert resolve(text, {}) == text


@given(st.dictionaries(st.sampled_from(["a", "b", "c d"]), st.integers() | st.lists(st.text()), min_size=3))
def test_look_up_finds_what_plain_indexing_finds(results: dict[str, object]) -> None:
    for head, value in results.items():
        assert look_up(Reference(head), results) == value
        if isinstance(value, list) and value:
            assert look_up(Reference(head, (0,)), results) == value[0]


def test_a_reference_implies_a_dependency_wherever_it_stands() -> None:
    plan = Plan(
        [Task("a"), Task("b"), Task("c"), Task("d", "see {a}", args={"x": [{"y": "{b.z}"}]}, for_each="{c.rows}")]
    )
    assert plan.dependencies["d"] == ("a", "b", "c")


@pytest.mark.parametrize(
    ("task", "code"),
    [
        (Task("t", "as in {s9}"), "unknown_dependency"),
        (Task("t", "as in {S1}"), "unknown_dependency"),
        (Task("t", args={"q": "{anything.name}"}), "unknown_dependency"),
        (Task("t", args={"q": "{country_1_from_s1}"}), "unknown_dependency"),
        (Task("t", for_each="{rows}"), "unknown_dependency"),
        (Task("t", args={"q": "{item}"}), "unknown_dependency"),
        (Task("t", "{s1.}"), "malformed"),
        (Task("t", "{s1[}"), "malformed"),
        (Task("t", "{s1[x]}"), "malformed"),
        (Task("t", "{s1..a}"), "malformed"),
        (Task("t", "{s1.a"), "malformed"),
        (Task("t", "ends with {s1"), "malformed"),
        (Task("t", "{s1, s2}"), "malformed"),
        (Task("t", "use {t}"), "cycle"),
    ],
)
def test_a_wrong_reference_is_named(task: Task, code: str) -> None:
    with pytest.raises(PlanInvalid) as refused:
        Plan([Task("s1"), Task("s2"), task])
    assert [(fault.code, fault.task) for fault in refused.value.errors] == [(code, "t")]


@pytest.mark.parametrize(
    "task",
    [
        Task("t", 'GET /film/{film_id}, costs $15, {}, {not a ref}, {"json": 1}, \\frac{a}{b}'),
        Task(
            "t",
            args={
                "pattern": "[0-9]{3}",
                "code": "{'x'}",
                "set": '{"x"}',
                "escaped": "{{name}}",
                "json": '{"a":{"b":1}}',
            },
        ),
        Task("t", "{item}", for_each="{s1}", args={"one": "{item.name}"}),
        Task("t", "{s1x} and {s1 s2}"),
    ],
)
def test_ordinary_braces_survive(task: Task) -> None:
    plan = Plan([Task("s1"), task])
    assert set(plan.dependencies["t"]) == ({"s1"} if task.for_each else set())


def test_what_a_task_needs_before_the_plan_is_known() -> None:
    task = Task("t", "{a} {b}", args={"x": "{c.d} {item}"}, depends_on=["e"], for_each="{f}")
    assert task.needs(["a"]) == ("e", "c", "f", "a")
    assert task.needs() == ("e", "c", "f")
