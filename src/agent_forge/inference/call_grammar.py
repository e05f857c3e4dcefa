"""What a model in process may write, given the tools it may call and the schema of its answer, as a Lark grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agent_forge.inference.client import Request

MOST_CALLS = 8  # in one answer: a weak model would otherwise call for ever
# Separators as `json.dumps` and the chat templates write them; free blanks are what a weak model would fill pages with.
_SPACING = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
_CALLS = f"""rest: "\\n"? body "\\n"? "</tool_call>"
more: "\\n"? "<tool_call>" rest
calls: "<tool_call>" rest more{{0,{MOST_CALLS - 1}}}
before[suffix="<tool_call>"]: /[^<](?s:.*)/
thought: before rest more{{0,{MOST_CALLS - 1}}}"""
_TEXT = r"TEXT: /[^<](?s:.*)/ & ~/(?s:.*)<tool_call>(?s:.*)/"  # no call in it


def grammar_of(request: Request) -> str | None:
    """The grammar of an answer to this request; None where anything may be written."""
    if not request.may_call and request.answer_schema is None:
        return None
    answer = "TEXT" if request.answer_schema is None else f"%json {_json(request.answer_schema)}"
    if not request.may_call:
        return f"start: {answer}\n{_TEXT}"
    specs = [spec.get("function", spec) for spec in request.tools]
    body = f"body: {' | '.join(f'%json {_json(_call(spec))}' for spec in specs)}"
    # Words before a call are allowed unless one is required: they might never come to it.
    start = "calls" if request.tool_choice == "required" else f"calls | thought | {answer}"
    return "\n".join([f"start: {start}", _CALLS, body, _TEXT])


def _call(spec: Mapping[str, Any]) -> dict[str, Any]:
    arguments = spec.get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False}
    return {
        "type": "object",
        "properties": {"name": {"const": spec["name"]}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _json(schema: Mapping[str, Any]) -> str:
    return json.dumps({**schema, **_SPACING})
