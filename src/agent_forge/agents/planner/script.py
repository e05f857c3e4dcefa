"""The language of the forged planner: how it reads tools and a request, and how it writes calls.

    Tools:
    get_weather(city: string, unit?: "C"|"F" = "C") -> temperature: The weather of a city today
    send_mail(to: string, text: string): Send an e-mail
    Request: Mail Bob the weather in Oslo.
    Plan:
    1 get_weather(city="Oslo")
    2 send_mail(to="Bob", text=#1.temperature)

Values are JSON; `#1.field` is a field of the first call's result and `#1` the whole of it. A `#1` without a name is a
call that only has to wait. `?` stands for a required value that nobody gave, `none` for a request that no tool serves.
The tools come first, so that what was computed for them can be kept from one request to the next.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

NONE = "none"
MISSING = "?"
TOOL_WORDS = 18  # of a tool's description that are shown
PARAMETER_WORDS = 9  # of a parameter's
CHOICES = 12  # of an enumeration
EXAMPLES = 3  # that a parameter's description gives
_PARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[_\-./:\s]+")  # where the words of a name part
_WORD = re.compile(r"[^\W_]+")
_EXAMPLES = re.compile(r"\(?\b(?:e\.g\.|eg|such as|for example|like|i\.e\.),?\s*([^()]*)", re.IGNORECASE)
_QUOTED = re.compile(r"(?<!\w)'([^']{1,30})'(?!\w)|\"([^\"]{1,30})\"")

Function = Mapping[str, Any]  # name, description, parameters (a JSON Schema), returns (one, or the names of its fields)


def tools_text(functions: Sequence[Function]) -> str:
    """The part of a prompt that depends on the tools alone."""
    return "Tools:\n" + "".join(f"{tool_line(function)}\n" for function in functions)


def request_text(request: str) -> str:
    """The part of a prompt that follows the tools."""
    return f"Request: {' '.join(request.split())}\nPlan:\n"


def tool_line(function: Function) -> str:
    """One tool on one line, with types, choices, defaults and what a call returns."""
    schema = function.get("parameters") or {}
    required = schema.get("required") or ()
    parameters = ", ".join(parameter_text(name, each, name in required) for name, each in properties(schema).items())
    fields = ", ".join(result_fields(function))
    description = clip(function.get("description") or "", TOOL_WORDS)
    line = f"{function['name']}({parameters})"
    return line + (f" -> {fields}" if fields else "") + (f": {description}" if description else "")


def properties(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The schemas of an object's fields; one that is only `true` allows anything, as an empty one does."""
    return {name: each if isinstance(each, Mapping) else {} for name, each in (schema.get("properties") or {}).items()}


def parameter_text(name: str, schema: Mapping[str, Any], required: bool) -> str:
    """
    >>> parameter_text("unit", {"enum": ["C", "F"], "default": "C", "description": "The unit"}, False)
    'unit?: "C"|"F" = "C"'
    """
    default = schema.get("default")
    text = f"{name}{'' if required else '?'}: {type_text(schema)}"
    if default is not None and default != "" and not isinstance(default, (list, dict)):
        text += f" = {json.dumps(default, ensure_ascii=False)}"
    note = note_on(schema.get("description") or "")
    told = set(_WORD.findall(f"the a an of for to in is are be {' '.join(name_words(name))} {text}".lower()))
    return f"{text} ({note})" if set(_WORD.findall(note.lower())) - told else text


def name_words(name: str) -> list[str]:
    """The words of a name in any style.

    >>> name_words("getWeather_forCity")
    ['get', 'weather', 'for', 'city']
    """
    return [word.lower() for word in _PARTS.split(name) if word]


def type_text(schema: Mapping[str, Any]) -> str:
    """The type of a value in a few tokens."""
    choices = schema.get("enum")
    if choices:
        shown = "|".join(json.dumps(choice, ensure_ascii=False) for choice in choices[:CHOICES])
        return f"{shown}|…" if len(choices) > CHOICES else shown
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return "|".join(dict.fromkeys(type_text(each) for each in schema[key]))
    kind = schema.get("type") or "any"
    if isinstance(kind, list):
        return "|".join(kind)
    if kind == "array":
        items = schema.get("items")
        return f"[{type_text(items) if isinstance(items, Mapping) else 'any'}]"
    if kind == "object" and schema.get("properties"):
        inner = ", ".join(f"{name}: {type_text(each)}" for name, each in properties(schema).items())
        return f"{{{inner}}}"
    return str(kind)


def result_fields(function: Function) -> list[str]:
    """The names of the fields that a call returns, as far as the tool says so."""
    returns = function.get("returns")
    if isinstance(returns, Mapping):
        returns = returns.get("properties") or ([] if "type" in returns else returns)
    return [str(name) for name in returns or ()]


def note_on(description: str) -> str:
    """A parameter's description in a few words, with the first examples it gives.

    >>> note_on("The date for which you want to retrieve the analytics data (e.g., YYYY-MM-DD)")
    'The date for which you want to, e.g. YYYY-MM-DD'
    """
    examples = ", ".join(examples_in(description)[:EXAMPLES])
    main = clip(
        re.split(r"\(|,? e\.g\.|,? such as", description, maxsplit=1)[0].strip(), PARAMETER_WORDS - 2 * bool(examples)
    )
    return f"{main}, e.g. {examples}" if examples else main


def examples_in(description: str) -> list[str]:
    """The example values that a description gives, and those it quotes.

    >>> examples_in("The type of evidence (e.g., DNA, fingerprints, blood)"), examples_in("Either 'full' or 'short'")
    (['DNA', 'fingerprints', 'blood'], ['full', 'short'])
    """
    match = _EXAMPLES.search(description)
    examples = [part.strip(" .'\"") for part in re.split(r",| or |;|/", match[1])] if match else []
    quoted = [single or double for single, double in _QUOTED.findall(description)]
    proper = [each for each in dict.fromkeys([*examples, *quoted]) if 0 < len(each) <= 40]
    return [each for each in proper if each.lower() not in ("etc", "and so on", "format")]


def clip(text: str, words: int) -> str:
    """The first sentence of a text, at most so many words of it."""
    first = re.split(r"(?<=[a-z)])\. ", " ".join(text.split()), maxsplit=1)[0].rstrip(". ")
    parts = first.split(" ")
    return first if len(parts) <= words else " ".join(parts[:words])


def answer_text(calls: Iterable[Mapping[str, Any]]) -> str:
    """Calls as the planner writes them: `{"tool", "args"}` with `{"ref": n, "field": f}` for earlier results, `after`
    for calls that only have to wait, and None for a required value that nobody gave."""
    lines = []
    for number, call in enumerate(calls, 1):
        parts = [f"{name}={value_text(value)}" for name, value in call["args"].items()]
        parts += [f"#{earlier}" for earlier in call.get("after") or ()]
        lines.append(f"{number} {call['tool']}({', '.join(parts)})\n")
    return "".join(lines) or f"{NONE}\n"


def value_text(value: Any) -> str:
    """A value of an argument: JSON, with `#n.field` for a reference.

    >>> value_text([{"ref": 1, "field": "id"}, "Oslo", 2])
    '[#1.id, "Oslo", 2]'
    """
    if value is None:
        return MISSING
    if is_reference(value):
        field = value.get("field")
        return f"#{value['ref']}.{field}" if field else f"#{value['ref']}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(k, ensure_ascii=False)}: {value_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(value_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def is_reference(value: Any) -> bool:
    return isinstance(value, Mapping) and "ref" in value and set(value) <= {"ref", "field"}


_FIELD = r"(?:[\w.-]|\[\w*\])+"  # brackets in pairs: the last one of `[#1.id]` ends the list
_REFERENCE = re.compile(rf"#(\d+)(?:\.({_FIELD}))?")
_WRITABLE = {
    "tool": re.compile(r"[^\s(](?:[^\n(]*[^\s(])?"),
    "parameter": re.compile(r"[^\n=#][^\n=]*"),
    "field": re.compile(_FIELD),
}
_DECODER = json.JSONDecoder()


def writable(kind: str, name: str) -> bool:
    """Whether a line can hold the name of a tool, a parameter or a field, so that it is read as it was written.

    >>> writable("tool", "get_weather"), writable("parameter", "a=b"), writable("field", "the id")
    (True, False, False)
    """
    return _WRITABLE[kind].fullmatch(name) is not None


def read_line(line: str) -> dict[str, Any] | None:
    """One line of a plan as a call `{"tool", "args", "after"}`; None for `none`. Raises ValueError.

    >>> read_line('2 send_mail(to="Bob", text=#1.temperature, count=?)')
    {'tool': 'send_mail', 'args': {'to': 'Bob', 'text': {'ref': 1, 'field': 'temperature'}, 'count': None}, 'after': []}
    """
    if line.strip() == NONE:
        return None
    head, opened, rest = line.strip().partition("(")
    number, _, tool = head.partition(" ")
    if not opened or not number.isdigit() or not rest.endswith(")"):
        raise ValueError(f"this is no call: {line!r}")
    rest = rest[:-1]
    args: dict[str, Any] = {}
    after: list[int] = []
    at = 0
    while at < len(rest):
        wait = _REFERENCE.match(rest, at)
        if wait:
            after.append(int(wait[1]))
            at = wait.end()
        else:
            name, assigned, _ = rest[at:].partition("=")
            if not assigned:
                raise ValueError(f"this is no argument: {rest[at : at + 20]!r}")
            args[name], at = _read_value(rest, at + len(name) + 1)
        if rest[at : at + 2] not in ("", ", "):
            raise ValueError(f"what follows is no argument: {rest[at : at + 20]!r}")
        at += 2
    return {"tool": tool, "args": args, "after": after}


def _read_value(text: str, at: int) -> tuple[Any, int]:
    """The value that begins at a place, and where it ends."""
    if text.startswith(MISSING, at):
        return None, at + len(MISSING)
    match = _REFERENCE.match(text, at)
    if match:
        return {"ref": int(match[1]), "field": match[2]}, match.end()
    if text.startswith("[", at):
        items: list[Any] = []
        at += 1
        while not text.startswith("]", at):
            value, at = _read_value(text, at)
            items.append(value)
            at = _after_item(text, at, "]")
        return items, at + 1
    if text.startswith("{", at):
        fields: dict[str, Any] = {}
        at += 1
        while not text.startswith("}", at):
            name, at = _DECODER.raw_decode(text, at)
            if not isinstance(name, str) or not text.startswith(": ", at):
                raise ValueError(f"this is no field: {text[at : at + 20]!r}")
            fields[name], at = _read_value(text, at + 2)
            at = _after_item(text, at, "}")
        return fields, at + 1
    return _DECODER.raw_decode(text, at)


def _after_item(text: str, at: int, end: str) -> int:
    """Where the next item begins, or the end of the list or object."""
    if text.startswith(", ", at):
        return at + 2
    if not text.startswith(end, at):
        raise ValueError(f"what follows is no item: {text[at : at + 20]!r}")
    return at
