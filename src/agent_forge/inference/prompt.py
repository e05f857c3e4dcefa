"""Turns messages into token ids with the model's own chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agent_forge.refusal import Refusal

TOOLS = """You may call these functions:
{tools}
To call one, write <tool_call>{{"name": "...", "arguments": {{...}}}}</tool_call>."""


def chat_prompt(tokenizer: Any, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[int]:
    """The messages as ids; without a template, as `role: content` lines. Raises Refusal (400)."""
    plain = [_plain(message, place) for place, message in enumerate(messages)]
    template = tokenizer.chat_template
    if tools and "tools" not in str(template or ""):
        plain = _with_tools(plain, tools)
    if template is None:
        text = "\n\n".join(f"{message['role']}: {message['content']}" for message in plain)
        return list(tokenizer(f"{text}\n\nassistant:")["input_ids"])
    import jinja2

    named: dict[str, Any] = {"tools": [dict(tool) for tool in tools]} if tools else {}
    try:
        return list(tokenizer.apply_chat_template(plain, add_generation_prompt=True, return_dict=False, **named))
    except (jinja2.TemplateError, TypeError, KeyError, ValueError) as error:
        raise Refusal(
            400, f"the messages do not fit the model's chat template: {error}", code="bad_messages", param="messages"
        ) from error


def _plain(message: Mapping[str, Any], place: int) -> dict[str, Any]:
    """A message as templates expect it: text content, `system` for `developer`, arguments as objects."""
    plain = {name: value for name, value in message.items() if value is not None}
    plain["role"] = "system" if message["role"] == "developer" else message["role"]
    plain["content"] = _text(message.get("content"), place)
    if calls := message.get("tool_calls"):
        plain["tool_calls"] = [_call(call) for call in calls]
    return plain


def _text(content: Any, place: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = [part.get("text") if part.get("type") == "text" else None for part in content]
    if any(not isinstance(part, str) for part in parts):
        raise Refusal(400, "this model reads only text", code="unsupported_content", param=f"messages[{place}].content")
    return "\n".join(part for part in parts if part is not None)


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments") or "{}"
    try:
        arguments = json.loads(arguments)
    except ValueError:
        arguments = {"text": arguments}
    return {**call, "function": {**function, "arguments": arguments}}


def _with_tools(messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Describes the tools in the system message, for templates without tools; calls and results become text."""
    described = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    text = TOOLS.format(tools=described)
    turns = [_as_text(message) for message in messages]
    if turns and turns[0]["role"] == "system":
        return [{**turns[0], "content": f"{turns[0]['content']}\n\n{text}"}, *turns[1:]]
    return [{"role": "system", "content": text}, *turns]


def _as_text(message: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {"name": c["function"]["name"], "arguments": c["function"]["arguments"]} for c in message.get("tool_calls", ())
    ]
    written = "".join(f"<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>" for call in calls)
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>{message['content']}</tool_response>"}
    return {"role": message["role"], "content": message["content"] + written}
