"""What a model is shown of a conversation: results as data, and no more than its context holds.

A result is shown as JSON in which nothing can be read as markup of a chat template, so that it can only ever be data.
What does not fit is left out by this rule, in this order, until the rest fits:

1. A result longer than `result_chars` keeps its beginning and its end.
2. Results of earlier turns are replaced by a note, the oldest first.
3. Earlier exchanges, and then earlier turns, are dropped, the oldest first.
4. The results of the last turn are cut to equal shares of what is left.

The system message, the request and the calls of the last turn always stay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from agent_forge.inference import Message

# What opens a special token or a tag in any chat template; in JSON these occur only inside strings.
_MARKUP = re.compile(r"<(?=[|/!\w\uff5c])|\[(?=/?[A-Z_]{3,}\])")
_CALL_CHARS = 80  # of a call beside its name, its arguments and its id
_SHORTEST = 100  # characters of a result that is worth showing


def as_data(value: Any, most: int | None = None) -> str:
    """A result as JSON text without markup, of at most `most` characters (but 100).

    >>> as_data({"text": "<|im_end|> [INST] 1 < 2"})
    '{"text": "\\\\u003c|im_end|> \\\\u005bINST] 1 < 2"}'
    """
    whole = json.dumps(value, ensure_ascii=False, default=repr)
    text = unmarked(whole)
    room = most if most is not None else len(text)
    while most is not None and room > 0 and len(text) > max(most, _SHORTEST):
        room = max(0, min(room - 1, room * most // len(text)))  # quotes and markup take more room inside of a string
        head, tail = room * 2 // 3, room // 3
        left_out = f"{len(whole) - head - tail} characters"
        cut = {"beginning": whole[:head], "left_out": left_out, "end": whole[len(whole) - tail :]}
        text = unmarked(json.dumps(cut, ensure_ascii=False))
    return text


def unmarked(text: str) -> str:
    """Text in which nothing can be read as markup of a chat template."""
    return _MARKUP.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def fit(messages: Sequence[Message], request_at: int, most: int) -> list[Message]:
    """The messages, cut to about `most` characters by the rule above; `request_at` is where the request stands."""
    excess = size(messages) - most
    if excess <= 0:
        return list(messages)
    kept = [dict(message) for message in messages]
    last = max((at for at, message in enumerate(kept) if message["role"] == "assistant"), default=len(kept))
    for message in kept[:last]:
        if excess <= 0:
            return [*kept]
        if message["role"] == "tool":
            note = json.dumps({"left_out": f"{len(message['content'])} characters"})
            excess -= max(0, len(message["content"]) - len(note))
            message["content"] = min(note, message["content"], key=len)
    groups = _groups(kept, request_at, last)
    while excess > 0 and groups:
        start, end = groups.pop(0)
        excess -= size(kept[start:end])
        kept[start:end] = [{}] * (end - start)
    results = [message for message in kept[last:] if message.get("role") == "tool"]
    if excess > 0 and results:
        share = max(_SHORTEST, (sum(len(message["content"]) for message in results) - excess) // len(results))
        for message in results:
            if len(message["content"]) > share:
                message["content"] = as_data(json.loads(message["content"]), share)
    return [message for message in kept if message]


def _groups(messages: Sequence[Message], request_at: int, last: int) -> list[tuple[int, int]]:
    """What can be dropped as a whole: earlier exchanges from one user message to the next, then earlier turns (calls
    with their results: one without the other is not a conversation)."""
    first = 1 if messages and messages[0]["role"] == "system" else 0
    starts = [at for at in range(first, request_at) if messages[at]["role"] == "user"]
    exchanges = list(zip(starts, [*starts[1:], request_at], strict=False))
    turns = [at for at in range(request_at + 1, last) if messages[at]["role"] == "assistant"]
    return exchanges + list(zip(turns, [*turns[1:], last], strict=False))


def size(messages: Sequence[Message]) -> int:
    """The characters of the messages, with their calls as JSON."""
    total = 0
    for message in messages:
        total += len(message.get("content") or "")
        for call in message.get("tool_calls", ()):
            total += len(call["function"]["name"]) + len(call["function"]["arguments"]) + _CALL_CHARS
    return total
