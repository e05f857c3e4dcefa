"""YAML read as plain values: the values JSON has, and nothing else.

Built from the parser's events, so that no object is ever constructed: aliases (and with them the billion-laughs
document), tags and repeated keys are refused, depth is bounded, and only `null`, `true`, `false` and numbers are not
text. So `on`, `no`, `12:30` and `2026-01-01` stay what was written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from agent_forge.plans.json_text import NotJson, read_json

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?")
_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_MISSING = object()


def read_yaml(text: str, nesting: int = 64) -> Any:
    """The value of a YAML text with one document; raises `NotJson`.

    >>> read_yaml("tasks:\\n  - {id: 1, goal: on time}")
    {'tasks': [{'id': 1, 'goal': 'on time'}]}
    """
    import yaml  # here, because most plans are not in YAML

    try:
        return _build(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)), nesting)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise NotJson(f"not YAML: {what}", mark.line + 1 if mark else None) from None
    except UnicodeEncodeError:
        raise NotJson("the text holds half of a character (a lone surrogate)") from None
    except RecursionError:  # the scanner of some versions nests for flow collections
        raise NotJson("nested too deeply") from None


class _Open:
    """A list or object being filled."""

    def __init__(self, value: list[Any] | dict[str, Any]) -> None:
        self.value = value
        self.key: Any = _MISSING

    def add(self, entry: Any, line: int) -> None:
        if isinstance(self.value, list):
            self.value.append(entry)
        elif self.key is not _MISSING:
            self.value[self.key] = entry
            self.key = _MISSING
        elif isinstance(entry, (list, dict)) or entry is None or isinstance(entry, bool):
            raise NotJson("a key must be text", line)
        elif str(entry) in self.value:
            raise NotJson(f"the key {entry!r} occurs twice", line)
        else:
            self.key = str(entry)


def _build(events: Iterator[Any], nesting: int) -> Any:
    documents: list[Any] = []
    stack = [_Open(documents)]
    for event in events:
        kind, line = type(event).__name__, event.start_mark.line + 1
        if kind == "DocumentStartEvent" and documents:
            raise NotJson("there is more than one document", line)
        if kind == "AliasEvent":
            raise NotJson(f"the alias *{event.anchor}: aliases are not accepted", line)
        if getattr(event, "tag", None) not in (None, "!"):
            raise NotJson(f"the tag {event.tag}: tags are not accepted", line)
        if kind == "ScalarEvent":
            stack[-1].add(_scalar(event), line)
        elif kind in ("SequenceStartEvent", "MappingStartEvent"):
            if len(stack) > nesting:
                raise NotJson("nested too deeply", line)
            filled: list[Any] | dict[str, Any] = [] if kind == "SequenceStartEvent" else {}
            stack[-1].add(filled, line)
            stack.append(_Open(filled))
        elif kind in ("SequenceEndEvent", "MappingEndEvent"):
            stack.pop()
    return documents[0] if documents else None


def _scalar(event: Any) -> Any:
    text: str = event.value
    if event.style:  # quoted or a block: text whatever it reads like
        return text
    if text in _WORDS:
        return _WORDS[text]
    return read_json(text) if _NUMBER.fullmatch(text) else text
