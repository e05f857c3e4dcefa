"""What the forged planner may write: whatever the logits say, a finished call is valid and its values were said.

`benchmarks/planner_grammar.py` has the random schemas and the judge, and runs 10,000 cases.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from agent_forge.agents.grounding import Mentions
from agent_forge.agents.planner.constraint import faulty, line_grammar, settled
from agent_forge.agents.planner.writer import MOST_CALLS, PlanWriter
from agent_forge.inference.grammar import Grammar, GrammarVocabulary

llguidance = pytest.importorskip("llguidance")
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "planner_grammar.py"


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    spec = importlib.util.spec_from_file_location("planner_grammar", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["planner_grammar"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def vocabulary(fuzz: ModuleType) -> Any:
    return GrammarVocabulary(Tokenizer.from_str(fuzz.byte_vocabulary()), ends=[0])


@pytest.fixture(scope="module")
def fits(vocabulary: Any) -> Callable[..., bool]:
    """Whether a text is a line of the grammar."""

    def check(
        line: str, tools: list[dict[str, Any]], request: str, earlier: list[dict[str, Any]] | None = None
    ) -> bool:
        grammar = line_grammar(tools, Mentions(request), earlier or [])
        walk = vocabulary.start(Grammar(grammar))
        for token in vocabulary.tokens(line):
            if not walk.allowed()[token]:
                return False
            walk.advance(token)
        return bool(walk.may_stop)

    return check


def tool(name: str = "f", required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": required or []}
    return {"name": name, "parameters": schema}


def written(vocabulary: Any, tools: list[dict[str, Any]], request: str, line: str) -> PlanWriter:
    """The writer of a model that wants to write this text, and then nothing more."""
    writer = PlanWriter(vocabulary, tools, request)
    for token in [*vocabulary.tokens(line), vocabulary.ends[0]]:
        logits = np.zeros(vocabulary.size)
        logits[token] = 50.0
        writer.choose(logits)
    assert writer.ended
    return writer


@pytest.mark.untraced
def test_random_schemas_and_logits_never_give_an_invalid_or_invented_call(fuzz: ModuleType, vocabulary: Any) -> None:
    tally = fuzz.Tally()
    for case in range(60):
        fuzz.try_case(vocabulary, case, tally)
    assert tally.examples == []
    assert tally.counts["ended"] == tally.counts["attempts"] == 60
    # the cases are not idle
    assert min(tally.counts[kind] for kind in ("calls", "values", "left open", "references")) >= 8


@pytest.mark.untraced
def test_the_judge_of_the_random_cases_finds_what_is_wrong(fuzz: ModuleType) -> None:
    tally = fuzz.Tally()
    tools = [tool("f", ["n", "city"], n={"type": "integer", "minimum": 3}, city={"type": "string"})]
    for args in ({"n": 2, "city": "Oslo"}, {"n": "2", "city": None}, {"n": 5}, {"n": {"ref": 1, "field": None}}):
        fuzz.judge({"tool": "f", "args": args}, 1, tools, "2 or 5 in Oslo", tally)
    assert tally.counts["invalid"] == 5  # the last call misses `city`, and refers to itself
    fuzz.judge({"tool": "f", "args": {"n": 7, "city": "Rome"}}, 1, tools, "2 or 5 in Oslo", tally)
    assert tally.counts["ungrounded"] == 2


CITY = tool("get", ["city"], city={"type": "string"}, unit={"enum": ["C", "F"], "default": "C"})


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ('1 get(city="Oslo")\n', True),
        ('1 get(city="Oslo", unit="F")\n', True),
        ("1 get(city=?)\n", True),
        ("none\n", True),
        ('1 get(city="the sea in Oslo")\n', True),
        ('1 get(city="Rome")\n', False),  # not said
        ('1 get(city="Osl")\n', False),  # a part of a word
        ('1 get(city="Oslo ")\n', False),
        ('1 get(unit="F", city="Oslo")\n', False),  # not in the order of the schema
        ('1 get(unit="F")\n', False),  # required
        ('1 get(city="Oslo", unit=?)\n', False),  # what may be left out is not asked for
        ('1 get(city="Oslo", unit="K")\n', False),
        ('2 get(city="Oslo")\n', False),
        ("1 get(city=#1)\n", False),  # nothing came earlier
        ('1 find(city="Oslo")\n', False),
    ],
)
def test_a_line_of_one_tool(fits: Callable[..., bool], line: str, allowed: bool) -> None:
    assert fits(line, [CITY], "How is the sea in Oslo?") == allowed


@pytest.mark.parametrize(
    ("schema", "value", "allowed"),
    [
        ({"type": "integer"}, "5", True),
        ({"type": "integer"}, "5.0", False),
        ({"type": "integer"}, '"5"', False),
        ({"type": "integer"}, "8", True),
        ({"type": "integer"}, "0.08", False),
        ({"type": "number"}, "0.08", True),  # 8 %
        ({"type": "integer", "minimum": 6}, "5", False),
        ({"type": "integer", "exclusiveMaximum": 5}, "5", False),
        ({"type": "integer", "default": 40}, "40", True),
        ({"type": "string"}, '"2024-03-05"', True),
        ({"type": "string"}, '"March 5th, 2024"', True),
        ({"type": "string"}, "5", False),
        ({"type": ["string", "integer"]}, "5", True),
        ({"const": "km"}, '"km"', True),
        ({"const": "km"}, '"March"', False),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, '"true"', False),
        ({"type": "array", "items": {"type": "integer"}}, "[5, 8]", True),
        ({"type": "array", "items": {"type": "integer"}}, "5", False),
        ({"type": "array", "items": {"type": "integer"}}, "[]", False),
        ({"anyOf": [{"type": "integer"}, {"enum": ["all"]}]}, '"all"', True),
        ({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}, '{"n": 5}', True),
        ({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}, "{}", False),
    ],
)
def test_values_by_type(fits: Callable[..., bool], schema: dict[str, Any], value: str, allowed: bool) -> None:
    request = "Add 5 items at 8% until March 5th, 2024"
    assert fits(f"1 f(x={value})\n", [tool("f", ["x"], x=schema)], request) == allowed


def test_a_field_with_the_name_of_the_parameter_is_the_one_that_is_meant(fits: Callable[..., bool]) -> None:
    find = {"name": "find", "parameters": {}, "returns": ["phone", "therapistName", "city"]}
    taken = {"therapist_name": {"type": "string"}, "place": {"type": "string"}}
    book = {"name": "book", "parameters": {"type": "object", "properties": taken, "required": ["therapist_name"]}}
    for written, allowed in (
        ("therapist_name=#1.therapistName", True),
        ("therapist_name=#1.phone", False),
        ("therapist_name=?, place=#1.city", True),
        ("therapist_name=?, place=#1.phone", True),  # no field has that name: any may be meant
    ):
        assert fits(f"2 book({written})\n", [find, book], "Book it", [find]) is allowed


def test_quotation_marks_and_backslashes_are_copied_whole(fits: Callable[..., bool]) -> None:
    request = r'Print "a \ b" from C:\temp'
    tools = [tool("f", ["x"], x={"type": "string"})]
    assert fits(r'1 f(x="C:\\temp")' + "\n", tools, request)
    assert fits(r'1 f(x="Print \"a \\ b\"")' + "\n", tools, request)
    assert not fits('1 f(x="Print \\")\n', tools, request)  # half of an escape


def test_earlier_results_by_field(fits: Callable[..., bool]) -> None:
    find = {"name": "find", "returns": ["id", "two words"]}
    plain = {"name": "plain"}
    tools = [tool("f", ["x"], x={"type": "integer"}), find]
    assert fits("3 f(x=#1.id)\n", tools, "do it", [find, plain])
    assert fits("3 f(x=#2)\n", tools, "do it", [find, plain])
    assert not fits("3 f(x=#1.two words)\n", tools, "do it", [find, plain])  # could not be read again
    assert not fits("3 f(x=#3.id)\n", tools, "do it", [find, plain])
    assert fits("3 find(#1, #2)\n", tools, "do it", [find, plain])
    assert not fits("3 find(#1, #1)\n", tools, "do it", [find, plain])
    assert fits("", tools, "do it", [find, plain])  # the end


@pytest.mark.parametrize(
    ("schema", "request_", "value", "kept"),
    [
        ({"type": "string", "pattern": r"^\d+$"}, "order 17 for Bob", '"17"', "17"),
        ({"type": "string", "pattern": r"^\d+$"}, "order 17 for Bob", '"Bob"', None),
        ({"type": "string", "minLength": 4}, "for Bob", '"Bob"', None),
        ({"type": "string", "maxLength": 2}, "for Bob", '"Bob"', None),
        ({"type": "string", "format": "email"}, "for Bob", '"Bob"', None),
        ({"type": "string", "format": "email"}, "for bob@example.org", '"bob@example.org"', "bob@example.org"),
        ({"type": "integer", "multipleOf": 5}, "take 7", "7", None),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, "take 7", "[7]", None),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "take 7", "[7, 7]", None),
    ],
)
def test_what_the_grammar_cannot_say_is_left_open_or_dropped(
    vocabulary: Any, schema: dict[str, Any], request_: str, value: str, kept: Any
) -> None:
    required = written(vocabulary, [tool("f", ["x"], x=schema)], request_, f"1 f(x={value})\n")
    assert required.calls[0]["args"] == {"x": kept}
    optional = written(vocabulary, [tool("f", [], x=schema)], request_, f"1 f(x={value})\n")
    assert optional.calls[0]["args"] == ({} if kept is None else {"x": kept})


def test_a_call_that_is_refused_as_a_whole_is_not_made() -> None:
    said = Mentions("Oslo and Rome")
    function = tool("f", [], a={"type": "string"}, b={"type": "string"})
    function["parameters"]["minProperties"] = 2
    assert settled({"tool": "f", "args": {"a": "Oslo"}}, function, said) is None
    assert settled({"tool": "f", "args": {"a": "Oslo", "b": "Rome"}}, function, said) is not None
    function["parameters"]["required"] = ["a", "b"]
    open_ = settled({"tool": "f", "args": {"a": "Oslo", "b": None}}, function, said)
    assert open_ == {"tool": "f", "args": {"a": "Oslo", "b": None}}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "dict"}}},  # no type of JSON Schema
        {"properties": {"a": {"pattern": "("}}},
        {"properties": {"a": {"$ref": "http://localhost:9/schema"}}},  # never fetched
    ],
)
def test_a_schema_that_is_none_refuses_nothing(schema: Mapping[str, Any]) -> None:
    assert faulty({"a": "Oslo"}, schema) == set()


def test_definitions_are_followed() -> None:
    schema = {"properties": {"unit": {"$ref": "#/$defs/Unit"}}, "$defs": {"Unit": {"enum": ["km"]}}}
    assert faulty({"unit": "miles"}, schema) == {"unit"}
    assert faulty({"unit": "km"}, schema) == set()


def test_names_that_no_line_can_hold_are_not_offered(fits: Callable[..., bool]) -> None:
    tools = [tool("f", [], **{"a=b": {"type": "string"}, "c": {"type": "boolean"}}), tool("g(x)")]
    assert fits("1 f(c=true)\n", tools, "Oslo")
    assert not fits('1 f(a=b="Oslo")\n', tools, "Oslo")
    assert not fits("1 g(x)()\n", tools, "Oslo")
    assert fits("none\n", [], "Oslo")


def test_a_plan_ends_after_so_many_calls(vocabulary: Any) -> None:
    names = "abcdefghijklmn"  # one call of each: the same call again would end it too
    writer = PlanWriter(vocabulary, [tool(name, []) for name in names], "do it", refuse_above=1.0)
    texts = [vocabulary.text([token]) for token in range(vocabulary.size)]
    while not writer.ended:
        logits = np.array([9.0 if names[len(writer.calls)] in text else 0.0 for text in texts])
        logits[vocabulary.ends[0]] = -50.0
        writer.choose(logits)
    assert len(writer.calls) == len(writer.confidences) == MOST_CALLS


@pytest.mark.parametrize(("none", "refused"), [(0.3, False), (0.7, True)])
def test_a_request_is_refused_above_the_threshold(vocabulary: Any, none: float, refused: bool) -> None:
    writer = PlanWriter(vocabulary, [tool("f")], "do it", refuse_above=0.5)
    logits = np.full(vocabulary.size, -100.0)
    logits[vocabulary.tokens("1")[0]] = np.log(1 - none)
    logits[vocabulary.tokens("none")[0]] = np.log(none)
    writer.choose(logits)
    assert writer.none_probability == pytest.approx(none)
    while not writer.ended:
        writer.choose(np.arange(vocabulary.size, 0, -1.0))  # the end first, of what is allowed
    assert (not writer.calls) == refused


def test_an_optional_argument_that_repeats_another_is_dropped() -> None:
    number = {"type": "number"}
    function = tool("t_test", ["a", "b"], a=number, b=number, alpha=number, beta={**number, "default": 7})
    args = {"a": 12, "b": 7, "alpha": 12, "beta": 7}
    for request, kept in (("12 and 7", ["a", "b", "beta"]), ("12 and 7, alpha 12", ["a", "b", "alpha", "beta"])):
        call = settled({"tool": "t_test", "args": args}, function, Mentions(request))
        assert call is not None
        assert list(call["args"]) == kept


@pytest.mark.parametrize(
    ("request_", "zone", "kept"),
    [
        ("Water the east zone", "north", "east"),
        ("Water the zone in the East!", "north", "east"),
        ("Water the east zone", "east", "east"),
        ("Water the garden", "north", "north"),  # none is named
        ("Water the east and the south zone", "north", "north"),  # which of the two is not known
        ("Water the east zone; no, the one at the gate", "north", "north"),  # taken back
    ],
)
def test_an_option_that_the_request_names_is_taken(request_: str, zone: str, kept: str) -> None:
    schema = {"type": "object", "properties": {"zone": {"enum": ["north", "east", "south"]}}, "required": ["zone"]}
    call = settled({"tool": "water", "args": {"zone": zone}}, {"parameters": schema}, Mentions(request_))
    assert call is not None
    assert call["args"] == {"zone": kept}


@pytest.mark.parametrize("options", [["a", "b"], ["all", "some"], ["and", "any"], ["us", "uk"]])
def test_a_small_word_names_no_option(options: list[str]) -> None:
    schema = {"type": "object", "properties": {"which": {"enum": options}}, "required": ["which"]}
    call = {"tool": "list", "args": {"which": options[1]}}
    assert settled(call, {"parameters": schema}, Mentions("Give us a list and say all that there is")) == call


def test_an_option_that_another_argument_has_taken_is_not_taken_twice() -> None:
    kind = {"enum": ["checking", "savings"]}
    schema = {"type": "object", "properties": {"from_": kind, "to": kind}, "required": ["from_", "to"]}
    call = {"tool": "transfer", "args": {"from_": "savings", "to": "checking"}}
    assert settled(call, {"parameters": schema}, Mentions("Transfer 5 from my savings to Ann")) == call


def test_words_that_name_nothing_are_no_values() -> None:
    text = {"type": "string"}
    function = tool("sculpt", ["material"], material=text, period=text)
    call = {"tool": "sculpt", "args": {"material": "the", "period": "a"}}
    assert settled(call, function, Mentions("Find the sculpture of a lion"))["args"] == {"material": None}
    kept = {"tool": "sculpt", "args": {"material": "A", "period": "The Nice Guys"}}
    assert settled(kept, function, Mentions("Material A, The Nice Guys")) == kept
    word = {"tool": "sculpt", "args": {"material": "the"}}
    assert settled(word, function, Mentions("Translate 'the' into French")) == word, "in quotation marks it is meant"
    listed = tool("sculpt", ["material"], material={"enum": ["the", "an"]})
    assert settled({"tool": "sculpt", "args": {"material": "the"}}, listed, Mentions("the one"))["args"] == {
        "material": "the"
    }
