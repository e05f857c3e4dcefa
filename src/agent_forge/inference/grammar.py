"""Constrained decoding: which tokens may come next, so that what a model writes is a valid call or valid JSON.

    vocabulary = GrammarVocabulary(tokenizer)       once per tokenizer; takes about a second
    grammar = call_grammar(tools)                   or schema_grammar(schema)
    walk = vocabulary.start(grammar)                once per answer
    while not walk.finished:
        walk.mask(logits)                           numpy [V]; in place
        walk.advance(int(logits.argmax()))

llguidance compiles the JSON Schemas. What a grammar emits validates (jsonschema is the judge of that in the tests), and
every valid value can be emitted, written as `json.dumps(value, ensure_ascii=False)` writes it, with the properties in
the order of the schema. Control characters other than tab, line feed and the like have no short escape, so they cannot
be emitted. A schema for which this could not be promised is refused with `SchemaUnsupported`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_DOWN, ROUND_FLOOR, Context, Decimal
from typing import TYPE_CHECKING, Any

from agent_forge.errors import ModelError, UsageError
from agent_forge.inference.client import Tools

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

OPEN, CLOSE = "<tool_call>", "</tool_call>"

# One way to write each value. Blanks would let a weak model fill its answer with them. With more escapes, an additional
# property could be a declared one in disguise ("\u0061" for "a") and so escape that one's schema.
_STYLE = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "json_allowed_escapes": '"\\bfnrt',
}
_REFUSED = (
    "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "propertyNames", "contains",
    "unevaluatedProperties", "unevaluatedItems", "additionalItems", "patternProperties", "$dynamicRef", "$recursiveRef",
)  # fmt: skip
_BY_NAME = {"properties", "$defs", "definitions"}
_SCHEMAS_IN = _BY_NAME | {"items", "prefixItems", "additionalProperties", "anyOf", "allOf", "oneOf"}
_FORMATS = frozenset(["date", "date-time", "time", "email", "uri", "uuid", "ipv4", "ipv6", "hostname", "duration"])
# What Python and Rust read differently: negated classes, sets within sets, flags and look-around.
_DOUBTFUL_PATTERN = re.compile(r"\\[WDSBbAZzpP]|\[[^\]]*(?:\[|--|&&|~~)|\(\?[^:P]")
_UP, _DOWN = Context(prec=14, rounding=ROUND_CEILING), Context(prec=14, rounding=ROUND_FLOOR)
_TINY = Decimal("1e-20")  # llguidance compiles no smaller bound; numbers between it and an exclusive 0 are not emitted
_NUMBERS = {"type", "minimum", "maximum", "title", "description", "default", "examples"}
_SAID = re.compile(r'Unimplemented keys: \["([^"]+)"|(oneOf|minProperties|maxProperties|pattern)')


class SchemaUnsupported(UsageError):
    """A JSON Schema that no grammar can follow exactly; `keyword` is the reason, `tool` the tool it belongs to."""

    def __init__(self, what: str, *, keyword: str | None = None, tool: str | None = None) -> None:
        prefix = f"tool {tool!r}: " if tool else ""
        super().__init__(f"{prefix}the schema cannot be followed: {what}")
        self.keyword = keyword
        self.tool = tool


@dataclass(frozen=True, slots=True)
class Grammar:
    """What may be written, in llguidance's notation."""

    source: str


def schema_grammar(schema: Mapping[str, Any] | bool) -> Grammar:
    """JSON that validates against a schema. Raises SchemaUnsupported."""
    return Grammar(f"start: value\nvalue: %json {_document(schema, None)}\n")


def call_grammar(
    tools: Tools, *, many: bool = True, allow_text: bool = False, answer: Mapping[str, Any] | None = None
) -> Grammar:
    """Calls of these tools, `<tool_call>{"name": "…", "arguments": {…}}</tool_call>`: one, or with `many` one or more.

    With `allow_text` text may come before, between and after the calls, or instead of them; with `answer`, JSON of that
    schema instead of them. Raises SchemaUnsupported.
    """
    bodies, rules = [], []
    for number, tool in enumerate(tools):
        spec = tool if isinstance(tool, Mapping) else tool.spec
        function = spec.get("function", spec)
        name, parameters = function["name"], function.get("parameters")
        opening = json.dumps({"name": name}, ensure_ascii=False)[:-1] + ', "arguments": '
        bodies.append(f"call_{number}")
        rules.append(f'call_{number}: {_literal(opening)} arguments_{number} "}}"')
        rules.append(f"arguments_{number}: %json {_document(_arguments(parameters, name), name)}")
    if not bodies:
        raise UsageError("there is no tool to call", fix="Name at least one")
    if allow_text:
        calls = "(text_and_opening body closing)" + ("*" if many else "?")
        start = f"{calls} rest"
        rules += [
            f"text_and_opening[lazy]: /(?s:.*){OPEN}/",
            "rest: REST",
            f"REST: /(?s:.*)/ & ~/(?s:.*){OPEN}(?s:.*)/",
        ]
    else:
        call = "opening body closing"
        start = f'{call} ("\\n"? {call})*' if many else call
        rules.append(f"opening: {_literal(OPEN)}")
    rules.append(f"closing: {_literal(CLOSE)}")
    if answer is not None:
        start = f"{start} | value"
        rules.append(f"value: %json {_document(answer, None)}")
    return Grammar("\n".join([f"start: {start}", f"body: {' | '.join(bodies)}", *rules, ""]))


class GrammarVocabulary:
    """The tokens of one tokenizer, as grammars see them: a `tokenizers.Tokenizer` or a fast one of transformers.

    `size` is the number of logits if that is more than the tokenizer has tokens; `ends` are the tokens that end an
    answer; `remember` is the number of compiled grammars to keep, each of about half a megabyte.
    """

    def __init__(
        self, tokenizer: Any, *, size: int | None = None, ends: Iterable[int] | None = None, remember: int = 64
    ) -> None:
        from llguidance import LLTokenizer
        from tokenizers import Tokenizer

        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        if not isinstance(backend, Tokenizer):
            raise UsageError("grammars need a fast tokenizer", fix="Load it with AutoTokenizer or tokenizers.Tokenizer")
        copy = Tokenizer.from_str(backend.to_str())
        copy.no_padding()
        copy.no_truncation()
        if ends is None:
            end = getattr(tokenizer, "eos_token_id", None)
            ends = () if end is None else (end,)
        self.ends = tuple(sorted(ends))  # tokens that end an answer
        self.size = max(size or 0, copy.get_vocab_size(with_added_tokens=True))
        try:
            self._tokens = LLTokenizer(copy.to_str(), n_vocab=self.size, eos_token=list(self.ends) or None)
        except ValueError as error:
            raise UsageError(f"grammars cannot use this tokenizer: {_first_line(str(error))}") from error
        self._matchers: dict[Grammar, Any] = {}
        self._remember = remember

    def tokens(self, text: str) -> list[int]:
        """A text as the tokenizer writes it."""
        return list(self._tokens.tokenize_str(text))

    def text(self, tokens: Iterable[int]) -> str:
        """What tokens stand for."""
        return str(self._tokens.decode_str(list(tokens)))

    def start(self, grammar: Grammar) -> GrammarWalk:
        """The beginning of an answer. Raises SchemaUnsupported."""
        from llguidance import LLMatcher

        matcher = self._matchers.get(grammar)
        if matcher is None:
            matcher = LLMatcher(self._tokens, LLMatcher.grammar_from_lark(grammar.source))
            if matcher.is_error():
                raise _unsupported(matcher.get_error(), None)
            if len(self._matchers) >= self._remember:
                self._matchers.clear()
            self._matchers[grammar] = matcher
        return GrammarWalk(matcher.deep_copy(), self.size)


class GrammarWalk:
    """The state of one answer in its grammar."""

    def __init__(self, matcher: Any, size: int) -> None:
        self._matcher = matcher
        self._size = size

    @property
    def finished(self) -> bool:
        """Whether nothing but an end token may follow."""
        return bool(self._matcher.is_stopped())

    @property
    def may_stop(self) -> bool:
        """Whether the answer is complete as it is."""
        return bool(self._matcher.is_accepting())

    def allowed(self) -> NDArray[np.bool_]:
        """The tokens that may come next, [V]; end tokens where the answer may stop."""
        import numpy as np

        packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._check()
        return np.unpackbits(packed, count=self._size, bitorder="little").view(np.bool_)

    def mask(self, logits: NDArray[np.floating[Any]]) -> None:
        """Sets the logits [V] of all other tokens to minus infinity. V may exceed the vocabulary."""
        import numpy as np

        allowed = self.allowed()
        np.copyto(logits[: self._size], -np.inf, where=~allowed[: len(logits)])
        logits[self._size :] = -np.inf

    def advance(self, token: int) -> None:
        """Goes on by a token that was allowed. Raises ModelError for another one."""
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ModelError(f"the answer left its grammar: {_first_line(self._matcher.get_error())}")


# --- schemas ---------------------------------------------------------------------------------------------------------


def _arguments(parameters: Any, tool: str) -> Any:
    """The schema of a call's arguments, which are an object whatever the schema says."""
    if parameters is None:
        return {"type": "object", "additionalProperties": False}
    if not isinstance(parameters, Mapping):
        raise SchemaUnsupported("it is not an object", tool=tool)
    types = parameters.get("type", "object")
    if "object" not in ([types] if isinstance(types, str) else types):
        raise SchemaUnsupported("arguments are an object", keyword="type", tool=tool)
    return {**parameters, "type": "object"}


def _document(schema: Any, tool: str | None) -> str:
    """A schema as llguidance compiles it exactly, as JSON. Raises SchemaUnsupported."""
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for
    from llguidance import LLMatcher

    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    try:
        validator_for(schema).check_schema(schema)
        document = json.dumps({**_exact(schema, tool), "x-guidance": _STYLE})
    except SchemaError as error:
        raise SchemaUnsupported(f"{error.json_path}: {error.message}"[:500], tool=tool) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaUnsupported(str(error)[:500], tool=tool) from error
    if fault := LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(f"start: %json {document}\n")):
        raise _unsupported(fault, tool)
    return document


def _exact(schema: Any, tool: str | None) -> Any:
    """The schema with what only annotates removed and bounds as floats have them; refuses what is not followed."""
    if not isinstance(schema, Mapping):
        return schema

    def refuse(keyword: str, what: str = "is not supported") -> SchemaUnsupported:
        return SchemaUnsupported(f"{keyword!r} {what}", keyword=keyword, tool=tool)

    exact = dict(schema)
    for keyword in _REFUSED:
        if keyword in exact:
            raise refuse(keyword)
    if exact.pop("uniqueItems", False) and exact.get("maxItems", 2) > 1:
        raise refuse("uniqueItems")
    if exact.get("format") not in _FORMATS:
        exact.pop("format", None)  # an annotation, as in jsonschema
    if "pattern" in exact and (_DOUBTFUL_PATTERN.search(exact["pattern"]) or not _is_regex(exact["pattern"])):
        raise refuse("pattern", f"{exact['pattern']!r} is not supported")
    if not isinstance(exact.get("multipleOf", 1), int):
        raise refuse("multipleOf", "must be an integer")  # 0.3 is not a multiple of 0.1 in floats
    least = exact.get("minProperties", 0)
    if least <= len(set(exact.get("required", ()))):
        exact.pop("minProperties", None)
    elif least > 1:
        raise refuse("minProperties")  # two properties may have the same name, and then count as one
    for keyword in _SCHEMAS_IN & exact.keys():
        inner = exact[keyword]
        if keyword in _BY_NAME:
            exact[keyword] = {name: _exact(each, tool) for name, each in inner.items()}
        else:
            exact[keyword] = [_exact(each, tool) for each in inner] if isinstance(inner, list) else _exact(inner, tool)
    return exact if exact.get("type") == "integer" else _with_exact_bounds(exact)


def _with_exact_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema of numbers with inclusive bounds of at most 14 digits, each moved inwards if need be.

    llguidance rounds longer bounds, and 0.99999999999999999999 is below 1 while the float it is read as is not. It also
    misses the numbers that a bound begins with (0.9 where the maximum is 0.99): these are added.
    """
    bounds: dict[str, Decimal] = {}
    for name, closer, following in (("minimum", max, _UP.next_plus), ("maximum", min, _DOWN.next_minus)):
        if name in schema:
            bounds[name] = (_UP if name == "minimum" else _DOWN).plus(_decimal(schema[name]))
        exclusive = f"exclusive{name.capitalize()}"
        if exclusive in schema:
            limit = following(_decimal(schema.pop(exclusive)))
            if abs(limit) < _TINY:
                limit = _TINY if name == "minimum" else -_TINY
            bounds[name] = closer(limit, bounds.get(name, limit))
    if not bounds:
        return schema
    low, high = bounds.get("minimum"), bounds.get("maximum")
    schema |= {name: int(bound) if bound == int(bound) else float(bound) for name, bound in bounds.items()}
    beginnings = [
        float(begun)
        for bound in bounds.values()
        for digits in range(1, -int(bound.as_tuple().exponent))
        for begun in [bound.quantize(Decimal(1).scaleb(-digits), ROUND_DOWN)]
        if (low is None or low <= begun) and (high is None or begun <= high)
    ]
    if not beginnings or not schema.keys() <= _NUMBERS:
        return schema
    return {"anyOf": [schema, {"enum": beginnings}]}


def _decimal(number: float) -> Decimal:
    return Decimal(repr(number))


def _is_regex(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _literal(text: str) -> str:
    """A string of the grammar: JSON's notation is also Lark's."""
    return json.dumps(text, ensure_ascii=False)


def _unsupported(message: str, tool: str | None) -> SchemaUnsupported:
    said = _SAID.search(message)
    return SchemaUnsupported(_first_line(message), keyword=said and (said[1] or said[2]), tool=tool)


def _first_line(message: str) -> str:
    return message.strip().partition("\n")[0][:500]
