"""What the forged planner may write next: one line of its script as a grammar, made from the tools and the request.

Strings are copied from the request, normalised from it, listed by the schema, or fields of earlier results; numbers are
those that were said. So a line written under its grammar is a call that the schema accepts and that is grounded.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from agent_forge.agents.grounding import Mentions, as_number, grounded, listed_values, plain
from agent_forge.agents.planner.script import (
    MISSING,
    NONE,
    Function,
    is_reference,
    name_words,
    properties,
    result_fields,
    value_text,
    writable,
)
from agent_forge.tasks.words import content_words

ITEMS = 12  # of a list, at most
FORMATS = ("date", "email", "ipv4", "ipv6", "uuid")  # that are checked, with nothing but Python
DEPTH = 3  # of lists and objects inside each other
# words that are no value by themselves
FILLERS = {"a", "an", "the", "to", "of", "for", "from", "by", "with", "and", "or", "is", "are", "was", "be", "would",
           "could", "should", "please", "their", "i"}  # fmt: skip
# words by which what was said may not hold
TAKEN_BACK = {"no", "not", "actually", "instead", "rather", "nevermind", "except", "but"}
_OPENING, _CLOSING = re.compile(r"(?<!\w)['\"“‘]"), re.compile(r"['\"”’](?!\w)")
_NAMED = re.compile(r"the [^\W\d_]\S*(?: \S+)?")  # an article and one or two words
_OPENED, _CLOSED = re.compile(r"['\"“‘](?=\w)"), re.compile(r"(?<![\d'\"])['\"”’][.,;:!?]*$")


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
        self.values: dict[tuple[str, str | None, bool], str] = {}

    def text(self) -> str:
        calls = [self._call(number, each) for number, each in enumerate(self.functions) if callable_in_script(each)]
        number = len(self.earlier) + 1
        none = quoted(f"{NONE}\n")
        if not calls:
            return f"start: {none}\n"
        line = f"{quoted(f'{number} ')} ({' | '.join(calls)})"
        start = "LINE?" if self.earlier else f"LINE | {none}"
        rules = [f"start: {start}", f"LINE: {line}", *(f"{name}: {body}" for name, body in self.terminals.items())]
        return "\n".join(rules) + "\n"

    def _call(self, number: int, function: Function) -> str:
        """`name(a=…, b=…)`: the parameters in their order, the optional ones or not; or the calls to wait for."""
        name = f"T{number}"
        parts = self._parameters(function)
        if not (function.get("parameters") or {}).get("properties"):
            parts = [(quoted(f"#{earlier}"), False) for earlier in range(1, len(self.earlier) + 1)]
        fresh, started = quoted(""), quoted("")  # what follows, before and after the first argument
        for place, (written, must) in reversed([*enumerate(parts)]):
            after = self._named(f"{name}S{place}", started)
            before = self._named(f"{name}F{place}", fresh)
            fresh = f"{written} {after}" if must else f"({written} {after} | {before})"
            separated = f"{quoted(', ')} {written} {after}"
            started = separated if must else f"({separated} | {after})"
        self.terminals[name] = (
            f"{quoted(function['name'] + '(')} {self._named(f'{name}A', fresh)} {quoted(')' + chr(10))}"
        )
        return name

    def _parameters(self, function: Function) -> list[tuple[str, bool]]:
        """`a=…` for each parameter that can have a value, and whether it must stand there."""
        schema = function.get("parameters") or {}
        required = set(schema.get("required") or ())
        parts = []
        for parameter, each in properties(schema).items():
            value = self._value(parameter, each, parameter in required)
            if value is not None and writable("parameter", parameter):
                parts.append((f"{quoted(f'{parameter}=')} {value}", parameter in required))
        return parts

    def _named(self, name: str, body: str) -> str:
        """A terminal of its own for a part that stands in several places."""
        if body == quoted(""):
            return body
        self.terminals.setdefault(name, body)
        return name

    def _value(self, parameter: str, schema: Mapping[str, Any], required: bool) -> str | None:
        """The terminal of a value, or None if there is no grounded one."""
        references = self._references(parameter, schema)
        key = (json.dumps(schema, sort_keys=True, default=str), references, required)
        if key not in self.values:
            bodies = [body for body in (self._typed(schema, DEPTH), references) if body]
            if required:
                bodies.append(quoted(MISSING))
            if not bodies:
                return None
            name = f"V{len(self.values)}"
            self.terminals[name] = " | ".join(bodies)
            self.values[key] = name
        return self.values[key]

    def _typed(self, schema: Mapping[str, Any], depth: int) -> str | None:
        if schema.get("enum") or "const" in schema:
            choices = schema.get("enum") or [schema["const"]]
            return " | ".join(quoted(value_text(each)) for each in choices if each is not None) or None
        for key in ("anyOf", "oneOf"):
            if schema.get(key):
                return (
                    " | ".join(
                        f"({each})"
                        for each in (self._typed(one, depth) for one in schema[key] if isinstance(one, Mapping))
                        if each
                    )
                    or None
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
        for name, each in properties(schema).items():
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
        # not a comma alone, no space at the end, and no end between a backslash and what it escapes
        rest = r"( ?([^\\\s]|\\[^\s]))*"
        self.terminals["WORDED"] = rf"/[^\s\p{{P}}]{rest}|[-+$€£#@\/~.(\[{{<]{rest}[\p{{L}}\p{{N}}]{rest}/"
        return '"\\"" ((' + " | ".join(names) + ') & WORDED) "\\""'

    def _references(self, parameter: str, schema: Mapping[str, Any]) -> str | None:
        """Earlier results: their fields where the tool names them, else the whole. A field that has the parameter's
        name is the one that is meant: so it is in 8,915 of 8,954 references of the public sets that could have it."""
        if schema.get("enum") or "const" in schema or schema.get("type") == "boolean":
            return None
        options = []
        for number, function in enumerate(self.earlier, 1):
            fields = [field for field in result_fields(function) if writable("field", field)]
            fields = [field for field in fields if name_words(field) == name_words(parameter)] or fields
            whole = [f"#{number}"] if may_be(function.get("returns"), schema) else []
            options += [f"#{number}.{field}" for field in fields] or whole
        return " | ".join(map(quoted, options)) or None


def may_be(result: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a result may be a value of a parameter, as far as both name their types.

    >>> may_be({"type": "array"}, {"type": "string"}), may_be({"type": "integer"}, {"type": "number"})
    (False, True)
    """
    given = result.get("type") if isinstance(result, Mapping) else None
    wanted = schema.get("type")
    if not given or not wanted:
        return True
    kinds = {given} if isinstance(given, str) else set(given)
    kinds |= {"number"} if "integer" in kinds else set()
    return bool(kinds & ({wanted} if isinstance(wanted, str) else set(wanted)))


def titled(text: str) -> str:
    """The text with a capital at the start of each word, as names are written that were typed in a hurry."""
    return " ".join(word[:1].upper() + word[1:] for word in text.split(" "))


def fits(number: float, schema: Mapping[str, Any]) -> bool:
    """Whether a number is within the bounds of its schema.

    >>> fits(5, {"minimum": 5}), fits(5, {"exclusiveMinimum": 5})
    (True, False)
    """
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    return (
        bool(schema.get("minimum", number) <= number <= schema.get("maximum", number))
        and (above is None or number > above)
        and (below is None or number < below)
    )


def callable_in_script(function: Function) -> bool:
    """Whether a line can hold a call of the tool: its name and those of its required parameters can be written."""
    schema = function.get("parameters") or {}
    required = properties(schema).keys() & (schema.get("required") or ())
    return writable("tool", function["name"]) and all(writable("parameter", name) for name in required)


def settled(call: Mapping[str, Any], function: Function, said: Mentions) -> dict[str, Any] | None:
    """The call without the values that its tool would refuse or that nobody gave: a required one is left open (None),
    another dropped. The grammar of a line knows types, bounds and choices; `pattern`, `minLength` and the like are
    looked at here, when the value is whole. None if the tool would refuse the rest too."""
    schema = function.get("parameters") or {}
    known = properties(schema)
    required = schema.get("required") or ()
    args: dict[str, Any] = {
        name: bare(value) if isinstance(value, str) and value not in listed_values(known[name]) else value
        for name, value in call["args"].items()
    }
    args = {name: said_option(value, known[name], args.values(), said) for name, value in args.items()}
    args |= {name: None for name in required if name not in args}
    whole = {name: value for name, value in args.items() if value is not None and not is_reference(value)}
    bad = {name for name, value in whole.items() if not grounded(value, known[name], [said])}
    taken = {name: value for name, value in whole.items() if value not in listed_values(known[name])}
    bad |= said_already(taken, required, said) | {name for name, value in taken.items() if is_filler(value, said)}
    faults = faulty(whole, schema)
    bad |= set(whole) if None in faults and len(whole) == len(args) else {name for name in faults if name is not None}
    kept = {name: None if name in bad else value for name, value in args.items() if name not in bad or name in required}
    complete = all(value is not None and not is_reference(value) for value in kept.values())
    return None if complete and faulty(kept, schema) else {**call, "args": kept}


def said_option(value: Any, schema: Mapping[str, Any], others: Collection[Any], said: Mentions) -> Any:
    """The one option of an enumeration that the request names, where another was chosen: unless another argument has
    it, or the request takes something back ("on the kitchen speaker; no, in the bedroom").

    >>> zone = {"enum": ["north", "east", "south"]}
    >>> said_option("north", zone, ["north", 5], Mentions("Water the east zone for 5 minutes"))
    'east'
    """
    options = schema.get("enum") or ()
    if not isinstance(value, str) or value not in options or said.says(value) or TAKEN_BACK & {*said.words.split()}:
        return value
    words = [each for each in options if isinstance(each, str) and as_number(each) is None]
    # not "a", "or", "all"
    named = [each for each in words if len(each) > 2 and content_words(each) and said.says(each)]
    return named[0] if len(named) == 1 and named[0] not in others else value


def is_filler(value: Any, said: Mentions) -> bool:
    """Whether a text is of words that name nothing: `product="the"`. "A", "my", "on" and "all" may be values, as may
    what stands in quotation marks.

    >>> said = Mentions("I would like A, or 'an'; turn on The Nice Guys")
    >>> [is_filler(each, said) for each in ("or", "I Would", "A", "an", "on", "The Nice Guys")]
    [True, True, False, False, False, False]
    """
    words = {*value.lower().split()} if isinstance(value, str) and value != "A" else set()
    return bool(words) and words <= FILLERS and not re.search(rf"['\"“‘]{re.escape(value)}['\"”’]", said.text)


def said_already(args: Mapping[str, Any], required: Sequence[str], said: Mentions) -> set[str]:
    """The optional arguments whose number or text others of the call have taken as often as it was said.

    >>> args = {"a": 12, "b": 15, "alpha": 15, "city": "Oslo", "region": "oslo"}
    >>> sorted(said_already(args, ["a", "b", "city"], Mentions("Compare 12 and 15 in Oslo")))
    ['alpha', 'region']
    """
    taken: Counter[str] = Counter()
    again = set()
    for name in sorted(args, key=lambda name: name not in required):
        value = args[name]
        if isinstance(value, str):
            text, times = plain(value), said.words.count(plain(value))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            text = json.dumps(value)
            times = said.times.get(text, 0)
        else:
            continue
        if name not in required and 0 < times <= taken[text]:
            again.add(name)
        else:
            taken[text] += 1
    return again


def bare(text: str) -> str:
    """A copied text without half a pair of quotation marks, and a short one without its article.

    >>> bare("the Amazon rainforest"), bare("The Godfather"), bare("the 2nd"), bare("the server is down again")
    ('Amazon rainforest', 'The Godfather', 'the 2nd', 'the server is down again')
    """
    text = unquoted(text)
    return text.removeprefix("the ") if _NAMED.fullmatch(text) else text


def unquoted(text: str) -> str:
    """A text copied word by word, without a quotation mark whose other half was left behind.

    >>> unquoted("I feel so excited!'."), unquoted("'Hey Jude"), unquoted("'Hey', she said"), unquoted("rock 'n' roll")
    ('I feel so excited!', 'Hey Jude', "'Hey', she said", "rock 'n' roll")
    """
    if _OPENED.match(text) and not _CLOSING.search(text, 1):
        text = text[1:]
    last = _CLOSED.search(text)
    return text[: last.start()] if last and not _OPENING.search(text, 0, last.start()) else text


def faulty(args: Mapping[str, Any], schema: Mapping[str, Any]) -> set[str | None]:
    """The arguments that a schema refuses, None standing for all of them together. That some are missing is no fault
    here, and a schema that is none refuses nothing."""
    from referencing.exceptions import Unresolvable

    schema = {key: each for key, each in schema.items() if key != "required"}
    judge = _validator(json.dumps(schema, default=str))
    try:
        faults = [] if judge is None else list(judge.iter_errors(dict(args)))
    except (Unresolvable, re.error):
        return set()
    return {str(fault.absolute_path[0]) if fault.absolute_path else None for fault in faults}


@lru_cache(maxsize=256)  # checking a schema takes a hundred times as long as checking a value
def _validator(schema: str) -> Any:
    """The judge of values for a schema written as JSON; None if it is none."""
    from jsonschema import Draft202012Validator, FormatChecker
    from jsonschema.exceptions import SchemaError
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    document = json.loads(schema)
    try:
        Draft202012Validator.check_schema(document)
    except (SchemaError, Unresolvable, re.error):
        return None
    # An empty registry: the $refs of a foreign schema must not be fetched.
    return Draft202012Validator(document, registry=Registry(), format_checker=FormatChecker(FORMATS))


def quoted(text: str) -> str:
    """A literal of the grammar."""
    return json.dumps(text, ensure_ascii=False)
