"""The OpenAI chat format on the wire: whole answers, and answers assembled from server-sent events."""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from agent_forge.errors import ModelError
from agent_forge.inference.client import Completion, TokenUsage, ToolCall

MOST_EVENT_BYTES = 4_000_000
DONE = "[DONE]"
_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")


class BrokenStream(ModelError):
    """A stream that ended before the answer did; `partial` is the text received."""

    def __init__(self, what: str, *, where: str | None = None, partial: str = "") -> None:
        super().__init__(what, where=where)
        self.partial = partial


class MalformedCall(ModelError):
    """A tool call whose arguments are not a JSON object; `tool` and `arguments` are what the model wrote."""

    def __init__(self, what: str, tool: str, arguments: str, *, where: str) -> None:
        super().__init__(f"the arguments of the call of {tool!r} are {what}: {arguments[:200]}", where=where)
        self.tool = tool
        self.arguments = arguments


def read_completion(document: Any, *, model: str, where: str) -> Completion:
    """The Completion in the JSON of a whole answer. Raises ModelError if it is not one."""
    try:
        choice = document["choices"][0]
        message = choice["message"]
        functions = [(str(call.get("id") or ""), call["function"]) for call in message.get("tool_calls") or ()]
        calls = tuple(
            ToolCall(name, str(f["name"]), _arguments(f.get("arguments"), f["name"], where)) for name, f in functions
        )
        return Completion(
            _content(message.get("content")),
            str(document.get("model") or model),
            choice.get("finish_reason"),
            calls,
            read_usage(document.get("usage")),
        )
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        text = json.dumps(document, ensure_ascii=False)[:200]
        raise ModelError(f"the answer is not a chat completion: {text}", where=where) from error


def _content(content: Any) -> str:
    """The text of a message: a string, null, or the text parts of a list."""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if part.get("type") == "text")
    return "" if content is None else str(content)


def _arguments(raw: Any, name: str, where: str) -> dict[str, Any]:
    """The arguments of a tool call: JSON text as the API specifies, or an object as some servers send."""
    if raw in (None, ""):
        return {}
    try:
        value = json.loads(raw) if isinstance(raw, str) else raw
    except json.JSONDecodeError as error:
        raise MalformedCall("not JSON", name, raw, where=where) from error
    if not isinstance(value, dict):
        raise MalformedCall("not an object", name, str(raw), where=where)
    return value


def read_usage(usage: Any) -> TokenUsage:
    """The token counts and the cost (OpenRouter and others report it); None for what the server does not report."""
    if not isinstance(usage, dict):
        return TokenUsage()
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    counts = [usage.get("prompt_tokens"), usage.get("completion_tokens"), cached]
    read, written, cached = (count if type(count) is int else None for count in counts)
    cost: Any = usage.get("cost")
    if type(cost) not in (int, float) or not 0 <= cost < math.inf:
        cost = None
    return TokenUsage(read, written, cost, cached)


async def events(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """The data of server-sent events. Lines end with \\n, \\r\\n or \\r only: text may contain U+2028."""
    buffer = bytearray()
    data: list[str] = []
    async for chunk in chunks:
        buffer += chunk
        if len(buffer) > MOST_EVENT_BYTES:
            raise ModelError(f"an event of the stream is larger than {MOST_EVENT_BYTES:,} bytes")
        for line in _lines(buffer):
            if line:
                data += _data(line)
            elif data:
                yield "\n".join(data)
                data = []
    data += _data(bytes(buffer))
    if data:
        yield "\n".join(data)


def _lines(buffer: bytearray) -> list[bytes]:
    """Removes the complete lines from the buffer. A trailing \\r may be half of \\r\\n, so it stays."""
    lines, start = [], 0
    for match in _LINE_END.finditer(buffer):
        lines.append(bytes(buffer[start : match.start()]))
        start = match.end()
    del buffer[:start]
    return lines


def _data(line: bytes) -> list[str]:
    if not line.startswith(b"data:"):
        return []  # comments, event names, ids
    return [line[5:].removeprefix(b" ").rstrip(b"\r").decode("utf-8", errors="replace")]


@dataclass(slots=True)
class Assembly:
    """A Completion assembled from the events of a stream."""

    model: str
    where: str
    text: list[str] = field(default_factory=list)
    calls: list[dict[str, str]] = field(default_factory=list)
    finish_reason: str | None = None
    usage: TokenUsage = field(default_factory=TokenUsage)

    def add(self, data: str) -> str:
        """Adds one event and returns its text. Raises ModelError for an error in the stream."""
        try:
            event = json.loads(data)
        except json.JSONDecodeError as error:
            raise self.broken(f"an event is not JSON: {data[:200]!r}") from error
        if not isinstance(event, dict):
            raise self.broken(f"an event is not an object: {data[:200]!r}")
        if event.get("error"):
            raise self.broken(f"the server reports: {server_message(event) or event['error']}")
        self.model = str(event.get("model") or self.model)
        if event.get("usage"):
            self.usage = read_usage(event["usage"])
        try:
            return "".join(self._choice(choice) for choice in (event.get("choices") or [])[:1])
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise self.broken(f"an event is not part of a chat completion: {data[:200]!r}") from error

    def _choice(self, choice: dict[str, Any]) -> str:
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        delta = choice.get("delta") or {}
        for call in delta.get("tool_calls") or ():
            self._tool_delta(call)
        text = _content(delta.get("content"))
        if text:
            self.text.append(text)
        return text

    def _tool_delta(self, delta: dict[str, Any]) -> None:
        """A piece of a tool call. `index` names the call; servers that omit it start each call with its id."""
        index = delta.get("index")
        if not isinstance(index, int):
            index = len(self.calls) if delta.get("id") or not self.calls else len(self.calls) - 1
        while len(self.calls) <= min(index, 127):
            self.calls.append({"id": "", "name": "", "arguments": ""})
        call, function = self.calls[index], delta.get("function") or {}
        call["id"] = call["id"] or str(delta.get("id") or "")
        call["name"] += str(function.get("name") or "")
        raw = function.get("arguments") or ""
        call["arguments"] += raw if isinstance(raw, str) else json.dumps(raw)

    def broken(self, what: str) -> BrokenStream:
        return BrokenStream(what, where=self.where, partial="".join(self.text))

    def completion(self, *, ended: bool) -> Completion:
        """The whole answer. Raises BrokenStream if neither the end marker nor a finish reason arrived."""
        if not ended and self.finish_reason is None:
            raise self.broken("the stream broke off before the answer was complete")
        calls = tuple(
            ToolCall(call["id"], call["name"], _arguments(call["arguments"], call["name"], self.where))
            for call in self.calls
        )
        return Completion("".join(self.text), self.model, self.finish_reason, calls, self.usage)


def server_message(document: Any) -> str | None:
    """The message in an error body, in any of the common formats."""
    if not isinstance(document, dict):
        return None
    error = document.get("error", document.get("detail", document.get("message")))
    if isinstance(error, dict):
        error = error.get("message")
    return error if isinstance(error, str) else None
