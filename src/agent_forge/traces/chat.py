"""The conversation in a model span, whichever way it was recorded, as plain chat messages.

A message is {"role", "content"}, with "tool_calls" ([{"id", "name", "arguments"}]) on an assistant's and "tool_call_id"
on a tool's. Read: lists of such messages, OpenAI's (content parts, function objects), the GenAI conventions' (`parts`),
Anthropic's content blocks, a prompt as text, a completion's `choices`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from agent_forge.traces.conventions import unflatten, value_of

if TYPE_CHECKING:
    from agent_forge.traces.span import Span

Message = dict[str, Any]


def conversation(span: Span) -> tuple[list[Message], list[Message]]:
    """The messages sent to a model and those it answered with; empty where that was not recorded.

    >>> from agent_forge.traces.span import Span
    >>> span = Span("1" * 32, "2" * 16, "chat", kind="model", inputs="Hello", outputs={"text": "Hi"})
    >>> conversation(span)
    ([{'role': 'user', 'content': 'Hello'}], [{'role': 'assistant', 'content': 'Hi'}])
    """
    prompt = _messages(span.inputs, "user")
    if prompt and not any(message["role"] == "system" for message in prompt):
        # The GenAI conventions keep instructions that are not part of the history here.
        prompt = _system({"system": value_of(span.attributes.get("gen_ai.system_instructions"))}) + prompt
    return prompt, _messages(span.outputs, "assistant")


def tools_offered(span: Span, trace: Iterable[Span] = ()) -> Any:
    """The definitions of the tools that a model could call; None where they were not recorded.

    An agent's model calls name their tools by digest, and the outermost span of the `trace` holds the definitions.
    Those from other programs' attributes are returned as OpenAI's chat API takes them.
    """
    inside = span.inputs.get("tools") if isinstance(span.inputs, Mapping) else None
    if inside:
        return inside
    if digest := span.attributes.get("tools_digest"):
        kept = (value_of(other.attributes.get("tool_schemas")) for other in trace)
        return next((one[digest] for one in kept if isinstance(one, Mapping) and digest in one), None)
    items = value_of(span.attributes.get("gen_ai.tool.definitions"))
    for prefix in () if isinstance(items, list) else ("llm.tools.", "llm.request.functions."):
        if items := unflatten(span.attributes, prefix):
            break
    tools = [_tool(item) for item in items if isinstance(item, Mapping)] if isinstance(items, list) else []
    return [tool for tool in tools if tool] or None


def _tool(item: Mapping[str, Any]) -> Any:
    """A tool as GenAI (flat), OpenInference (its schema as text) or OpenLLMetry (its parameters as text) write it."""
    if isinstance(item.get("tool"), Mapping):
        schema = value_of(item["tool"].get("json_schema"))
        return _tool(schema) if isinstance(schema, Mapping) else None
    if "function" in item or "name" not in item or item.get("type", "function") != "function":
        return item
    function = {name: value_of(value) if name == "parameters" else value for name, value in item.items()}
    return {"type": "function", "function": {name: value for name, value in function.items() if name != "type"}}


def _messages(value: Any, role: str) -> list[Message]:
    if value is None or value == "":
        return []
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if isinstance(value, list):
        return [message for item in value for message in _messages(item, role)]
    if not isinstance(value, Mapping):
        return [{"role": role, "content": json.dumps(value)}]
    if "choices" in value:
        return _messages([choice.get("message") or choice.get("text") for choice in value["choices"][:1]], role)
    for wrapper in ("messages", "message"):
        if wrapper in value:
            return _system(value) + _messages(value[wrapper], role)
    if "prompt" in value and "role" not in value:
        return _system(value) + _messages(value["prompt"], role)
    return _one(value, role)


def _system(value: Mapping[str, Any]) -> list[Message]:
    system = value.get("system") or value.get("instructions")
    return [{"role": "system", "content": _text(system)}] if system else []


def _one(value: Mapping[str, Any], role: str) -> list[Message]:
    """One message; tool results inside an Anthropic user message become messages of their own."""
    parts = value.get("parts", value.get("content", value.get("text")))
    blocks = [part for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []
    results = [_tool_result(block) for block in blocks if block.get("type") in ("tool_result", "tool_call_response")]
    message: Message = {"role": _ROLES.get(str(value.get("role", role)), str(value.get("role", role)))}
    message["content"] = _text(parts)
    calls = [_call(call) for call in value.get("tool_calls") or ()]
    calls += [_call(block) for block in blocks if block.get("type") in ("tool_use", "tool_call")]
    if calls:
        message["tool_calls"] = calls
    if value.get("tool_call_id"):
        message["tool_call_id"] = value["tool_call_id"]
    return [*results, message] if message["content"] or calls or not results else results


_ROLES = {"human": "user", "ai": "assistant", "gpt": "assistant", "model": "assistant", "developer": "system"}


def _text(parts: Any) -> str:
    if parts is None:
        return ""
    if isinstance(parts, str):
        return parts
    if isinstance(parts, Mapping):
        parts = [parts]
    if not isinstance(parts, list):
        return json.dumps(parts, ensure_ascii=False)
    texts = [
        part.get("text") or part.get("content")
        if isinstance(part, Mapping) and part.get("type", "text") in ("text", "output_text")
        else part
        for part in parts
    ]
    return "\n".join(text for text in texts if isinstance(text, str))


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function") if isinstance(call.get("function"), Mapping) else call
    assert isinstance(function, Mapping)
    arguments = function.get("arguments", function.get("input", function.get("args", {})))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {"text": arguments}  # what the model wrote was not JSON
    return {"id": call.get("id"), "name": str(function.get("name", "")), "arguments": arguments}


def _tool_result(block: Mapping[str, Any]) -> Message:
    result = block.get("content", block.get("result", block.get("response")))
    content = result if isinstance(result, str) else _text(result) or json.dumps(result, ensure_ascii=False)
    return {"role": "tool", "content": content, "tool_call_id": block.get("tool_use_id") or block.get("id")}
