"""Data sets from traces: conversations, preference pairs, balanced samples, and what Agent Lightning really reads."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest
from understand_graphs import make, sid

from agent_forge.errors import UsageError
from agent_forge.traces.chat import conversation, tools_offered
from agent_forge.traces.dataset import DATASETS, balanced, dpo, messages, sharegpt, write_dataset
from agent_forge.traces.lightning import agent_lightning

ROUNDTRIP = Path(__file__).parents[2] / "benchmarks" / "agent_lightning_roundtrip.py"
SEARCH = {"id": "c1", "name": "search", "arguments": {"query": "otters"}}


def call(name, start, given, answer, parent=None, **fields):
    return make(name, start, start + 1, parent, kind="model", model="m", inputs=given, outputs=answer, **fields)


def turn(role, content, **fields):
    return {"role": role, "content": content, **fields}


def two_turns(reward=None):
    """A model that asks for a tool, then answers: the second call continues the first."""
    first = [turn("system", "Be brief."), turn("user", "Otters?")]
    asked = turn("assistant", "", tool_calls=[SEARCH])
    second = [*first, asked, turn("tool", "They swim.", tool_call_id="c1")]
    return [
        make("r", 0, 9, kind="agent", agent="A", reward=reward),
        call("a", 0, {"messages": first, "tools": [{"name": "search"}]}, {"text": "", "tool_calls": [SEARCH]}, "r"),
        make("t", 2, 3, "r", inputs={"query": "otters"}, outputs="They swim."),
        call("b", 4, {"messages": second, "tools": [{"name": "search"}]}, {"text": "They swim well."}, "r"),
    ]


# -- conversations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        ("Hello", "Hi", [("user", "Hello"), ("assistant", "Hi")]),
        ({"prompt": "Hello", "system": "S"}, {"text": "Hi"}, [("system", "S"), ("user", "Hello"), ("assistant", "Hi")]),
        ([turn("user", "Hello")], turn("assistant", "Hi"), [("user", "Hello"), ("assistant", "Hi")]),
        (  # OpenAI: parts, and an answer in choices
            {"messages": [turn("user", [{"type": "text", "text": "Hello"}, {"type": "image_url", "image_url": {}}])]},
            {"choices": [{"message": turn("assistant", "Hi")}, {"message": turn("assistant", "No")}]},
            [("user", "Hello"), ("assistant", "Hi")],
        ),
        (  # OpenTelemetry GenAI
            [{"role": "user", "parts": [{"type": "text", "content": "Hello"}]}],
            [{"role": "assistant", "parts": [{"type": "text", "content": "Hi"}], "finish_reason": "stop"}],
            [("user", "Hello"), ("assistant", "Hi")],
        ),
        (  # Anthropic: the result of a tool comes in a user's message
            [turn("user", [{"type": "tool_result", "tool_use_id": "x", "content": [{"type": "text", "text": "7"}]},
                           {"type": "text", "text": "Go on"}])],
            turn("model", [{"type": "text", "text": "Hi"}]),
            [("tool", "7"), ("user", "Go on"), ("assistant", "Hi")],
        ),
        ([turn("human", "Hello")], 7, [("user", "Hello"), ("assistant", "7")]),
        (None, "", []),
    ],
)  # fmt: skip
def test_conversations_in_many_dialects(inputs, outputs, expected):
    given, answer = conversation(call("a", 0, inputs, outputs))
    assert [(message["role"], message["content"]) for message in given + answer] == expected


@pytest.mark.parametrize(
    "answer",
    [
        {"text": "", "tool_calls": [SEARCH]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"query": "otters"}'}}]},
        [{"role": "assistant", "parts": [
            {"type": "tool_call", "id": "c1", "name": "search", "arguments": {"query": "otters"}}]}],
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": "c1", "name": "search", "input": {"query": "otters"}}]},
    ],
)  # fmt: skip
def test_calls_of_tools_in_many_dialects(answer):
    assert conversation(call("a", 0, "Otters?", answer))[1] == [turn("assistant", "", tool_calls=[SEARCH])]


def test_arguments_that_are_not_json_are_kept_as_text():
    broken = {"text": "", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{oops"}}]}
    assert conversation(call("a", 0, "x", broken))[1][0]["tool_calls"][0]["arguments"] == {"text": "{oops"}


def test_offered_tools_are_found_where_they_were_recorded():
    assert tools_offered(two_turns()[1]) == [{"name": "search"}]
    span = call("a", 0, "x", "y")
    assert tools_offered(span) is None
    span.attributes["gen_ai.tool.definitions"] = [{"name": "f"}]
    assert tools_offered(span) == [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    ("attributes", "parameters"),
    [
        ({"gen_ai.tool.definitions": '[{"type": "function", "name": "f", "parameters": {"type": "object"}}]'}, True),
        ({"llm.tools.0.tool.json_schema": '{"function": {"name": "f", "parameters": {"type": "object"}}, '
                                          '"type": "function"}'}, True),
        ({"llm.request.functions.0.name": "f", "llm.request.functions.0.parameters": '{"type": "object"}'}, True),
        ({"llm.request.functions.0.name": "f"}, False),
    ],
)  # fmt: skip
def test_tools_of_every_dialect_come_out_as_openai_has_them(attributes, parameters):
    span = call("a", 0, "x", "y")
    span.attributes |= attributes
    function = {"name": "f", "parameters": {"type": "object"}} if parameters else {"name": "f"}
    assert tools_offered(span) == [{"type": "function", "function": function}]


def test_tools_that_cannot_be_read_were_not_offered():
    for name in ("gen_ai.tool.definitions", "llm.tools.0.tool.json_schema"):
        span = call("a", 0, "x", "y")
        span.attributes[name] = "{cut short"
        assert tools_offered(span) is None


@pytest.mark.parametrize("text", ['[{"type": "text", "content": "Be brief."}]', "Be brief."])
def test_instructions_that_stand_beside_the_messages_are_the_first_message(text):
    span = call("a", 0, [turn("user", "Hello")], "Hi")
    span.attributes["gen_ai.system_instructions"] = text
    assert conversation(span)[0] == [turn("system", "Be brief."), turn("user", "Hello")]
    span.inputs = [turn("system", "Be long."), turn("user", "Hello")]
    assert conversation(span)[0] == span.inputs
    span.inputs = None
    assert conversation(span)[0] == []


# -- supervised --------------------------------------------------------------------------------------------------------


def test_a_conversation_that_goes_on_is_one_example():
    (line,) = messages([two_turns(reward=0.9)])
    assert [message["role"] for message in line["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert line["messages"][2]["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"query": "otters"}'}}
    ]
    assert line["messages"][3] == turn("tool", "They swim.", tool_call_id="c1")
    assert (line["reward"], line["span_id"], line["tools"]) == (0.9, sid("b"), [{"name": "search"}])


def test_failed_calls_and_small_rewards_are_left_out():
    failed = [call("a", 0, "Hello", "Hi", status="error")]
    unknown, poor = [call("a", 0, "Hello", "Hi")], [call("a", 0, "Hello", "Hi", reward=0.2)]
    assert len(list(messages([failed, unknown, poor]))) == 2
    assert "reward" not in next(messages([unknown]))
    assert list(messages([failed, unknown, poor], min_reward=0.5)) == []


def test_sharegpt_names_calls_and_results():
    (line,) = sharegpt([two_turns()])
    assert [turn["from"] for turn in line["conversations"]] == [
        "system", "human", "function_call", "observation", "gpt",
    ]  # fmt: skip
    assert json.loads(line["conversations"][2]["value"]) == {"name": "search", "arguments": {"query": "otters"}}


# -- preferences -------------------------------------------------------------------------------------------------------


def test_pairs_are_the_best_and_the_worst_answer_to_the_same_conversation():
    def trace(answer, reward, question="Otters?"):
        return [call("a", 0, question, answer, reward=reward)]

    lines = list(
        dpo([trace("They swim.", 0.9), trace("No idea.", 0.1), trace("Maybe.", 0.5), trace("?", 0.0, "Cats?"),
             trace("Unverified.", None), [call("a", 0, "Otters?", "Failed.", reward=0.0, status="error")]])
    )  # fmt: skip
    (pair,) = lines
    assert pair["prompt"] == [turn("user", "Otters?")]
    assert (pair["chosen"], pair["rejected"]) == ([turn("assistant", "They swim.")], [turn("assistant", "No idea.")])
    assert (pair["chosen_reward"], pair["rejected_reward"]) == (0.9, 0.1)
    assert list(dpo([trace("a", 0.5), trace("b", 0.45)])) == []
    assert list(dpo([trace("same", 0.9), trace("same", 0.1)])) == []


# -- samples -----------------------------------------------------------------------------------------------------------


def test_balancing_is_half_and_half_and_tells_the_natural_rate():
    traces = [[make(f"s{i}", 0, 1, reward=1.0)] for i in range(30)] + [
        [make(f"f{i}", 0, 1, reward=0.0)] for i in range(10)
    ]
    traces += [[make("u", 0, 1, status="unset")], [make("e", 0, 1, status="error")]]
    sample = balanced(traces, seed=1)
    assert (sample.successes, sample.failures, sample.unknown) == (11, 11, 1)
    assert sample.natural_rate == pytest.approx(30 / 41)
    assert len({id(trace) for trace in sample.traces}) == 22
    assert balanced(traces, seed=1).traces == sample.traces
    assert balanced(traces, 6).successes == 3
    assert balanced([]).natural_rate is None


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", DATASETS)
def test_files_are_json_lines(format, tmp_path):
    path = tmp_path / "out.jsonl"
    other = [call("z", 0, [turn("system", "Be brief."), turn("user", "Otters?")], "No.", reward=0.0)]
    count = write_dataset([two_turns(reward=0.9), other], format, str(path))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == count
    assert count > 0 or format == "dpo"


def test_an_unknown_format_is_refused_and_nothing_written(tmp_path):
    with pytest.raises(UsageError, match="sharegpt"):
        write_dataset([], "csv", str(tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []


# -- Agent Lightning ---------------------------------------------------------------------------------------------------


def test_lightning_spans_have_ids_in_order_and_rewards_beside_what_they_judge():
    trace = two_turns(reward=0.9)
    trace[0].attributes["agent_forge.reward.components"] = [{"name": "tests", "value": 0.9, "weight": 1.0}]
    trace[3].end_ns, trace[3].reward = None, 0.4
    lines = list(agent_lightning([trace]))
    assert [line["sequence_id"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert {line["rollout_id"] for line in lines} == {"ro-" + "1" * 32}
    rewards = {line["span_id"]: line for line in lines if line["name"] == "agentlightning.annotation"}
    assert [line["attributes"]["agentlightning.reward.0.value"] for line in rewards.values()] == [0.4, 0.9]
    assert list(rewards.values())[1]["attributes"]["agentlightning.reward.1.name"] == "tests"
    others = [line for line in lines if line["span_id"] not in rewards]
    assert not any(name.startswith("agentlightning.reward") for line in others for name in line["attributes"])
    assert all(line["end_time"] is not None for line in lines)
    calls = [line for line in lines if line["name"] == "openai.chat.completion"]
    assert calls[1]["attributes"]["gen_ai.prompt.3.tool_call_id"] == "c1"
    assert calls[0]["attributes"]["gen_ai.completion.0.tool_calls.0.name"] == "search"


def test_lightning_attributes_are_what_opentelemetry_can_carry():
    span = make("a", 0, 1, attributes={"nested": {"x": 1}, "mixed": [1, "a"], "list": [1, 2], "text": "t"})
    (line,) = agent_lightning([[span]])
    found = line["attributes"]
    assert (found["nested"], found["mixed"], found["list"], found["text"]) == ('{"x": 1}', '[1, "a"]', [1, 2], "t")


def load_roundtrip():
    spec = importlib.util.spec_from_file_location("agent_lightning_roundtrip", ROUNDTRIP)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("credit", [None, "shapley"])
def test_the_real_package_reads_it_with_its_own_store_and_adapters(credit, tmp_path):
    python = os.environ.get("AGENT_FORGE_AGL_PYTHON")
    if not python or not Path(python).exists():
        pytest.skip("agentlightning 0.3 is not here: set AGENT_FORGE_AGL_PYTHON to an interpreter that has it")
    roundtrip = load_roundtrip()
    traces = roundtrip.make_traces(5, seed=7)
    path = str(tmp_path / "spans.jsonl")
    write_dataset(traces, "agent-lightning", path, credit=credit)
    found = roundtrip.feed(python, path)
    assert found["version"].startswith("0.3")
    assert roundtrip.differences(traces, found, credit) == []
