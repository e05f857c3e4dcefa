"""What the forged planner may write next: one line of its script as a grammar, made from the tools and the request.

Strings are copied from the request, normalised from it, listed by the schema, or fields of earlier results; numbers are
those that were said. So a line written under its grammar is a call that the schema accepts and that is grounded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent_forge.agents.grounding import Mentions, listed_values
from agent_forge.agents.planner.script import MISSING, NONE, Function, result_fields, value_text

ITEMS = 12  # of a list, at most
DEPTH = 3  # of lists and objects inside each other


def line_grammar(functions: Sequence[Function], said: Mentions, earlier: Sequence[Function]) -> str:
    """The grammar (in llguidance's dialect of Lark) of the next line, after calls of the functions `earlier`. The first
    line may be `none`; a later one may be missing, which ends the plan."""
    return LineGrammar(functions, said, earlier).text()


class LineGrammar:
    """Terminals by name; a line is a regular language, so that there is nothing to parse, only to match."""

    def __init__(self, functions: Sequence[Function], said: Mentions, earlier: Sequence[Function]) -> None:
        self.functions = functions
        self.said = said
        self.earlier = earlier
        self.terminals: dict[str, str] = {}
        self.values: dict[tuple[str, bool], str] = {}

    def text(self) -> str:
        calls = [self._call(number, function) for number, function in enumerate(self.functions)]
        number = len(self.earlier) + 1
        line = f"{quoted(f'{number} ')} ({' | '.join(calls)})"
        start = f"LINE | {quoted(f'{NONE}{chr(10)}')}" if not self.earlier else "LINE?"
        rules = [f"start: {start}", f"LINE: {line}", *(f"{name}: {body}" for name, body in self.terminals.items())]
        return "\n".join(rules) + "\n"

    def _call(self, number: int, function: Function) -> str:
        """`name(a=…, b=…)`: the parameters in their order, the optional ones or not."""
        schema = function.get("parameters") or {}
        required = set(schema.get("required") or ())
        parameters = list((schema.get("properties") or {}).items())
        name = f"T{number}"
        fresh, started = quoted(""), quoted("")  # what follows, before and after the first argument
        for place in range(len(parameters) - 1, -1, -1):
            parameter, each = parameters[place]
            value = self._value(each, parameter in required)
            if value is None and parameter not in required:
                continue
            written = f"{quoted(f'{parameter}=')} {value or quoted(MISSING)}"
            after = self._named(f"{name}S{place}", started)
            before = self._named(f"{name}F{place}", fresh)
            must = parameter in required
            fresh = f"{written} {after}" if must else f"({written} {after} | {before})"
            separated = f"{quoted(', ')} {written} {after}"
            started = separated if must else f"({separated} | {after})"
        if not parameters and self.earlier:
            waits = " | ".join(quoted(f"#{each}") for each in range(1, len(self.earlier) + 1))
            fresh = f"(({waits}) ({quoted(', ')} ({waits}))*)?"
        self.terminals[name] = (
            f"{quoted(function['name'] + '(')} {self._named(f'{name}A', fresh)} {quoted(')' + chr(10))}"
        )
        return name

    def _named(self, name: str, body: str) -> str:
        """A terminal of its own for a part that stands in several places."""
        if body == quoted(""):
            return body
        self.terminals.setdefault(name, body)
        return name

    def _value(self, schema: Mapping[str, Any], required: bool) -> str | None:
        """The terminal of a value, or None if there is no grounded one."""
        key = (json.dumps(schema, sort_keys=True, default=str), required)
        if key not in self.values:
            bodies = [body for body in (self._typed(schema, DEPTH), self._references(schema)) if body]
            if required:
                bodies.append(quoted(MISSING))
            if not bodies:
                return None
            name = f"V{len(self.values)}"
            self.terminals[name] = " | ".join(bodies)
            self.values[key] = name
        return self.values[key]

    def _typed(self, schema: Mapping[str, Any], depth: int) -> str | None:
        if schema.get("enum"):
            return " | ".join(quoted(value_text(each)) for each in schema["enum"] if each is not None) or None
        for key in ("anyOf", "oneOf"):
            if schema.get(key):
                return (
                    " | ".join(f"({each})" for each in (self._typed(one, depth) for one in schema[key]) if each) or None
                )
        kinds = schema.get("type")
        kinds = kinds if isinstance(kinds, list) else [kinds]
        parts = [part for kind in kinds for part in self._of_kind(kind, schema, depth)]
        return " | ".join(dict.fromkeys(parts)) or None

    def _of_kind(self, kind: str | None, schema: Mapping[str, Any], depth: int) -> Iterator[str]:
        if kind == "boolean":
            yield '"true" | "false"'
        elif kind in ("integer", "number"):
            listed = [
                each for each in listed_values(schema) if isinstance(each, (int, float)) and not isinstance(each, bool)
            ]
            numbers = [each for each in (*self.said.numbers, *listed) if kind == "number" or each == int(each)]
            yield from (quoted(json.dumps(each)) for each in dict.fromkeys(numbers) if fits(each, schema))
        elif kind == "array" and depth:
            items = schema.get("items")
            item = self._typed(items if isinstance(items, Mapping) else {}, depth - 1)
            if item:
                yield f'"[" ({item}) ({quoted(", ")} ({item})){{0,{ITEMS - 1}}} "]"'
        elif kind == "object" and depth:
            yield from self._object(schema, depth)
        elif kind in ("string", None):
            yield "COPIED"
            self.terminals.setdefault("COPIED", self._copied())
            forms = [*self.said.forms, *(str(number) for number in self.said.numbers)]
            texts = [each for each in listed_values(schema) if isinstance(each, str)]
            yield from (quoted(json.dumps(form, ensure_ascii=False)) for form in dict.fromkeys([*texts, *forms]))
            if kind is None:
                yield from (quoted(json.dumps(number)) for number in self.said.numbers)

    def _object(self, schema: Mapping[str, Any], depth: int) -> Iterator[str]:
        required = set(schema.get("required") or ())
        parts = []
        for name, each in (schema.get("properties") or {}).items():
            inner = self._typed(each, depth - 1)
            if inner is None:
                if name in required:
                    return
                continue
            parts.append((f"{quoted(json.dumps(name) + ': ')} ({inner})", name in required or not required))
        if parts:  # the optional ones all or none: a small model has no use for more
            yield '"{" ' + f" {quoted(', ')} ".join(text for text, must in parts if must or not required) + ' "}"'

    def _copied(self) -> str:
        sources = dict.fromkeys([self.said.text, titled(self.said.text)])
        names = []
        for number, source in enumerate(sources):
            name = f"COPY{number}"
            escaped = json.dumps(source, ensure_ascii=False)[1:-1]
            self.terminals[name] = f'%regex {{ "substring_words": {json.dumps(escaped, ensure_ascii=False)} }}'
            names.append(name)
        self.terminals["WORDED"] = r"/[^\s\p{P}][^\n]*|[-+$€£#@\/~.(\[{<][^\n]*[\p{L}\p{N}][^\n]*/"  # not a comma alone
        return '"\\"" ((' + " | ".join(names) + ') & WORDED) "\\""'

    def _references(self, schema: Mapping[str, Any]) -> str | None:
        """Earlier results: their fields where the tool names them, else the whole."""
        if schema.get("enum") or schema.get("type") == "boolean":
            return None
        options = []
        for number, function in enumerate(self.earlier, 1):
            fields = result_fields(function)
            options += [f"#{number}.{field}" for field in fields] or [f"#{number}"]
        return " | ".join(map(quoted, options)) or None


def titled(text: str) -> str:
    """The text with a capital at the start of each word, as names are written that were typed in a hurry."""
    return " ".join(word[:1].upper() + word[1:] for word in text.split(" "))


def fits(number: float, schema: Mapping[str, Any]) -> bool:
    """Whether a number is within the bounds of its schema."""
    return bool(schema.get("minimum", number) <= number <= schema.get("maximum", number))


def quoted(text: str) -> str:
    """A literal of the grammar."""
    return json.dumps(text, ensure_ascii=False)
