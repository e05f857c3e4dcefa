"""Rows from tool schemas alone: requests with the calls that serve them, for any set of functions.

Every row is made from its calls, so the calls are right by construction: one, several of the same tool, several tools,
chained by references, corrected in mid-sentence, turn by turn, with a value that nobody gave, or for a tool that is not
at hand.
Several requests share one list of tools (a sheet), as the requests of a user do; training reads that list once for all.
"""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from agent_forge.agents.planner.constraint import faulty
from agent_forge.agents.planner.script import examples_in, is_reference, properties, result_fields
from agent_forge.errors import DataError
from agent_forge.learning.phrases import Phrasing
from agent_forge.learning.rows import PlanRow, with_references
from agent_forge.learning.values import RATES, Value, Values, name_words, singular, words_of

Function = Mapping[str, Any]
Draft = tuple[list[dict[str, Any]], str]  # calls and the request that asks for them


@dataclass(frozen=True)
class Mix:
    """How often each kind of request is made, by weight."""

    single: float = 0.28
    same: float = 0.16
    listed: float = 0.10
    told: float = 0.14
    dialogue: float = 0.14
    several: float = 0.17
    chained: float = 0.08
    corrected: float = 0.02
    missing: float = 0.05
    none: float = 0.12


_DEMANDS = re.compile(r'"(?:pattern|format|multipleOf|uniqueItems|not|\$ref|\w+Of|(?:m|exclusiveM)(?:in|ax)\w+)": ')
LONG = ("boolean", "array", "object", "message")  # kinds of values that are not said side by side
SHOWN = (1, 1, 2, 3, 4, 6, 8, 8)  # how many tools a sheet shows
REQUESTS = 6  # per sheet
# ends of names that alone do not say what is meant: the name of a doctor is no patient's
VAGUE = ("type", "data", "level", "status", "name", "id", "number", "code", "date", "time", "value", "list", "result")


class Generator:
    """A seeded source of rows over a catalogue. Functions with the same `field` count as near to each other.

    `seen` are values of real rows by parameter name, used beside the built-in ones; `restyle` changes the naming, the
    order of parameters and their types, for a model that is to serve tools it has never seen. `whole` is the share of
    sheets that show the first tools in their own order, as a user has them; `held_out` as in `Phrasing`.
    """

    def __init__(
        self,
        functions: Sequence[Function],
        *,
        seed: int,
        mix: Mix | None = None,
        seen: Mapping[str, Sequence[Any]] | None = None,
        restyle: bool = False,
        shown: Sequence[int] = SHOWN,
        whole: float = 0.0,
        held_out: bool | None = None,
    ) -> None:
        if not functions:
            raise DataError("there are no tools to make requests for", fix="Give at least one function schema")
        self.functions = [{**each, "parameters": plain_parameters(each)} for each in functions]
        self.rng = random.Random(seed)
        self.mix = mix or Mix()
        self.values = Values(self.rng, seen or {})
        self.say = Phrasing(self.rng, held_out)
        self.whole = whole
        self.restyle = restyle
        self.shown = shown
        self.by_field: dict[Any, list[Function]] = defaultdict(list)
        for function in self.functions:
            self.by_field[function.get("field")].append(function)

    def rows(self, count: int) -> Iterator[PlanRow]:
        """So many rows, each without faults."""
        number = 0
        while True:
            for row in self.sheet():
                if number == count:
                    return
                number += 1
                yield replace(row, id=f"generated-{number}")

    def sheet(self, requests: int = REQUESTS) -> list[PlanRow]:
        """Several requests over one list of tools."""
        tools = self._tools()
        if self.restyle:
            tools = [retyped(tool, self.rng) for tool in tools]
        style = (
            self.rng.choice(("as it is", "as it is", "snake", "camel", "pascal", "dotted"))
            if self.restyle
            else "as it is"
        )
        styled = [Styled.of(tool, style, self.rng if self.restyle else None) for tool in tools]
        kinds = [kind.name for kind in fields(Mix)]
        weights = [getattr(self.mix, kind) for kind in kinds]
        rows: list[PlanRow] = []
        tries = 0
        while len(rows) < requests and tries < 8 * requests:
            tries += 1
            kind = self.rng.choices(kinds, weights)[0]
            draft = getattr(self, f"_{kind}")(tools)
            if draft is None or not all(allowed(call, tools) for call in draft[0]):
                continue
            calls = restyled(draft[0], tools, styled)
            row = PlanRow(
                "",
                self.say.dressed(draft[1], calls),
                tuple(each.function for each in styled),
                tuple(calls),
                source=f"generated:{kind}",
            )
            if not row.faults():
                rows.append(row)
        return rows

    def _tools(self) -> list[Function]:
        """A list of tools: some of one field, some from anywhere, no two that could serve the same request."""
        if self.whole and self.rng.random() < self.whole:
            return [*self.functions[: max(self.shown)]]
        most = min(self.rng.choice(self.shown), len(self.functions))
        first = self.rng.choice(self.functions)
        near = self.by_field[first.get("field")]
        pool = [
            *self.rng.sample(near, min(len(near), self.rng.choice((0, 2, 4)))),
            *self.rng.sample(self.functions, min(len(self.functions), most + 4)),
        ]
        tools: list[Function] = [first]
        for each in pool:
            if len(tools) < most and not any(alike(each, other) for other in tools):
                tools.append(each)
        self.rng.shuffle(tools)
        return tools

    # The kinds of request

    def _single(self, tools: Sequence[Function]) -> Draft:
        function = self.rng.choice(tools)
        drawn = self._drawn(function)
        return [call_of(function, drawn)], self.say.joined([self.say.clause(function, drawn)])

    def _same(self, tools: Sequence[Function]) -> Draft | None:
        """Several calls of one tool: values side by side for one parameter, or each call in its own words."""
        function = self.rng.choice(tools)
        first = self._drawn(function)
        varying = [name for name, value in first.items() if value.kind not in LONG or value.said.startswith("[")]
        if not varying:
            return None
        number = self.rng.choice((2, 2, 2, 3, 3, 4))
        if self.rng.random() < 0.5:
            return self._side_by_side(function, first, self.rng.choice(varying), number)
        draws = [first]
        for _ in range(number - 1):
            other = self._drawn(function, like=first)
            stays = {name for name in first if name not in varying or (len(varying) > 1 and self.rng.random() < 0.25)}
            draws.append({name: first[name] if name in stays else other[name] for name in first})
        calls = [call_of(function, drawn) for drawn in draws]
        if any(call in calls[:place] for place, call in enumerate(calls)):
            return None
        clauses = [self.say.clause(function, first)]
        for drawn in draws[1:]:
            if self.rng.random() < 0.6:  # only what differs is said again
                parts = [self.say.slot(name, value) for name, value in drawn.items() if value != first[name]]
                again = self.say.pick(
                    (
                        "do the same {}",
                        "the same {}",
                        "another one {}",
                        "repeat it {}",
                        "{}",
                        "now {}",
                        "one more {}",
                        "do it again {}",
                        "also {}",
                        "can you do the same {}",
                        "I also need this {}",
                        "and another {}",
                    )
                )
                clauses.append(again.format(" and ".join(parts)))
            else:
                clauses.append(self.say.clause(function, drawn))
        return calls, self.say.joined(clauses)

    def _side_by_side(self, function: Function, first: Mapping[str, Value], name: str, number: int) -> Draft | None:
        schema = function["parameters"]["properties"][name]
        drawn = [first[name], *(self.values.draw(name, schema) for _ in range(number - 1))]
        values = list({str(each.value): each for each in drawn}.values())
        if len(values) < 2:
            return None
        calls = [call_of(function, {**first, name: each}) for each in values]
        if len(values) > 2 and self.rng.random() < 0.3:  # one first, and then the others
            others = self.say.slot(name, self.say.listed(values[1:]))
            again = self.say.pick(("do the same {}", "then the same {}", "repeat it {}")).format(others)
            return calls, self.say.joined([self.say.clause(function, first), again])
        return calls, self.say.joined([self.say.clause(function, {**first, name: self.say.listed(values)})])

    def _listed(self, tools: Sequence[Function]) -> Draft | None:
        """Several calls of one tool in one clause, two parameters varying: in pairs, respectively, each with each."""
        function = self.rng.choice(tools)
        first = self._drawn(function)
        varying = [name for name, value in first.items() if value.kind not in LONG]
        if len(varying) < 2:
            return None
        one, two = self.rng.sample(varying, 2)
        way = self.rng.choice(("pairs", "respectively", "grid"))
        counts = (2, 2) if way == "grid" else (self.rng.choice((2, 2, 3, 3, 4)),) * 2
        some = [
            self._different(name, first[name], function, count) for name, count in zip((one, two), counts, strict=True)
        ]
        if None in some:
            return None
        ones, twos = ([*each] for each in some if each)
        pairs = [(a, b) for a in ones for b in twos] if way == "grid" else [*zip(ones, twos, strict=True)]
        calls = [call_of(function, {**first, one: a, two: b}) for a, b in pairs]
        rest = {name: value for name, value in first.items() if name not in (one, two)}
        if way == "pairs":
            return calls, self.say.joined([self.say.clause(function, rest, [self.say.pairs(two, pairs)])])
        end = "respectively" if way == "respectively" else self.say.pick(("", "", "each"))
        both = {one: self.say.listed(ones), two: self.say.listed(twos)}
        return calls, self.say.joined([f"{self.say.clause(function, {**rest, **both})} {end}".rstrip()])

    def _told(self, tools: Sequence[Function]) -> Draft | None:
        """One call or several of one tool as a story: what each has, and what they share."""
        function = self.rng.choice(tools)
        first = self._drawn(function)
        number = self.rng.choice((1, 2, 2, 2, 3, 3, 4))
        some = [name for name in first if self.rng.random() < 0.7]
        varying = some or [name for name in first if first[name].kind != "message"][:1]
        draws = [first, *({**first, **self._drawn(function, like=varying)} for _ in range(number - 1))]
        calls = [call_of(function, drawn) for drawn in draws]
        if not varying or any(call in calls[:place] for place, call in enumerate(calls)):
            return None
        shared = {name: value for name, value in first.items() if name not in varying}
        cases = [{name: drawn[name] for name in varying} for drawn in draws]
        return calls, self.say.told(function, shared, cases)

    def _dialogue(self, tools: Sequence[Function]) -> Draft | None:
        """One call or two as a person asks for them turn by turn. The second takes over what both ask for under one
        name, and what the first one found."""
        first, *rest = self.rng.sample(list(tools), len(tools))
        linked = [tool for tool in rest if link_of(first, tool) is not None]
        second = self.rng.choice(linked or rest) if rest and self.rng.random() < (0.75 if linked else 0.4) else None
        drawn = self._drawn(first)
        calls, turns = [call_of(first, drawn)], self._turns(first, drawn)
        if second is not None:
            link = link_of(first, second)
            fresh = self._drawn(second, without=link[0] if link else None)
            told = {name: value for name, value in fresh.items() if name not in drawn or value.kind in LONG}
            whole = {name: told.get(name) or drawn[name] for name in fresh}
            call = call_of(second, whole)
            if faulty(call["args"], second["parameters"]):  # what the first one takes need not suit the second
                return None
            call["args"] |= {link[0]: {"ref": 1, "field": link[1]}} if link else {}
            more = self._turns(second, told)
            calls, turns = [*calls, call], [*turns, self.say.goes_on(more[0]), *more[1:]]
        return calls, " ".join(turns)

    def _turns(self, function: Function, drawn: Mapping[str, Value]) -> list[str]:
        """What is said for a call, some of its values taken back at the end."""
        before = {}
        for name, value in drawn.items():
            if value.kind not in ("boolean", "object", "array", "message") and self.rng.random() < 0.2:
                other = self.values.draw(name, function["parameters"]["properties"][name])
                if other.said not in value.said and value.said not in other.said:
                    before[name] = other
        return self.say.turns(function, drawn, before, result_fields(function))

    def _different(self, name: str, first: Value, function: Function, count: int) -> list[Value] | None:
        """So many different values of a parameter."""
        schema = function["parameters"]["properties"][name]
        drawn = {str(each.value): each for each in [first, *(self.values.draw(name, schema) for _ in range(2 * count))]}
        return [*drawn.values()][:count] if len(drawn) >= count else None

    def _several(self, tools: Sequence[Function]) -> Draft | None:
        number = min(len(tools), self.rng.choice((2, 2, 3, 3, 4)))
        if number < 2:
            return None
        chosen = self.rng.sample(list(tools), number)
        if self.rng.random() < 0.2:
            chosen.append(chosen[0])
        share = self.rng.random() < 0.4  # what two tools ask for under one name is said once
        known: dict[str, Value] = {}
        calls, clauses = [], []
        for function in chosen:
            drawn = self._drawn(function)
            again = {name for name in drawn if name in known} if share else set()
            drawn = {name: known[name] if name in again else value for name, value in drawn.items()}
            call = call_of(function, drawn)
            if call in calls or faulty(call["args"], function["parameters"]):  # a shared value need not suit both
                return None
            calls.append(call)
            told = {name: value for name, value in drawn.items() if name not in again or self.rng.random() < 0.3}
            same = [self.say.same(name) for name in drawn if name not in told]
            clauses.append(self.say.clause(function, told, same))
            known |= {name: value for name, value in drawn.items() if value.kind not in LONG}
        return calls, self.say.joined(clauses)

    def _chained(self, tools: Sequence[Function]) -> Draft | None:
        """A later call takes a field of an earlier one's result."""
        pairs = [(a, b) for a in tools for b in tools if a is not b and link_of(a, b) is not None]
        if not pairs:
            return None
        chain = list(self.rng.choice(pairs))
        onward = [tool for tool in tools if tool not in chain and link_of(chain[-1], tool) is not None]
        if onward and self.rng.random() < 0.4:
            chain.append(self.rng.choice(onward))
        calls: list[dict[str, Any]] = []
        clauses: list[str] = []
        for number, function in enumerate(chain, 1):
            link = link_of(chain[number - 2], function) if number > 1 else None
            drawn = self._drawn(function, without=link[0] if link else None)
            call = call_of(function, drawn)
            if link:
                call["args"][link[0]] = {"ref": number - 1, "field": link[1]}
            calls.append(call)
            clauses.append(self.say.clause(function, drawn, [self.say.pointing(link[1])] if link else []))
        return calls, self.say.joined(clauses)

    def _corrected(self, tools: Sequence[Function]) -> Draft | None:
        function = self.rng.choice(tools)
        drawn = self._drawn(function)
        names = [name for name, value in drawn.items() if value.kind not in ("boolean", "array", "object")]
        if not names:
            return None
        name = self.rng.choice(names)
        better = self.values.draw(name, function["parameters"]["properties"][name])
        if better.value == drawn[name].value:
            return None
        asked = self.say.sentence(self.say.clause(function, drawn))
        return [call_of(function, {**drawn, name: better})], f"{asked} {self.say.correction(name, better)}"

    def _missing(self, tools: Sequence[Function]) -> Draft | None:
        function = self.rng.choice(tools)
        properties = function["parameters"].get("properties") or {}
        names = [
            name
            for name in function["parameters"].get("required") or ()
            if properties[name].get("type") not in ("boolean", "object")
        ]
        if not names:
            return None
        absent = self.rng.choice(names)
        drawn = self._drawn(function, without=absent)
        call = call_of(function, drawn)
        call["args"][absent] = None
        return [call], self.say.joined([self.say.clause(function, drawn)])

    def _none(self, tools: Sequence[Function]) -> Draft | None:
        """A request for a tool that is not shown, often one of the same field."""
        near = self.by_field[self.rng.choice(tools).get("field")]
        pool = near if self.rng.random() < 0.6 else self.functions
        wanted = self.rng.choice(pool)
        if any(alike(wanted, tool) for tool in tools):
            return None
        return [], self.say.joined([self.say.clause(wanted, self._drawn(wanted))])

    def _drawn(
        self, function: Function, *, without: str | None = None, like: Collection[str] | None = None
    ) -> dict[str, Value]:
        """Values for the required parameters and some of the others."""
        schema = function["parameters"]
        required = set(schema.get("required") or ())
        share = self.rng.choice((0.0, 0.2, 0.5))
        return {
            name: self.values.draw(name, each)
            for name, each in (schema.get("properties") or {}).items()
            if name != without and (name in like if like is not None else name in required or self.rng.random() < share)
        }


def plain_parameters(function: Function) -> dict[str, Any]:
    """The parameters as a schema with properties, `true` among them as one that allows anything."""
    schema = function.get("parameters") or {}
    known = properties(schema)
    return {**schema, "properties": known, "required": [name for name in schema.get("required") or () if name in known]}


def allowed(call: Mapping[str, Any], tools: Sequence[Function]) -> bool:
    """Whether the tool would take the values: they are drawn by type and choice, and its schema may ask for more."""
    schema = next(tool for tool in tools if tool["name"] == call["tool"])["parameters"]
    if not _DEMANDS.search(json.dumps(schema)):
        return True
    return not faulty({k: v for k, v in call["args"].items() if v is not None and not is_reference(v)}, schema)


def call_of(function: Function, drawn: Mapping[str, Value]) -> dict[str, Any]:
    return {"tool": function["name"], "args": {name: value.value for name, value in drawn.items()}}


def link_of(function: Function, other: Function) -> tuple[str, str] | None:
    """A parameter of the other tool and the field of this one's result that fits it, by the last words of the names."""
    for name, schema in (other["parameters"].get("properties") or {}).items():
        if schema.get("enum") or schema.get("type") not in (None, "string", "integer", "number"):
            continue
        words = name_words(name)
        for field in result_fields(function):
            told = name_words(field)
            if words[-2:] == told[-2:] or (words[-1] == told[-1] and words[-1] not in VAGUE):
                return name, field
    return None


def alike(one: Function, other: Function) -> bool:
    """Whether two tools could serve the same request: such tools are never shown side by side."""
    if one["name"].lower() == other["name"].lower():
        return True
    a, b = set(map(singular, name_words(one["name"]))), set(map(singular, name_words(other["name"])))
    return len(a & b) / max(1, len(a | b)) > 0.6


def retyped(function: Function, rng: random.Random) -> Function:
    """Now and then other types for a tool's parameters: choices made from its examples, lists, numbers, defaults."""
    schema = function["parameters"]
    properties = {}
    for name, each in (schema.get("properties") or {}).items():
        roll = rng.random()
        changed = dict(each)
        examples = [example for example in examples_in(each.get("description") or "") if len(example) < 25]
        if each.get("type") == "string" and not each.get("enum"):
            if len(examples) > 1 and roll < 0.12:
                changed = {"type": "string", "enum": examples, **({"default": examples[0]} if roll < 0.04 else {})}
            elif roll > 0.93 and not examples:
                changed = {**each, "type": "array", "items": {"type": "string"}}
        elif each.get("type") == "number" and RATES.search(name.lower()) and roll > 0.5:
            how = rng.choice(("as a decimal", "in decimal form", "e.g. 0.05 for 5%", "in percent", "as a percentage"))
            changed = {**each, "description": f"{each.get('description') or words_of(name)} ({how})"}
        elif each.get("type") in ("integer", "number") and roll < 0.06:
            changed = {**each, "type": "array", "items": {"type": each["type"]}}
        properties[name] = changed
    required = [name for name in schema.get("required") or () if rng.random() > 0.04]
    return {**function, "parameters": {"type": "object", "properties": properties, "required": required}}


@dataclass(frozen=True)
class Styled:
    """A function under another naming style, with the new names of its parameters and fields."""

    function: dict[str, Any]
    parameters: Mapping[str, str]
    fields: Mapping[str, str]

    @classmethod
    def of(cls, function: Function, style: str, rng: random.Random | None) -> Styled:
        schema = function["parameters"]
        properties = list((schema.get("properties") or {}).items())
        if rng is not None:
            rng.shuffle(properties)
        inner = "snake" if style in ("dotted", "pascal") else style
        parameters = {name: in_style(name, inner) for name, _ in properties}
        results = {field: in_style(field, inner) for field in result_fields(function)}
        document = {
            "name": in_style(function["name"], style),
            "description": "" if rng is not None and rng.random() < 0.06 else function.get("description") or "",
            "parameters": {
                "type": "object",
                "properties": {parameters[name]: _plainer(each, rng) for name, each in properties},
                "required": [parameters[name] for name in schema.get("required") or () if name in parameters],
            },
        }
        if results and (rng is None or rng.random() < 0.85):
            document["returns"] = list(results.values())
        return cls(document, parameters, results)


def _plainer(schema: Mapping[str, Any], rng: random.Random | None) -> dict[str, Any]:
    bare = rng is not None and rng.random() < 0.15
    return {key: value for key, value in schema.items() if not (bare and key == "description")}


def restyled(
    calls: Sequence[Mapping[str, Any]], tools: Sequence[Function], styled: Sequence[Styled]
) -> list[dict[str, Any]]:
    """The calls under the new names, their arguments in the order of the schema."""
    of = {tool["name"]: each for tool, each in zip(tools, styled, strict=True)}
    result = []
    for call in calls:
        style = of[call["tool"]]

        def field_of(reference: Mapping[str, Any]) -> dict[str, Any]:
            source = of[calls[reference["ref"] - 1]["tool"]]
            fields = source.fields if "returns" in source.function else {}
            return {"ref": reference["ref"], "field": fields.get(reference["field"])}

        args = {
            new: with_references(call["args"][old], field_of)
            for old, new in style.parameters.items()
            if old in call["args"]
        }
        result.append({"tool": style.function["name"], "args": args})
    return result


def in_style(name: str, style: str) -> str:
    """
    >>> in_style("getWeather", "snake"), in_style("get_weather", "dotted"), in_style("get_weather", "pascal")
    ('get_weather', 'weather.get', 'GetWeather')
    """
    words = name_words(name)
    if style == "snake":
        return "_".join(words)
    if style == "dotted" and len(words) > 1:
        return f"{words[-1]}.{'_'.join(words[:-1])}"
    if style in ("camel", "pascal"):
        joined = "".join(word.capitalize() for word in words)
        return joined if style == "pascal" else joined[:1].lower() + joined[1:]
    return name
