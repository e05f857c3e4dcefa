"""JSON and YAML: the wire shape, workflow files, and what is refused."""

from __future__ import annotations

import json

import pytest

from agent_forge.plans import Plan, PlanInvalid, Task, parse_plan, plan_from_document, to_document, to_json, to_yaml
from agent_forge.plans.json_text import NotJson
from agent_forge.plans.yaml_text import read_yaml


def test_the_wire_shape_leaves_out_what_is_empty() -> None:
    plan = Plan([Task("a"), Task("b", "x", "f", {"k": 1}, ["a"], None, "{a}", 3, {"m": None})])
    assert to_document(plan) == {
        "tasks": [
            {"id": "a", "goal": "", "depends_on": []},
            {
                "id": "b",
                "goal": "x",
                "action": "f",
                "args": {"k": 1},
                "depends_on": ["a"],
                "for_each": "{a}",
                "limit": 3,
                "meta": {"m": None},
            },
        ]
    }
    assert json.loads(to_json(plan)) == to_document(plan)


@pytest.mark.parametrize(
    "text",
    [
        '{"tasks": [{"id": "1"}, {"id": "2", "goal": "x", "depends_on": ["1"]}]}',
        '[{"id": 1}, {"id": 2, "description": "x", "dependencies": [1]}]',
        '{"tasks": {"1": {}, "2": {"goal": "x", "depends": "1"}}, "levels": [["1"], ["2"]]}',
        'Here it is:\n```json\n{"tasks": [{"id": 1, "meta": null}, {"id": 2, "goal": "x", "depends_on": 1}]}\n```\nOk',
        '```\n[{"id": 1}, {"id": 2, "goal": "x", "depends_on": [1]}]\n```',
        "tasks:\n  - id: 1\n  - {id: 2, goal: x, depends_on: [1]}\n",
        "# a workflow\n---\nname: demo\ntasks:\n  1:\n  2: {goal: x, depends_on: 1}\n",
        "id: w\nname: demo\nsteps:\n  - {id: '1'}\n  - {id: '2', name: x, depends_on: ['1']}\n",
        '```yaml\ntasks:\n  - id: 1\n  - {id: 2, goal: "x", depends_on: [1]}\n```',
    ],
)
def test_ways_to_write_the_same_plan(text: str) -> None:
    assert parse_plan(text) == Plan([Task("1"), Task("2", "x", depends_on=["1"])])


def test_a_workflow_keeps_its_types_and_configuration() -> None:
    step = {"id": "b", "type": "agent", "description": "Check", "depends_on": ["a"], "config": {"agent": "qa"}}
    plan = plan_from_document(
        {"id": "w", "name": "n", "description": "d", "steps": [{"id": "a", "description": "Go"}, step]}
    )
    assert list(plan) == [
        Task("a", "Go"),
        Task("b", "Check", depends_on=["a"], meta={"task_type": "agent", "config": {"agent": "qa"}}),
    ]


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("{", "malformed", "not JSON"),
        ('{"tasks": []} x', "malformed", "more text after the end"),
        ('{"tasks": []}', "empty_plan", "no task"),
        ("tasks:\n", "empty_plan", "no task"),
        ('{"steps": []}', "empty_plan", "no task"),
        ('{"tasks": [], "steps": []}', "malformed", "not both"),
        ('{"plan": []}', "malformed", "this has: plan"),
        ('{"tasks": 5}', "malformed", "not a number"),
        ('{"tasks": ["a"]}', "malformed", "is text, not an object"),
        ('{"tasks": [{"goal": "x"}]}', "malformed", "task number 1 has no id"),
        ('{"tasks": [{"id": 1.5}]}', "malformed", "put it in quotes"),
        ('{"tasks": [{"id": true}]}', "malformed", "true or false"),
        ('{"tasks": [{"id": "a", "dependson": []}]}', "malformed", "did you mean 'depends_on'"),
        ('{"tasks": [{"id": "a", "zzz": []}]}', "malformed", "unknown field 'zzz'"),
        ('{"tasks": [{"id": "a", "goal": "x", "description": "y"}]}', "malformed", "twice"),
        ('{"tasks": [{"id": "a", "goal": 4}]}', "malformed", "goal that is a number"),
        ('{"tasks": [{"id": "a", "limit": true}]}', "malformed", "limit that is true or false"),
        ('{"tasks": [{"id": "a", "args": []}]}', "malformed", "args that is a list"),
        ('{"tasks": [{"id": "a", "depends_on": [null]}]}', "malformed", "has no id"),
        ('{"tasks": [{"id": "a"}, {"id": "b", "depends_on": ["c"]}]}', "unknown_dependency", "'c'"),
        ('{"tasks": [{"id": "a"}, {"id": "a"}]}', "duplicate_id", "'a'"),
        ('{"tasks": [{"id": "a", "id": "b"}]}', "malformed", "'id' occurs twice"),
        ('{"tasks": [{"id": "a", "meta": {"x": NaN}}]}', "malformed", "NaN"),
        ('{"tasks": [{"id": "a", "meta": {"x": -Infinity}}]}', "malformed", "Infinity"),
        ('{"tasks": [{"id": "a", "meta": {"x": 1e999}}]}', "malformed", "too large"),
        ('{"tasks": [{"id": "a", "meta": {"x": ' + "9" * 5000 + "}}]}", "malformed", "digits"),
        ('{"tasks": [{"id": "a", "goal": "\\ud800"}]}', "malformed", "surrogate"),
        ("[" * 100_000, "malformed", "deep"),
        ('{"tasks": ' + "[" * 50_000 + "]" * 50_000 + "}", "malformed", "deep"),
        ('{"tasks": [{"id": "a", "args": {"x": ' + "[" * 80 + "]" * 80 + "}}]}", "too_large", "nested"),
        ("tasks: " + "[" * 100_000, "malformed", "deep"),
        ("tasks: " + "{a: " * 10_000, "malformed", "deep"),
        ("tasks: [1, 2", "malformed", "not YAML"),
        ("tasks:\n\t- id: a", "malformed", "not YAML"),
        ("x: &a [1]\ntasks: [*a, *a]", "malformed", "aliases"),
        ("tasks:\n  - !!python/object/apply:os.system [ls]", "malformed", "tags"),
        ("tasks:\n  - {id: a, id: b}", "malformed", "occurs twice"),
        ("tasks:\n  - {? [a] : b}", "malformed", "key must be text"),
        ("tasks:\n  - id: a\n---\ntasks:\n  - id: b", "malformed", "more than one document"),
        ("tasks:\n  - id: 1.10", "malformed", "put it in quotes"),
        ("tasks:\n  - id: '\ud800'", "malformed", "surrogate"),
        ("steps:\n  - {id: a, type: conditional}", "malformed", "conditional"),
        ("steps:\n  - {id: a, when: b}", "malformed", "unknown field 'when'"),
        ("steps:\n  - {id: a, description: [x]}", "malformed", "description that is a list"),
    ],
    ids=range(44),
)
def test_what_is_refused(text: str, code: str, says: str) -> None:
    with pytest.raises(PlanInvalid) as refused:
        parse_plan(text)
    assert refused.value.codes == [code]
    assert says in str(refused.value)


def test_all_faults_of_a_document_come_together() -> None:
    with pytest.raises(PlanInvalid) as refused:
        parse_plan('[7, {"id": "a", "goal": 4, "limit": "x"}, {"id": "b", "depends_on": ["a", "z"]}, {"id": "b"}]')
    found = [(fault.code, fault.task) for fault in refused.value.errors]
    assert sorted(found, key=str) == [
        ("duplicate_id", "b"),
        ("malformed", "a"),
        ("malformed", "a"),
        ("malformed", None),
        ("unknown_dependency", "b"),
    ]


def test_a_syntax_error_names_its_line() -> None:
    for text, line in (('{"tasks": [\n  {"id": "a",}\n]}', 2), ("tasks:\n  - id: a\n  - [", 3)):
        with pytest.raises(PlanInvalid) as refused:
            parse_plan(text)
        assert refused.value.errors[0].line in (line, line + 1)


def test_yaml_scalars_are_those_of_json() -> None:
    text = "[on, no, 12:30, 2026-01-01, 0x1F, 1_000, 010, 1, -2.5, 1e3, true, ~, '', \"1\", <<]"
    assert read_yaml(text) == [
        "on",
        "no",
        "12:30",
        "2026-01-01",
        "0x1F",
        "1_000",
        "010",
        1,
        -2.5,
        1000.0,
        True,
        None,
        "",
        "1",
        "<<",
    ]
    with pytest.raises(NotJson):
        read_yaml("[1e999]")


def test_too_many_tasks() -> None:
    with pytest.raises(PlanInvalid) as refused:
        parse_plan(json.dumps([{"id": number} for number in range(10_001)]))
    assert refused.value.codes == ["too_large"]


def test_an_unknown_format_is_a_wrong_call() -> None:
    with pytest.raises(ValueError, match="not one of lines, xml, json, yaml"):
        parse_plan("x", "toml")


@pytest.mark.parametrize(
    ("format", "text"),
    [("xml", "Task 1: a"), ("lines", "<graph><node id='a'/></graph>"), ("xml", "<plan>Task 1: a</plan>")],
)
def test_a_format_that_was_named_is_the_only_one_taken(format: str, text: str) -> None:
    with pytest.raises(PlanInvalid) as refused:
        parse_plan(text, format)
    assert refused.value.codes == ["malformed"]


def test_yaml_stays_readable() -> None:
    plan = Plan([Task("fetch", "Get the page, then (maybe) stop"), Task("b", "yes", "f", {"x": [1]}, ["fetch"])])
    assert to_yaml(plan).splitlines() == [
        "tasks:",
        "  - id: fetch",
        "    goal: Get the page, then (maybe) stop",
        "  - id: b",
        '    goal: "yes"',
        "    action: f",
        '    args: {"x": [1]}',
        "    depends_on: [fetch]",
    ]
