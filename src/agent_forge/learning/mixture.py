"""What the shipped planner learns from: real rows under changing names, and generated ones, in sheets.

Names are changed because a model that remembers `FindRestaurants(cuisine=…)` does not read the tools it is shown: SGD-X
paraphrases every service, and naming styles, the order of parameters and the tools beside the right ones vary.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_forge.agents.grounding import Mentions, grounded
from agent_forge.errors import DataError
from agent_forge.learning.datasets import (
    nestful_tools,
    read_set,
    seal_tools,
    sgd_names,
    sgd_tools,
    ultratool_tools,
)
from agent_forge.learning.generate import Generator, Styled, alike, restyled
from agent_forge.learning.rows import PlanRow, references

Group = list[PlanRow]  # rows over one list of tools
REQUESTS = 6
SHOWN = 8  # tools, where there are more
# rows that a sheet draws from
LEAST = {"sgd": 1, "snips": 40, "seal_tools": 3, "nestful": 3, "ultratool": 3, "break": 8}


@dataclass(frozen=True)
class Shares:
    """The share of each source among the sheets."""

    generated: float = 0.50
    sgd: float = 0.24
    snips: float = 0.05
    seal_tools: float = 0.08
    nestful: float = 0.02
    ultratool: float = 0.06
    words: float = 0.05  # plans in words: Break


class Mixture:
    """An endless, seeded source of sheets. `held_out` rows (by id) are never drawn, nor tools of `held_out_fields`.
    `more` tools, each with a `field`, are only generated for.

    Raises DataError if a set is too small.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        shares: Shares | None = None,
        held_out: frozenset[str] = frozenset(),
        held_out_fields: frozenset[str] = frozenset(),
        more: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.rng = random.Random(seed)
        self.shares = shares or Shares()
        sets = {name: [row for row in read_set(name, folder) if row.id not in held_out] for name in LEAST}
        small = [f"{name} {len(rows)} of {LEAST[name]}" for name, rows in sets.items() if len(rows) < LEAST[name]]
        if small:
            fix = "Give a folder with the whole sets, or hold fewer rows out"
            raise DataError(f"too few rows to learn from: {', '.join(small)}", where=str(folder), fix=fix)
        self.sgd = SgdSheets(sets["sgd"], folder, self.rng)
        self.seal = {name: tool for name, tool in seal_tools(folder).items() if tool["field"] not in held_out_fields}
        self.ultratool = ultratool_tools(folder)
        self.snips, self.words = sets["snips"], sets["break"]
        self.seal_rows = [row for row in sets["seal_tools"] if all(tool["name"] in self.seal for tool in row.tools)]
        self.nestful_rows, self.ultratool_rows = sets["nestful"], sets["ultratool"]
        nestful = {**nestful_tools(folder, "non-executable-glaive"), **nestful_tools(folder, "non-executable-sgd")}
        self.nestful = {name: {**tool, "field": "nestful"} for name, tool in nestful.items()}
        services = [{**tool, "field": service} for (service, _), tool in sgd_tools(folder, "train").items()]
        seen = values_of([*sets["sgd"], *sets["snips"], *self.seal_rows])
        known = [*self.seal.values(), *services, *services, *self.nestful.values(), *self.nestful.values()]
        catalogue = [*known * max(1, round(len(more) / len(known))), *more]  # as often as the others together
        self.generator = Generator(catalogue, seed=self.rng.randrange(2**31), seen=seen, restyle=True)

    def groups(self) -> Iterator[Group]:
        """Sheets without end."""
        names = [*vars(self.shares)]
        weights = [getattr(self.shares, name) for name in names]
        while True:
            group = getattr(self, f"_{self.rng.choices(names, weights)[0]}")()
            group = [row for row in group if not row.faults()]
            if group:
                yield group

    def _generated(self) -> Group:
        return self.generator.sheet(REQUESTS)

    def _sgd(self) -> Group:
        return self.sgd.sheet(REQUESTS)

    def _snips(self) -> Group:
        tools = self.snips[0].tools
        shown = self.rng.sample(tools, self.rng.choice((2, 4, 7)))
        names = {tool["name"] for tool in shown}
        rows = self.rng.sample(self.snips, 40)
        mine = [row for row in rows if row.calls[0]["tool"] in names][:REQUESTS]
        none = [replace(row, calls=()) for row in rows if row.calls[0]["tool"] not in names][: len(mine) // 5]
        return self._styled([*mine, *none], shown)

    def _seal_tools(self) -> Group:
        return self._with_others(self.rng.sample(self.seal_rows, 3), self.seal)

    def _nestful(self) -> Group:
        return self._with_others(self.rng.sample(self.nestful_rows, 3), self.nestful)

    def _ultratool(self) -> Group:
        return self._with_others(self.rng.sample(self.ultratool_rows, 3), self.ultratool, style="as it is")

    def _words(self) -> Group:
        return self.rng.sample(self.words, 8)

    def _with_others(
        self, rows: Sequence[PlanRow], catalogue: Mapping[str, Mapping[str, Any]], style: str | None = None
    ) -> Group:
        """Rows over the tools they use and some others, eight or a little more in all."""
        used = {tool["name"]: catalogue[tool["name"]] for row in rows for tool in row.tools}
        shown = list(used.values())
        others = self.rng.sample(list(catalogue.values()), min(len(catalogue), 12))
        fields = {tool.get("field") for tool in shown}
        others.sort(key=lambda tool: tool.get("field") not in fields or tool.get("field") is None)
        for each in others:
            if len(shown) < 8 and not any(alike(each, tool) for tool in shown):
                shown.append(each)
        self.rng.shuffle(shown)
        return self._styled([as_missing(row) for row in rows], shown, style)

    def _styled(self, rows: Sequence[PlanRow], shown: Sequence[Mapping[str, Any]], style: str | None = None) -> Group:
        style = style or self.rng.choice(("as it is", "as it is", "as it is", "snake", "camel", "pascal", "dotted"))
        styled = [Styled.of(tool, style, self.rng) for tool in shown]
        return [in_style_of(row, shown, styled) for row in rows]


class SgdSheets:
    """SGD's rows under the names of SGD-X: a sheet shows two to four services, each in one of its wordings."""

    def __init__(self, rows: Sequence[PlanRow], folder: Path, rng: random.Random, split: str = "train") -> None:
        self.rng = rng
        self.tools = sgd_tools(folder, split)
        self.names = sgd_names(folder, split)
        self.by_services: dict[tuple[str, ...], list[PlanRow]] = defaultdict(list)
        for row in rows:
            self.by_services[tuple(sorted(row.meta["services"]))].append(row)
        self.keys = list(self.by_services)
        self.weights = [len(self.by_services[key]) for key in self.keys]
        self.services = sorted({service for key in self.keys for service in key})

    def sheet(self, requests: int) -> Group:
        first = self.rng.choices(self.keys, self.weights)[0]
        services = set(first)
        while len(services) < self.rng.choice((1, 2, 3, 4)):
            services.add(self.rng.choice(self.services))
        fitting = [key for key in self.keys if services.issuperset(key)]
        weights = [len(self.by_services[key]) for key in fitting]
        rows = [self.rng.choice(self.by_services[key]) for key in self.rng.choices(fitting, weights, k=requests)]
        shown_tools = self._shown(services, rows)
        # in an order that is the same in every process, as that of a set is not
        shown_services = sorted({service for service, _ in shown_tools})
        variant = {service: self.rng.choice([None, *self.names[service]]) for service in shown_services}
        shown = [renamed(self.tools[service, name], variant[service]) for service, name in shown_tools]
        if len({each["name"] for each in shown}) < len(shown):  # two services with one wording
            return []
        self.rng.shuffle(shown)
        style = self.rng.choice(("as it is", "as it is", "snake", "camel", "dotted"))
        styled = [Styled.of(each, style, self.rng) for each in shown]
        group = [in_style_of(self._renamed(row, variant), shown, styled) for row in rows]
        other = self.rng.choice(self.keys)
        if self.rng.random() < 0.6 and not _domains(shown_services) & _domains(other):
            stranger = self.rng.choice(self.by_services[other])
            group.append(in_style_of(replace(stranger, calls=()), shown, styled))
        return group

    def _shown(self, services: set[str], rows: Sequence[PlanRow]) -> list[tuple[str, str]]:
        """All tools of the services; or, as where a user has many, those that the rows use among single tools of
        these and of other services, eight in all: a call has to be wanted, not only to go well with another."""
        own = [key for key in self.tools if key[0] in services]
        if self.rng.random() < 0.5:
            return own
        pairs = [zip(row.meta["service_of"], (call["tool"] for call in row.calls), strict=True) for row in rows]
        chosen = list(dict.fromkeys((service, name) for each in pairs for service, name in each))
        domains = _domains(services)
        others = [key for key in self.tools if not _domains({key[0]}) & domains]
        rest = [key for key in own if key not in chosen]
        pool = self.rng.sample(rest, min(len(rest), 2)) + self.rng.sample(others, min(len(others), SHOWN))
        return [*chosen, *pool[: max(0, SHOWN - len(chosen))]]

    def _renamed(self, row: PlanRow, variant: Mapping[str, Mapping[str, Any] | None]) -> PlanRow:
        calls = []
        services = row.meta["service_of"]
        for call, service in zip(row.calls, services, strict=True):
            entry = variant[service]
            args = {}
            for name, value in call["args"].items():
                renamed = value
                if isinstance(value, Mapping):
                    source = variant[services[value["ref"] - 1]]
                    renamed = {"ref": value["ref"], "field": _slot(source, value["field"])}
                args[_slot(entry, name)] = as_said(renamed, row.request)
            calls.append({"tool": _intent(entry, call["tool"]), "args": args})
        return replace(row, calls=tuple(calls))


def renamed(tool: Mapping[str, Any], entry: Mapping[str, Any] | None) -> dict[str, Any]:
    """A function under the names of one of SGD-X's variants."""
    if entry is None:
        return dict(tool)
    schema = tool["parameters"]
    properties = {}
    for name, each in schema["properties"].items():
        slot = entry["slots"].get(name, {})
        properties[slot.get("name", name)] = {**each, "description": slot.get("description", each.get("description"))}
    return {
        "name": _intent(entry, tool["name"]),
        "description": entry["intents"].get(tool["name"], tool)["description"],
        "parameters": {
            **schema,
            "properties": properties,
            "required": [_slot(entry, name) for name in schema["required"]],
        },
        "returns": [_slot(entry, name) for name in tool.get("returns") or ()],
    }


def _slot(entry: Mapping[str, Any] | None, name: str) -> str:
    return name if entry is None else str(entry["slots"].get(name, {}).get("name", name))


def _intent(entry: Mapping[str, Any] | None, name: str) -> str:
    return name if entry is None else str(entry["intents"].get(name, {}).get("name", name))


def _domains(services: Any) -> set[str]:
    return {service.partition("_")[0] for service in services}


def as_said(value: Any, request: str) -> Any:
    """A string as it stands in the request, if it stands there in another case."""
    if isinstance(value, str) and value not in request:
        at = request.lower().find(value.lower())
        if at >= 0 and len(value) == len(value.lower()) and value.title() != value:
            return request[at : at + len(value)]
    return value


def as_missing(row: PlanRow) -> PlanRow:
    """The row with None for required values that its request does not hold, and without the optional ones: what nobody
    said is to be asked for, not guessed."""
    said = [Mentions(row.request)]
    schemas = {tool["name"]: tool.get("parameters") or {} for tool in row.tools}
    calls = []
    for call in row.calls:
        schema = schemas[call["tool"]]
        args = {}
        for name, value in call["args"].items():
            known = any(True for _ in references(value)) or grounded(value, schema["properties"].get(name, {}), said)
            if known or name in (schema.get("required") or ()):
                args[name] = value if known else None
        calls.append({**call, "args": args})
    return replace(row, calls=tuple(calls))


def in_style_of(row: PlanRow, shown: Sequence[Mapping[str, Any]], styled: Sequence[Styled]) -> PlanRow:
    """The row with these tools, its calls under their new names."""
    calls = restyled(row.calls, shown, styled)
    for call, old in zip(calls, row.calls, strict=True):
        if old.get("after"):
            call["after"] = old["after"]
    return replace(row, tools=tuple(each.function for each in styled), calls=tuple(calls))


def values_of(rows: Sequence[PlanRow]) -> dict[str, list[str]]:
    """The string values that each parameter name had in real rows."""
    seen: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        for call in row.calls:
            for name, value in call["args"].items():
                if isinstance(value, str) and 1 < len(value) < 60:
                    seen[name].add(value)
    return {name: sorted(values) for name, values in seen.items()}
