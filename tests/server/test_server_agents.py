"""An agent over HTTP: our client and OpenAI's own do the same three-turn tool task against the same server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

openai = pytest.importorskip("openai", reason="the openai client is not installed: the extra `dev` brings it")
pytest.importorskip("torch", reason="torch is not installed: the extra `forge` brings it")

from agents_taught_model import PROFILE, QUESTION, convert, taught_folders, temperature  # noqa: E402

from agent_forge import Agent  # noqa: E402

TOOLS = {tool.name: tool for tool in (temperature, convert)}


@pytest.fixture(scope="module")
def served(start_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    folders = taught_folders(tmp_path_factory.mktemp("taught"))
    server = start_server(models=tuple(f"{name}={folder}" for name, folder in folders.items()))
    for model in server.context.parts["models"]._served.values():
        model.ready.result(timeout=120)
    return server


def by_openai(client: Any, model: str, messages: list[dict[str, Any]], *, stream: bool) -> list[dict[str, Any]]:
    """The same loop, as a user of the `openai` package writes it; returns the conversation."""
    for _ in range(5):
        asked = {"model": model, "messages": messages, "tools": [tool.spec for tool in TOOLS.values()],
                 "temperature": 0.0, "max_tokens": PROFILE.limits.answer_tokens}  # fmt: skip
        if stream:
            with client.chat.completions.stream(**asked) as events:
                message = events.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(**asked).choices[0].message
        messages = [*messages, message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)]
        if not message.tool_calls:
            return messages
        for call in message.tool_calls:
            result = TOOLS[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
    raise AssertionError("no answer after five turns")


def said(messages: Any) -> list[tuple[Any, ...]]:
    """The messages without what differs by name only: ids, and how the JSON of arguments is spaced."""
    return [
        (
            message["role"],
            message.get("content") or None,
            [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls", ())],
        )
        for message in messages
    ]


@pytest.mark.parametrize(("model", "stream"), [("plain", False), ("packed", True)], ids=["whole", "packed-streamed"])
def test_our_client_and_openais_do_the_same_task_alike(
    served: Any, model: str, stream: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_FORGE_HOME", str(tmp_path))
    agent = Agent(PROFILE, list(TOOLS.values()), f"{served.url}/v1#{model}", record=False)
    ours = agent.run(QUESTION)
    assert (ours.state, ours.answer, ours.turns) == ("done", "40.1 F", 3)
    assert [(call.tool, call.result) for call in ours.calls] == [("temperature", 4.5), ("convert", 40.1)]
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        theirs = by_openai(client, model, agent.opening(QUESTION), stream=stream)
    assert said(theirs) == said(ours.messages)
