"""Every format carries every field of every plan."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_strategies import plans

from agent_forge.plans import Plan, PlanInvalid, PlanStream, Task, parse_plan, to_json, to_lines, to_xml, to_yaml

WRITERS = {"lines": to_lines, "xml": to_xml, "json": to_json, "yaml": to_yaml}
relaxed = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def fields(plan: Plan) -> list[str]:
    """Every field with its exact types: True is not 1 here, and the order of keys counts."""
    return [json.dumps(task.as_dict()) for task in plan]


@pytest.mark.parametrize("format", WRITERS)
@given(plan=plans)
@relaxed
def test_a_written_plan_reads_back_in_every_field(format: str, plan: Plan) -> None:
    text = WRITERS[format](plan)
    assert fields(parse_plan(text)) == fields(plan)
    assert fields(parse_plan(text, format)) == fields(plan)


@pytest.mark.untraced
@pytest.mark.parametrize("format", WRITERS)
@given(plan=plans, data=st.data())
@relaxed
def test_a_streamed_plan_is_the_parsed_one_however_it_is_cut(format: str, plan: Plan, data: st.DataObject) -> None:
    text = WRITERS[format](plan)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=20)))
    stream = PlanStream()
    given_out = []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        given_out.extend(stream.feed(text[start:end]))
    assert fields(stream.finish()) == fields(plan)
    if format in ("lines", "xml"):
        assert given_out == list(plan)


@pytest.mark.untraced
@pytest.mark.parametrize("format", WRITERS)
@given(goal=st.text(), value=st.text(), name=st.text(min_size=1, max_size=20))
@relaxed
def test_any_text_is_carried_or_refused_before_it_is_written(format: str, goal: str, value: str, name: str) -> None:
    try:
        plan = Plan([Task(name, goal, "note", {"text": value}, meta={"m": value}), Task("end", depends_on=[name])])
    except PlanInvalid:
        return
    assert fields(parse_plan(WRITERS[format](plan))) == fields(plan)


@pytest.mark.untraced
@given(plan=plans)
@relaxed
def test_other_parsers_agree_that_the_texts_are_well_formed(plan: Plan) -> None:
    nodes = ElementTree.fromstring(to_xml(plan))
    assert [node.get("id") for node in nodes] == list(plan.tasks)
    assert yaml.safe_load(to_yaml(plan))["tasks"] == [
        {key: value for key, value in task.as_dict().items() if value != [] or key != "depends_on"} for task in plan
    ]
    assert json.loads(to_json(plan, indent=2))["tasks"][0]["id"] == next(iter(plan.tasks))


@given(plan=plans)
@relaxed
def test_each_task_streams_out_at_the_end_of_its_own_line(plan: Plan) -> None:
    lines = to_lines(plan).split("\n")
    stream = PlanStream()
    stream.feed(lines[0] + "\n")
    for line, task in zip(lines[1:-1], plan, strict=True):
        assert stream.feed(line + "\n") == [task]
