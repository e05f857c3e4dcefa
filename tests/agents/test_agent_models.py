"""A three-turn tool task, done by every kind of model: behind a URL, in process, packed, and SmolLM2 from its GGUF."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("llguidance")

from agents_taught_model import PROFILE, QUESTION, convert, taught_folders, temperature  # noqa: E402
from agents_tiny_model import tiny_model, tiny_tokenizer  # noqa: E402

from agent_forge import Agent, run, tool  # noqa: E402
from agent_forge.agents.choices import choose_model, choose_planner  # noqa: E402
from agent_forge.agents.planner import LocalPlanner  # noqa: E402
from agent_forge.agents.profiles import AgentLimits, AgentProfile  # noqa: E402
from agent_forge.agents.sessions import Sessions  # noqa: E402
from agent_forge.inference import Message  # noqa: E402
from agent_forge.inference.local_model import LocalModel  # noqa: E402


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_FORGE_HOME", str(tmp_path / "home"))
    for name in ("MODEL", "PLANNER", "STORE"):
        monkeypatch.delenv(f"AGENT_FORGE_{name}", raising=False)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same small model as a plain folder and packed."""
    return taught_folders(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("kind", ["plain", "packed"])
def test_a_small_model_in_process_does_the_task(kind: str, folders: dict[str, Path]) -> None:
    result = Agent(PROFILE, [temperature, convert], str(folders[kind]), record=False).run(QUESTION)
    assert (result.state, result.answer, result.turns) == ("done", "40.1 F", 3)
    assert [(call.tool, dict(call.args), call.result) for call in result.calls] == [
        ("temperature", {"city": "Oslo"}, 4.5), ("convert", {"degrees": 4.5}, 40.1),
    ]  # fmt: skip


def test_a_packed_model_serves_every_role(folders: dict[str, Path]) -> None:
    name = str(folders["packed"])
    client = choose_model(name)
    assert client is not None
    assert isinstance(choose_planner(None, client), LocalPlanner)
    result = run(QUESTION, tools=[temperature, convert], model=name, agent=PROFILE, strategy="react", record=False)
    assert (result.answer, result.state) == ("40.1 F", "done")
    assert result.usage.model_calls == 3
    assert result.usage.tool_calls == 2


@pytest.mark.parametrize("seed", range(4))
def test_whatever_a_random_model_writes_is_a_valid_call_or_an_answer(seed: int) -> None:
    @tool
    def pick(colour: str, count: int = 1) -> str:
        """Picks."""
        return colour

    limits = AgentLimits(turns=3, answer_tokens=200, context_tokens=4096)
    model = LocalModel(lambda: (tiny_model(seed, 8192), tiny_tokenizer()), name="tiny")
    profile = AgentProfile(name="ada", limits=limits, temperature=1.0)
    result = Agent(profile, [pick], model, record=False).run("Pick a colour.")
    assert all(call.state != "invalid" for call in result.calls)


@pytest.mark.parametrize("seed", range(3))
def test_a_required_call_and_the_form_of_an_answer_are_kept_by_the_grammar(seed: int) -> None:
    model = LocalModel(lambda: (tiny_model(seed, 8192), tiny_tokenizer()), name="tiny")
    shape = {"type": "object", "properties": {"ok": {"type": "boolean"}, "of": {"enum": ["a", "b"]}},
             "required": ["ok", "of"], "additionalProperties": False}  # fmt: skip
    result = Agent(AgentProfile(name="ada", tools=()), [], model, record=False).run("Well?", answer_as=shape)
    assert result.ok
    assert set(result.answer) == {"ok", "of"}
    import asyncio

    @tool
    def choose(colour: str) -> str:
        """Chooses."""
        return colour

    spec = {**choose.spec["function"], "parameters": {
        "type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"],
        "additionalProperties": False}}  # fmt: skip
    question = [{"role": "user", "content": "Which?"}]
    offered = [{"type": "function", "function": spec}]
    completion = asyncio.run(model.complete(question, tools=offered, tool_choice="required", max_tokens=600))
    assert completion.tool_calls
    assert all(call.arguments["colour"] in ("red", "blue") for call in completion.tool_calls)
    none = asyncio.run(model.complete(question, tools=offered, tool_choice="none", max_tokens=50))
    assert not none.tool_calls


def test_even_a_random_model_makes_no_bundled_answer_worse() -> None:
    from agent_forge.agents.tools import bundled_questions

    model = LocalModel(lambda: (tiny_model(0, 16_384), tiny_tokenizer()), name="tiny")
    for question in bundled_questions()[::3]:
        without = run(question.question, record=False).answer
        assert run(question.question, model=model, record=False).answer == without


def an_exchange(name: str, order: str, city: str) -> list[Message]:
    """How such a task was done earlier in the conversation."""

    def call(tool: str, **args: str) -> Message:
        function = {"name": tool, "arguments": json.dumps(args)}
        return {"role": "assistant", "content": None, "tool_calls": [{"id": tool, "function": function}]}

    return [
        {"role": "user", "content": f"Where is the order of {name}?"},
        call("find_order", name=name),
        {"role": "tool", "tool_call_id": "find_order", "content": json.dumps(order)},
        call("track", order=order),
        {"role": "tool", "tool_call_id": "track", "content": json.dumps(city)},
        {"role": "assistant", "content": json.dumps(city)},
    ]


@pytest.mark.slow
def test_smollm2_does_a_task_of_three_turns(smollm2: LocalModel) -> None:
    """Tool, arguments and answer are the model's choice, under the grammar; the last turn has to answer."""

    @tool
    def find_order(name: str) -> str:
        """Get the order of a person."""
        return {"Ann": "A17", "Bob": "B20", "Eve": "E35"}[name]

    @tool
    def track(order: str) -> str:
        """Get the city of an order."""
        return {"A17": "Oslo", "B20": "Rome", "E35": "Paris"}[order]

    sessions = Sessions.open()
    sessions.append("orders", an_exchange("Max", "M44", "Lima") + an_exchange("Zoe", "Z91", "Bonn"))
    sessions.close()
    cities = {"enum": ["Oslo", "Rome", "Paris", "Bonn", "Lima"]}
    profile = AgentProfile(name="ada", limits=AgentLimits(turns=3, answer_tokens=40))
    agent = Agent(profile, [find_order, track], smollm2, record=False)
    result = agent.run("Where is the order of Bob?", session="orders", answer_as=cities)
    assert [(call.tool, dict(call.args), call.state) for call in result.calls] == [
        ("find_order", {"name": "Bob"}, "done"), ("track", {"order": "B20"}, "done"),
    ]  # fmt: skip
    assert (result.state, result.answer, result.turns) == ("done", "Rome", 3)
