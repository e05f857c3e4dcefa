"""Tool calls in the output of a model: `<tool_call>{…}</tool_call>` as Hermes and Qwen write them, or bare JSON."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_forge.inference.grammar import CLOSE, OPEN

_DECODER = json.JSONDecoder()
_FENCE = re.compile(r"\A```(?:json)?(.*)```\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an offered function. `arguments` is JSON text, as in the OpenAI API."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}")

    @property
    def document(self) -> dict[str, Any]:
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


def split_calls(text: str, names: Sequence[str]) -> tuple[str, list[Call]]:
    """The text without its calls, and the calls. Anything but a valid call of an offered function stays text.

    >>> split_calls('I look. <tool_call>{"name": "find", "arguments": {"for": "otters"}}</tool_call>', ["find"])[0]
    'I look.'
    >>> [(call.name, call.arguments) for call in split_calls('{"name": "find", "parameters": {}}', ["find"])[1]]
    [('find', '{}')]
    >>> split_calls('{"name": "delete", "arguments": {}}', ["find"])
    ('{"name": "delete", "arguments": {}}', [])
    """
    calls: list[Call] = []
    rest, at = "", 0
    while (start := text.find(OPEN, at)) >= 0:
        body, end = _block(text, start + len(OPEN))
        in_block = _calls(body, names)
        calls += in_block
        rest += text[at:start] if in_block else text[at:end]
        at = end
    if calls:
        return (rest + text[at:]).strip(), calls
    stripped = text.strip()
    fenced = _FENCE.match(stripped)
    whole = _calls(fenced[1] if fenced else stripped, names)
    return ("", whole) if whole else (text, [])


def _block(text: str, start: int) -> tuple[str, int]:
    """What stands in the block from `start` on, and where the block ends. A closing tag in a JSON string does not end
    it; without one, the block is the rest of the text."""
    begin = start + len(text[start:]) - len(text[start:].lstrip())
    try:
        after = _DECODER.raw_decode(text, begin)[1]
    except (ValueError, RecursionError):
        after = begin
    close = text.find(CLOSE, after)
    return (text[start:], len(text)) if close < 0 else (text[start:close], close + len(CLOSE))


def _calls(text: str, names: Sequence[str]) -> list[Call]:
    """The calls in a JSON text; none unless all of it is calls."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return []
    calls = [_call(one, names) for one in (document if isinstance(document, list) else [document])]
    return [call for call in calls if call is not None] if all(calls) else []


def _call(document: Any, names: Sequence[str]) -> Call | None:
    if not isinstance(document, Mapping):
        return None
    inner = document.get("function")
    if isinstance(inner, Mapping):
        document = inner
    name = document.get("name", inner)
    arguments = document.get("arguments", document.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return None
    if name not in names or not isinstance(arguments, Mapping):
        return None
    return Call(str(name), json.dumps(arguments, ensure_ascii=False))


class Screen:
    """Passes text on while it cannot be a call, and holds back the rest until the end.

    >>> screen = Screen()
    >>> list(screen.add("I look. <tool")), list(screen.add('_call>{"name"')), screen.held
    (['I look. '], [], '<tool_call>{"name"')
    """

    def __init__(self) -> None:
        self.held = ""
        self._started = False  # something besides blanks was passed on
        self._closed = False

    def add(self, text: str) -> Iterator[str]:
        self.held += text
        if self._closed:
            return
        free = self._free()
        text, self.held = self.held[:free], self.held[free:]
        if text:
            self._started = self._started or bool(text.strip())
            yield text

    def _free(self) -> int:
        """How many characters of what is held cannot belong to a call."""
        if not self._started:
            start = self.held.lstrip()
            if not start:
                return 0
            if start[0] in "{[`":
                self._closed = True
                return 0
        at = self.held.find(OPEN)
        if at >= 0:
            self._closed = True
            return at
        dangling = next((n for n in range(len(OPEN) - 1, 0, -1) if self.held.endswith(OPEN[:n])), 0)
        return len(self.held) - dangling
