"""Tool calls in what models write, conversations as prompts, and the small parts that need no server."""

from __future__ import annotations

import asyncio
import doctest
import importlib
import json
from typing import Any

import pytest
from agents_tiny_model import tiny_tokenizer

from agent_forge.inference.prompt import chat_prompt
from agent_forge.inference.tool_calls import Screen, split_calls
from agent_forge.refusal import Refusal

NAMES = ("find", "count")
CALL = '{"name": "find", "arguments": {"for": "otters"}}'

WRITTEN = [
    (f"<tool_call>{CALL}</tool_call>", "", ["find"]),
    (f"I look.\n<tool_call>\n{CALL}\n</tool_call>", "I look.", ["find"]),
    (f"<tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call>", "", ["find", "find"]),
    (f"<tool_call>[{CALL}, {CALL}]</tool_call>", "", ["find", "find"]),
    (f"<tool_call>{CALL}", "", ["find"]),  # cut off before the closing tag, or stopped there
    (CALL, "", ["find"]),
    (f"  {CALL}\n", "", ["find"]),
    (f"[{CALL}]", "", ["find"]),
    (f"```json\n{CALL}\n```", "", ["find"]),
    ('{"name": "count", "parameters": {"n": 1}}', "", ["count"]),
    ('{"type": "function", "function": {"name": "count", "arguments": "{\\"n\\": 1}"}}', "", ["count"]),
    ('{"name": "find"}', "", ["find"]),
]
NOT_CALLS = [
    "Just words.",
    '{"name": "delete", "arguments": {}}',
    '{"name": "find", "arguments": 7}',
    '{"name": "find", "arguments": "not json"}',
    '<tool_call>{"name": "find", "argum</tool_call>',
    f"Here is one: {CALL}",
    f'[{CALL}, {{"name": "other"}}]',
    "[]",
    "7",
    "{" * 100_000,
    '{"name": ["find"], "arguments": {}}',
]


@pytest.mark.parametrize(("text", "rest", "names"), WRITTEN)
def test_calls_are_found(text: str, rest: str, names: list[str]) -> None:
    left, calls = split_calls(text, NAMES)
    assert (left, [call.name for call in calls]) == (rest, names)
    assert all(isinstance(json.loads(call.arguments), dict) for call in calls)
    assert len({call.id for call in calls}) == len(calls)


@pytest.mark.parametrize("text", NOT_CALLS, ids=lambda text: text[:30])
def test_what_is_no_call_stays_text(text: str) -> None:
    assert split_calls(text, NAMES) == (text, [])


@pytest.mark.parametrize("text", [*(row[0] for row in WRITTEN), *NOT_CALLS[:-2], "a <tool> b <tool_", "  {x"])
def test_a_screen_shows_text_and_holds_calls_whatever_the_pieces(text: str) -> None:
    """Letter by letter: what is shown, with what is left at the end, is the text; and no call was ever shown."""
    screen = Screen()
    shown = "".join(part for letter in text for part in screen.add(letter))
    assert shown + screen.held == text
    assert "<tool_call>" not in shown
    rest, calls = split_calls(screen.held, NAMES)
    assert calls or shown + rest == text


def test_a_closing_tag_in_an_argument_does_not_end_the_call() -> None:
    text = '<tool_call>{"name": "find", "arguments": {"for": "</tool_call>"}}</tool_call> <tool_call>{"name": "find"}'
    left, calls = split_calls(text, NAMES)
    assert left == ""
    assert [json.loads(call.arguments) for call in calls] == [{"for": "</tool_call>"}, {}]


# Prompts

TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]


def read(messages: list[dict[str, Any]], tools: Any = (), template: str | None = None) -> str:
    tokenizer = tiny_tokenizer(template)
    return str(tokenizer.decode(chat_prompt(tokenizer, messages, tools)))


def test_without_a_template_messages_are_lines() -> None:
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert read(messages) == "system: Be brief.\n\nuser: hi\n\nassistant:"


def test_a_template_that_knows_no_tools_gets_them_described() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "find", "arguments": '{"for": "x"}'}}
    odd = {"id": "c", "type": "function", "function": {"name": "find", "arguments": "no json"}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call, odd]},
        {"role": "tool", "content": "otter"},
    ]
    text = read(messages, TOOLS)
    assert text.startswith("system: Be brief.\n\nYou may call these functions:")
    assert '"name": "find"' in text
    assert "user: a\nb" in text
    assert '<tool_call>{"name": "find", "arguments": {"for": "x"}}</tool_call>' in text
    assert '{"text": "no json"}' in text
    assert "<tool_response>otter</tool_response>" in text
    assert read(messages[1:2], TOOLS).startswith("system: You may call")


def test_a_template_that_knows_tools_gets_them() -> None:
    template = (
        "{% if tools %}{{ tools[0].function.name }}{% endif %}{% for m in messages %}|{{ m.content }}{% endfor %}"
    )
    assert read([{"role": "user", "content": "hi"}], TOOLS, template) == "find|hi"


def test_messages_that_a_template_refuses_are_refused() -> None:
    template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(Refusal, match="roles must alternate"):
        read([{"role": "user", "content": "hi"}], template=template)


# The client for agents


def test_a_model_of_the_server_is_a_client(live: Any) -> None:
    from agent_forge.errors import ModelError
    from agent_forge.server.models.client import EngineClient

    client = EngineClient(live.context.parts["models"].ready()[0])
    messages = [{"role": "user", "content": "hi"}]

    async def ask() -> Any:
        whole = await client.complete(messages, max_tokens=8)
        stream = client.stream(messages, max_tokens=8)
        pieces = [piece async for piece in stream]
        with pytest.raises(ModelError, match="context"):
            await client.complete([{"role": "user", "content": "x" * 5000}])
        left = client.stream(messages, max_tokens=900, tools=TOOLS)
        async for _ in left:
            break
        await left.aclose()
        return whole, pieces, stream.completion

    whole, pieces, last = asyncio.run(ask())
    assert "".join(pieces) == whole.text == last.text
    assert (whole.usage.output_tokens, whole.finish_reason, whole.model) == (8, "length", "tiny")


# Examples in docstrings


@pytest.mark.parametrize(
    "name",
    ["settings", "hub", "sse", "security", "request_log", "openapi", "app", "inference.rows", "inference.tool_calls"],
)
def test_the_examples_in_docstrings_hold(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(f"agent_forge.{name}" if "." in name else f"agent_forge.server.{name}")
    flags = doctest.IGNORE_EXCEPTION_DETAIL
    found = doctest.testmod(module, optionflags=flags)
    assert found.attempted > 0
    assert found.failed == 0
