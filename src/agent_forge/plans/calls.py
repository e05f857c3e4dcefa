"""Calls as models write them: `search("capital of {s1}")`, `compare({s1}, {s2})`, `fetch(url="…", retries=2)`.

    call  := name "(" [value ("," value)*] ")"       a value may be preceded by name "="
    value := JSON | 'text' | a reference without quotes

`search` takes queries separated by `|`; it and the other five functions of the vocabulary take one text. Values without
a name become the list `args`: a free action's parameters are known to its tool, not to the plan.
"""

from __future__ import annotations

import re
from typing import Any

from agent_forge.plans.json_text import NotJson, json_line, read_json_at
from agent_forge.plans.references import split_text, whole_reference

# The six functions, and the name of the one text that each takes.
VOCABULARY = {
    "think": "text",
    "plan": "text",
    "search": "query",
    "observation": "text",
    "reflection": "text",
    "answer": "text",
}
_NAME = re.compile(r"[^\W\d][\w.:-]*")
_KEYWORD = re.compile(r"([^\W\d]\w*)\s*=(?!=)\s*")
_SINGLE_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'")
_BLANK = re.compile(r"\s*")
_CALL_START = re.compile(r"[^\W\d][\w.:-]*\s*\(")


class NotACall(ValueError):
    """Text that begins like a call and does not continue like one."""


def looks_like_call(text: str) -> bool:
    """Whether text begins as `name(` and ends with a parenthesis.

    >>> looks_like_call('search("x")'), looks_like_call("Search for x (the city)")
    (True, False)
    """
    return text.endswith(")") and _CALL_START.match(text) is not None


def read_call(text: str) -> tuple[str, dict[str, Any]]:
    """The action and arguments of a call that is the whole text; raises `NotACall`.

    >>> read_call('search("height of {s1} | weight of {s1}")')
    ('search', {'queries': ['height of {s1}', 'weight of {s1}']})
    >>> read_call("compare({s1.height}, {s2.height}, unit='m')")
    ('compare', {'args': ['{s1.height}', '{s2.height}'], 'unit': 'm'})
    """
    try:
        action, args, end = read_call_at(text, 0)
    except NotACall:
        if (plain := _unquoted_text(text)) is not None:
            return plain
        raise
    if text[end:].strip():
        raise NotACall(f"there is more text after the call of {action}")
    return action, args


def read_call_at(text: str, start: int) -> tuple[str, dict[str, Any], int]:
    """The action and arguments of the call that begins at a position, and where it ends; raises `NotACall`."""
    name = _NAME.match(text, start)
    if name is None:
        raise NotACall("a call begins with a name")
    at = _skip(text, name.end())
    if text[at : at + 1] != "(":
        return name.group(), {}, name.end()
    positional: list[Any] = []
    named: dict[str, Any] = {}
    at = _skip(text, at + 1)
    while text[at : at + 1] != ")":
        keyword = _KEYWORD.match(text, at)
        value, at = _read_value(text, keyword.end() if keyword else at)
        if keyword is None:
            positional.append(value)
        elif keyword.group(1) in named:
            raise NotACall(f"{keyword.group(1)} occurs twice")
        else:
            named[keyword.group(1)] = value
        at = _skip(text, at)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != ")":
            raise NotACall(f"expected , or ) at {text[at : at + 20]!r}" if at < len(text) else "the call is not closed")
    return name.group(), _arguments(name.group(), positional, named), at + 1


def write_call(action: str, args: dict[str, Any], avoid: str = "") -> str | None:
    """The call that reads back as this action and these arguments; None when no call does (odd names).

    >>> write_call("compare", {"args": ["{s1}", 2], "unit": "m"})
    'compare({s1}, 2, unit="m")'
    """
    if _NAME.fullmatch(action) is None:
        return None
    own = VOCABULARY.get(action)
    rest = dict(args)
    values: list[str] = []
    if own and list(rest) == [own] and isinstance(rest[own], str):
        values.append(json_line(rest.pop(own), avoid))
    elif own == "query" and list(rest) == ["queries"] and _all_text(rest["queries"]):
        values.append(json_line(" | ".join(rest.pop("queries")), avoid))
    elif isinstance(rest.get("args"), list) and rest["args"]:
        values.extend(_value_text(value, avoid) for value in rest.pop("args"))
    values.extend(f"{key}={_value_text(value, avoid)}" for key, value in rest.items())
    named = [f"{key}={_value_text(value, avoid)}" for key, value in args.items()]
    for text in (f"{action}({', '.join(values)})", f"{action}({', '.join(named)})"):
        if _reads_back(text, action, args):
            return text
    return None


def _reads_back(text: str, action: str, args: dict[str, Any]) -> bool:
    try:
        return read_call_at(text, 0) == (action, args, len(text)) and list(read_call_at(text, 0)[1]) == list(args)
    except NotACall:
        return False


def _arguments(action: str, positional: list[Any], named: dict[str, Any]) -> dict[str, Any]:
    own = VOCABULARY.get(action)
    if own == "query" and positional and not named and _all_text(positional):
        queries = (
            [part.strip() for text in positional for part in text.split("|")] if "|" in "".join(positional) else []
        )
        if len(positional) == 1 and not queries:
            return {"query": positional[0]}
        if not all(queries):
            raise NotACall("one of the queries between | is empty")
        return {"queries": queries or positional}
    if own and len(positional) == 1 and not named and isinstance(positional[0], str):
        return {own: positional[0]}
    if not positional:
        return named
    if "args" in named:
        raise NotACall("args is given both by name and by position")
    return {"args": positional, **named}


def _all_text(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _read_value(text: str, at: int) -> tuple[Any, int]:
    if (quoted := _SINGLE_QUOTED.match(text, at)) is not None:
        return re.sub(r"\\(.)", r"\1", quoted.group(1)), quoted.end()
    try:
        return read_json_at(text, at)
    except NotJson as error:
        if text[at : at + 1] == "{":
            end = _reference_end(text, at)
            if end is not None:
                return text[at:end], end
        shown = re.split(r"[,)]", text[at : at + 40])[0]
        hint = "put text in quotes and references in braces"
        raise NotACall(f"{shown!r} is not a value ({error}); {hint}") from None


def _reference_end(text: str, at: int) -> int | None:
    """Where the reference that begins at a brace ends: the first closing brace that makes one."""
    end = at
    while (end := text.find("}", end) + 1) and end - at < 2000:
        if whole_reference(text[at:end]) is not None:
            return end
    return None


def _value_text(value: Any, avoid: str) -> str:
    if isinstance(value, str) and whole_reference(value) is not None and not any(mark in value for mark in avoid):
        return value
    return json_line(value, avoid)


def _unquoted_text(text: str) -> tuple[str, dict[str, Any]] | None:
    """`search(capital of France)` and `search("the film "Alien"")`: the vocabulary takes one text, so it is that."""
    match = re.fullmatch(r"(\w+)\s*\((.*)\)", text.strip(), re.DOTALL)
    if match is None or match.group(1) not in VOCABULARY:
        return None
    inner = match.group(2).strip()
    if len(inner) > 1 and inner[0] == inner[-1] and inner[0] in "\"'":
        inner = inner[1:-1]
    elif inner[:1] in "\"'{[" and not any(not isinstance(piece, str) for piece in split_text(inner)):
        return None  # a quote that is opened and not closed
    try:
        return match.group(1), _arguments(match.group(1), [inner], {})
    except NotACall:
        return None


def _skip(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at
