"""Attribute names of three dialects, through one table."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_spans import full, make

from agent_forge.traces import Span
from agent_forge.traces.conventions import KIND_OF, NAMES, SAMPLING, complete, fill, text_of, to_attributes, value_of
from agent_forge.traces.span import KINDS

VALUES: dict[str, Any] = {
    "input_tokens": 7, "output_tokens": 9, "cost": 0.5, "reward": 0.25, "prompt_ids": [1], "output_ids": [2],
    "logprobs": [-0.5],
}  # fmt: skip


def read(attributes: dict[str, Any]) -> Span:
    return complete(fill(make(kind="other", attributes=attributes)))


@pytest.mark.parametrize(("field", "name"), [(field, name) for field, names in NAMES.items() for name in names])
def test_every_name_of_the_table_is_read(field: str, name: str) -> None:
    value = VALUES.get(field, "x")
    assert getattr(read({name: value}), field) == value


@pytest.mark.parametrize("field", [field for field, names in NAMES.items() if len(names) > 1])
def test_the_first_name_wins_in_any_order(field: str) -> None:
    first, *others = NAMES[field]
    value, other = VALUES.get(field, "x"), "y" if field not in VALUES else 99
    attributes = {first: value, **dict.fromkeys(others, other)}
    assert getattr(read(attributes), field) == value
    assert getattr(read(dict(reversed(attributes.items()))), field) == value


@pytest.mark.parametrize(
    ("name", "value", "kind"), [(n, v, k) for n, kinds in KIND_OF.items() for v, k in kinds.items()]
)
def test_every_kind_is_read_and_known(name: str, value: str, kind: str) -> None:
    assert read({name: value, "agent_forge.reward": 0.5}).kind == kind
    assert kind in KINDS


def test_an_unknown_kind_is_other_and_ours_wins() -> None:
    assert read({"gen_ai.operation.name": "dance"}).kind == "other"
    assert read({"openinference.span.kind": 7}).kind == "other"
    assert read({"openinference.span.kind": "LLM", "agent_forge.kind": "plan"}).kind == "plan"


@pytest.mark.parametrize(("key", "name"), [(key, name) for key, names in SAMPLING.items() for name in names])
def test_sampling_settings(key: str, name: str) -> None:
    assert read({name: 3}).sampling == {key: 3}


def test_openinference_settings_are_one_object() -> None:
    text = json.dumps({"temperature": 0.1, "max_completion_tokens": 5, "model": "m", "stream": False})
    assert read({"llm.invocation_parameters": text}).sampling == {"temperature": 0.1, "max_tokens": 5}
    assert read({"llm.invocation_parameters": "[1]"}).sampling is None
    assert read({"llm.invocation_parameters": "{broken"}).sampling is None


@pytest.mark.parametrize(
    "told", [{"openinference.span.kind": "EVALUATOR"}, {"gen_ai.operation.name": "evaluate"}], ids=str
)
def test_an_evaluation_is_a_reward_only_where_it_tells_one(told: dict[str, Any]) -> None:
    scored = {**told, "gen_ai.evaluation.score.value": 0.5}
    assert (read(scored).kind, read(scored).reward) == ("reward", 0.5)
    # OpenInference says nothing about the range and direction of a score: 1 may be the worst there is
    for unknown in ({}, {"evaluations.0.evaluation.score": 1.0}, {"gen_ai.evaluation.score.value": "good"}):
        span = read({**told, **unknown})
        assert (span.kind, span.reward) == ("task", None)
        assert read(to_attributes(span)).kind == "task"
    assert read({**told, "gen_ai.evaluation.score.value": math.nan}).kind == "task"
    assert read({**told, "agent_forge.kind": "reward"}).kind == "reward"  # what we recorded is what we said


def test_openinference_messages() -> None:
    span = read(
        {
            "openinference.span.kind": "LLM",
            "input.value": "{}",
            "llm.input_messages.1.message.content": "second",
            "llm.input_messages.0.message.role": "user",
            "llm.input_messages.0.message.contents.0.message_content.text": "part",
            "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "weather",
        }
    )
    assert span.inputs == [{"role": "user", "contents": [{"text": "part"}]}, {"content": "second"}]
    assert span.outputs == [{"tool_calls": [{"function": {"name": "weather"}}]}]


def test_the_schema_of_a_tool_is_not_what_it_was_called_with() -> None:
    hidden = {"openinference.span.kind": "TOOL", "tool.parameters": '{"type": "object"}', "input.value": "Paris"}
    assert read(hidden).inputs == "Paris"
    del hidden["input.value"]
    assert read(hidden).inputs is None


def test_openllmetry_messages() -> None:
    span = read(
        {
            "llm.request.type": "chat",
            "gen_ai.system": "OpenAI",
            "gen_ai.prompt.0.role": "user",
            "gen_ai.prompt.0.content": "hi",
            "gen_ai.completion.0.content": "ho",
            "gen_ai.completion.0.finish_reason": "stop",
            "gen_ai.usage.prompt_tokens": 3,
        }
    )
    assert (span.kind, span.provider, span.input_tokens) == ("model", "OpenAI", 3)
    assert span.inputs == [{"role": "user", "content": "hi"}]
    assert span.outputs == [{"content": "ho", "finish_reason": "stop"}]


def test_flattened_names_that_contradict_each_other_lose_nothing_else() -> None:
    span = read({"gen_ai.prompt.0": "text", "gen_ai.prompt.0.role": "user", "gen_ai.prompt.x.role": "odd"})
    assert span.inputs is None
    assert len(span.attributes) == 3


def test_values_of_the_wrong_type_leave_the_field_unknown() -> None:
    span = read(
        {
            "gen_ai.usage.input_tokens": "many",
            "gen_ai.usage.output_tokens": "12",
            "agent_forge.reward": "good",
            "agent_forge.logprobs": 3,
            "agent_forge.prompt_token_ids": "[1, 2]",
            "agent_forge.output_token_ids": "{broken",
        }
    )
    assert (span.input_tokens, span.output_tokens, span.reward) == (None, 12, None)
    assert (span.prompt_ids, span.output_ids, span.logprobs) == ([1, 2], None, None)


def test_a_span_is_told_whole_by_its_attributes() -> None:
    span = full()
    told = read(to_attributes(span))
    for field in (*NAMES, "kind", "inputs", "outputs", "sampling", "assessment"):
        assert getattr(told, field) == getattr(span, field), field


def test_what_the_conventions_ask_for_is_written() -> None:
    tool = to_attributes(make(name="weather", kind="tool", inputs={"city": "Paris"}, outputs="sunny"))
    assert tool == {
        "agent_forge.kind": "tool",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "weather",
        "gen_ai.tool.call.arguments": '{"city":"Paris"}',
        "gen_ai.tool.call.result": "sunny",
    }
    judged = to_attributes(make(name="exact match", kind="reward", reward=1.0))
    assert judged["gen_ai.evaluation.name"] == judged["agentlightning.reward.0.name"] == "exact match"
    assert judged["gen_ai.evaluation.score.value"] == judged["agentlightning.reward.0.value"] == 1.0
    model = to_attributes(make(kind="model", model="m", inputs={"messages": [], "tools": []}, outputs=[{"role": "x"}]))
    assert model["gen_ai.operation.name"] == "chat"
    assert "gen_ai.input.messages" not in model
    assert model["agent_forge.inputs"] == '{"messages":[],"tools":[]}'
    assert model["gen_ai.output.messages"] == '[{"role":"x"}]'


def test_a_field_that_differs_from_its_attribute_wins() -> None:
    span = make(
        kind="plan", inputs="new", attributes={"gen_ai.operation.name": "chat", "input.value": "old"}, model="b"
    )
    span.attributes["llm.model_name"] = "a"
    told = read(to_attributes(span))
    assert (told.kind, told.inputs, told.model) == ("plan", "new", "b")


# An agent without a name, and a session that is told around the span


@pytest.mark.parametrize(
    ("attributes", "name", "agent"),
    [
        ({"openinference.span.kind": "AGENT"}, "weather_agent", "weather_agent"),
        ({"openinference.span.kind": "AGENT"}, "invoke_agent Max", "invoke_agent Max"),
        ({"openinference.span.kind": "AGENT"}, "", None),
        ({"openinference.span.kind": "AGENT", "agent.name": "Max"}, "run", "Max"),
        ({"openinference.span.kind": "AGENT", "agent.name": ""}, "run", "run"),
        ({"openinference.span.kind": "CHAIN"}, "run", None),
        ({"gen_ai.operation.name": "invoke_agent"}, "invoke_agent Max", "Max"),
        ({"gen_ai.operation.name": "create_agent"}, "create_agent Max", "Max"),
        ({"gen_ai.operation.name": "invoke_agent"}, "invoke_agent", "invoke_agent"),
        ({"gen_ai.operation.name": "invoke_agent"}, "invoke_agent ", "invoke_agent "),
        ({"gen_ai.operation.name": "invoke_agent"}, "Max.agent", "Max.agent"),
        ({"gen_ai.operation.name": "chat"}, "invoke_agent Max", None),
        ({"traceloop.span.kind": "agent"}, "Max.agent", "Max"),
        ({"traceloop.span.kind": "agent"}, ".agent", ".agent"),
        ({"agent_forge.kind": "agent"}, "run", None),
        ({"agent_forge.kind": "agent", "gen_ai.operation.name": "invoke_agent"}, "run", None),
    ],
)
def test_the_name_of_an_agent_span_stands_in_for_the_agent(
    attributes: dict[str, Any], name: str, agent: str | None
) -> None:
    assert fill(make(name=name, kind="other", attributes=attributes)).agent == agent


def test_what_we_recorded_keeps_its_agent_or_has_none() -> None:
    foreign = {"openinference.span.kind": "AGENT"}
    for agent, kind, attributes in [
        (None, "agent", {}), ("run", "agent", {}), ("run", "tool", foreign), ("run", "agent", foreign),
        ("Max", "agent", {"traceloop.span.kind": "agent"}),
    ]:  # fmt: skip
        for name in ("run", "Max.agent"):
            told = to_attributes(make(name=name, kind=kind, agent=agent, attributes=attributes))
            back = fill(make(name=name, kind="other", attributes=told))
            assert (back.agent, back.kind) == (agent, kind), (name, attributes)
    asked = {"openinference.span.kind": "LLM", "llm.invocation_parameters": '{"model": "m"}'}
    assert read(to_attributes(make(kind="tool", model="m", attributes=asked))).model == "m"


@pytest.mark.parametrize(
    ("kind", "told", "model"),
    [
        ("LLM", '{"model": "tiny-1", "top_p": 0.9}', "tiny-1"), ("LLM", '{"model_name": "tiny-1"}', "tiny-1"),
        ("LLM", '{"model": "a", "model_name": "b"}', "a"), ("LLM", '{"model": ""}', None),
        ("LLM", '{"model": 3}', None), ("LLM", "tiny-1", None), ("LLM", "{broken", None),
        ("TOOL", '{"model": "tiny-1"}', None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["llm.invocation_parameters", "embedding.invocation_parameters"])
def test_a_call_that_failed_before_the_answer_names_the_model_that_was_asked(
    name: str, kind: str, told: str, model: str | None
) -> None:
    assert read({"openinference.span.kind": kind, name: told}).model == model
    assert read({"openinference.span.kind": kind, name: told, "llm.model_name": "x"}).model == "x"


@pytest.mark.parametrize("name", NAMES["session"])
def test_the_nearest_place_that_tells_the_session_counts(name: str) -> None:
    def session(span: Any = None, scope: Any = None, resource: Any = None) -> str | None:
        places = [{} if value is None else {name: value} for value in (span, scope, resource)]
        made = make(kind="other", attributes=places[0], scope={"attributes": places[1]}, resource=places[2])
        return fill(made).session

    assert session("a", "b", "c") == "a"
    assert session(None, "b", "c") == "b"
    assert session(None, None, "c") == "c"
    assert session("", "", "c") == "c"
    assert session("", None, None) == ""
    assert session(None, None, 7) == "7"
    assert session(None, 1.5, ["x"]) is None
    assert session(None, None, "nul \0") == "nul \ufffd"
    assert fill(make(kind="other")).session is None


def test_a_session_of_the_resource_is_written_only_where_the_resource_is_not() -> None:
    span = fill(make(kind="other", resource={"session.id": "s"}, otel_kind=1))
    assert (span.session, to_attributes(span)) == ("s", {})
    assert to_attributes(span, alone=True) == {"gen_ai.conversation.id": "s"}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(json_values.filter(lambda value: value is not None))
def test_text_of_a_value_gives_the_value_back(value: Any) -> None:
    text = text_of(value)
    back = value_of(text)
    assert isinstance(text, str)
    assert back == (
        value if not isinstance(value, str) else value.encode("utf-8", "replace").decode() if text != value else value
    )
    assert type(back) is type(value)
