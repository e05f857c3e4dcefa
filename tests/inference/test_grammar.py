"""Grammars of calls and schemas: what they emit validates, what validates they can emit; jsonschema is the judge."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from typing import Any

import jsonschema
import numpy as np
import pytest
from inference_schemas import UNFOLLOWED, can_write, emit, instance, random_schema, tiny_tokens

from agent_forge.errors import ModelError, UsageError
from agent_forge.inference.grammar import GrammarVocabulary, SchemaUnsupported, call_grammar, schema_grammar
from agent_forge.inference.tool_calls import split_calls

TOKENS = tiny_tokens()
VOCABULARY = GrammarVocabulary(TOKENS, size=710, ends=[0])  # logits may be padded beyond the vocabulary
PLACE = {"type": "object", "properties": {"city": {"$ref": "#/$defs/city"}}, "required": ["city"],
         "additionalProperties": False, "$defs": {"city": {"enum": ["Oslo", "Rome"]}}}  # fmt: skip
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": PLACE}},
    {"type": "function", "function": {"name": 'say "now"'}},
]
ONE = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
TWO = '<tool_call>{"name": "say \\"now\\"", "arguments": {}}</tool_call>'


def valid(value: Any, schema: Any) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(value)


def writes(grammar: Any, text: str) -> bool:
    return can_write(VOCABULARY, grammar, TOKENS, text)


@pytest.mark.untraced
def test_calls_of_random_tools_under_random_logits_validate() -> None:
    """The fast form of benchmarks/grammar.py."""
    rng, numbers = random.Random(16), np.random.default_rng(16)
    complete = refused = 0
    for _ in range(60):
        schema = {"type": "object", "properties": {"x": random_schema(rng)}, "required": ["x"]}
        schema |= {"$defs": schema["properties"]["x"].get("$defs", {})}
        try:
            grammar = call_grammar([{"name": "find", "parameters": schema}], many=False)
        except SchemaUnsupported:
            refused += 1
            continue
        text = emit(VOCABULARY, grammar, TOKENS, numbers)
        if text is None:
            continue
        rest, (call,) = split_calls(text, ["find"])
        assert rest == ""
        jsonschema.validate(json.loads(call.arguments), schema)
        complete += 1
    assert complete > 50
    assert refused < 6


@pytest.mark.untraced
def test_valid_instances_of_random_schemas_can_be_written() -> None:
    rng = random.Random(5)
    checked = 0
    for _ in range(80):
        schema = random_schema(rng)
        value = instance(rng, schema)
        try:
            grammar = schema_grammar(schema)
        except SchemaUnsupported:
            continue
        if valid(value, schema) and "enum" not in schema:
            assert writes(grammar, json.dumps(value, ensure_ascii=False)), (schema, value)
            checked += 1
    assert checked > 38


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "number", "exclusiveMaximum": 1, "minimum": -4.9611}, ["0.9", "-4.961", "0.999999"],
         ["1", "0.99999999999999999999", "-4.9612"]),
        ({"type": "number", "maximum": 0.9999999999999999}, ["0.9999", "-3"], ["1", "1.0"]),
        ({"type": "number", "exclusiveMinimum": 0}, ["0.0001", "5"], ["0", "0.0", "-1"]),
        ({"type": "object", "properties": {"a": {"type": "integer"}, "a/b": {"type": "integer"}}},
         ['{"a": 1}', '{"b": "x"}'], ['{"a": "x"}', '{"\\u0061": "x"}', '{"a\\/b": "x"}', '{"b": 1, "a": "x"}']),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": False}, ["[1, 1]"], ['["a"]']),
        ({"type": "string", "format": "password"}, ['"x"'], ["1"]),
        ({"type": "string", "pattern": "^a$"}, ['"a"'], ['"a\\n"', '"b"']),
        ({"type": "string", "minLength": 2, "maxLength": 2}, ['"é\\n"', '"😀😀"'], ['"a"', '"\\n"']),
        ({"type": "object", "required": ["z"], "minProperties": 1}, ['{"z": 1}'], ["{}"]),
        ({"allOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"a": {"minimum": 3}}}],
          "type": "object"}, ['{"a": 3}', "{}"], ['{"a": 1}']),
        (True, ["1", "[null]"], [""]),
    ],
)  # fmt: skip
def test_where_schemas_and_their_compiler_differ(schema: Any, good: list[str], bad: list[str]) -> None:
    grammar = schema_grammar(schema)
    for text in good:
        assert valid(json.loads(text), schema)
        assert writes(grammar, text), text
    for text in bad:
        assert not writes(grammar, text), text


def test_calls_one_or_many_with_and_without_text() -> None:
    texts = [ONE, TWO, ONE + TWO, f"{ONE}\n{TWO}", "Hi.", f"I look: {ONE}", f"{ONE} Done.", "", "a <tool_call"]
    table = {
        (many, text): [writes(call_grammar(TOOLS, many=many, allow_text=text), each) for each in texts]
        for many in (False, True)
        for text in (False, True)
    }
    assert table == {
        (False, False): [True, True, False, False, False, False, False, False, False],
        (True, False): [True, True, True, True, False, False, False, False, False],
        (False, True): [True, True, False, False, True, True, True, True, True],
        (True, True): [True] * 9,
    }
    for wrong in ('<tool_call>{"name": "other"', ONE.replace("Rome", "Bonn"), ONE[:-20], f"x <tool_call>y{ONE}"):
        assert not any(writes(call_grammar(TOOLS, allow_text=text), wrong) for text in (False, True))


@pytest.mark.parametrize("schema", UNFOLLOWED, ids=str)
def test_what_cannot_be_promised_is_refused_by_name(schema: dict[str, Any]) -> None:
    keyword = next(word for word in schema if word not in ("type", "then"))
    inner = {"type": "object", "properties": {"deep": {"type": "array", "items": schema}}}
    with pytest.raises(SchemaUnsupported, match="tool 'find'") as failure:
        call_grammar([{"name": "find", "parameters": inner}])
    assert (failure.value.tool, failure.value.keyword) == ("find", keyword)


def test_a_property_may_be_called_like_a_keyword() -> None:
    schema = {"type": "object", "properties": {"not": {"type": "integer"}}, "additionalProperties": False}
    assert writes(schema_grammar(schema), '{"not": 1}')


@pytest.mark.parametrize("schema", [{"type": "nonsense"}, {"$ref": "#/nowhere"}, {"$ref": "https://x.org/s"}, False])
def test_a_schema_that_is_wrong_or_empty_is_refused(schema: Any) -> None:
    with pytest.raises(SchemaUnsupported):
        schema_grammar(schema)


def test_arguments_are_an_object() -> None:
    with pytest.raises(SchemaUnsupported, match="arguments are an object"):
        call_grammar([{"name": "find", "parameters": {"type": "string"}}])
    with pytest.raises(UsageError, match="no tool"):
        call_grammar([])


def test_a_walk_ends_refuses_and_pads() -> None:
    walk = VOCABULARY.start(schema_grammar({"const": 1}))
    logits = np.zeros(720, np.float32)  # more than the vocabulary
    walk.mask(logits)
    assert {TOKENS.id_to_token(int(token)) for token in np.isfinite(logits).nonzero()[0]} == {"1"}
    short = np.zeros(300, np.float32)
    walk.mask(short)
    assert np.isfinite(short).sum() == 1
    walk.advance(TOKENS.token_to_id("1"))
    assert (walk.finished, walk.may_stop) == (True, True)
    other = VOCABULARY.start(schema_grammar({"const": 1}))
    assert not other.finished
    with pytest.raises(ModelError, match="left its grammar"):
        other.advance(TOKENS.token_to_id("a"))
    with pytest.raises(UsageError, match="fast tokenizer"):
        GrammarVocabulary(object())


def test_torch_is_not_needed() -> None:
    code = "import sys, agent_forge.inference.grammar as g; g.schema_grammar({}); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout == b"False\n"
