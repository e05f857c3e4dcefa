"""How good is a planner? Held-out rows, and beside it what costs nothing: rules, the nearest known request, and others.

| figure | of a planner over the rows |
|---|---|
| right | share of plans of which every call, argument and reference is right |
| grounded | share of written values that the request, the schema or an earlier result gave |
| node, edge | F1 of the calls' tools, and of the edges between calls |
| regret | planned critical path over the right one, every call counting 1 |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agent_forge.agents.grounding import Mentions, grounded
from agent_forge.agents.planner import PlanningFailed, RulePlanner
from agent_forge.agents.planner.batch import SchemaTool, calls_of
from agent_forge.agents.planner.retrieval import Catalogue
from agent_forge.agents.planner.tools import split_name
from agent_forge.learning.rows import PlanRow, references
from agent_forge.tasks.calls import score_calls
from agent_forge.tasks.plan_score import longest_path
from agent_forge.tasks.words import content_words

Calls = Sequence[Mapping[str, Any]]
Write = Callable[[PlanRow], Calls]


@dataclass(frozen=True)
class PlannerFigures:
    """The means over `n` rows; None: nothing was written that could be measured."""

    right: float
    grounded: float | None
    node: float
    edge: float
    regret: float | None
    n: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def judge_planner(rows: Sequence[PlanRow], written: Sequence[Calls]) -> PlannerFigures:
    """The figures of the calls that a planner wrote for each row."""
    scores = [score_calls(row.calls, calls) for row, calls in zip(rows, written, strict=True)]
    given = [each for row, calls in zip(rows, written, strict=True) for each in groundings(row, calls)]
    regrets = [
        critical_path(calls) / critical_path(row.calls)
        for row, calls in zip(rows, written, strict=True)
        if row.calls and calls
    ]
    return PlannerFigures(
        _mean([float(score.right) for score in scores]) or 0.0,
        _mean([float(each) for each in given]),
        _mean([score.tools for score in scores]) or 0.0,
        _mean([score.edges for score in scores]) or 0.0,
        _mean(regrets),
        len(rows),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def groundings(row: PlanRow, calls: Calls) -> Iterable[bool]:
    """Whether each written value was given; one that is left open, or has earlier results in it, is none."""
    said = [Mentions(row.request)]
    schemas = {tool["name"]: (tool.get("parameters") or {}).get("properties") or {} for tool in row.tools}
    for call in calls:
        for name, value in call["args"].items():
            schema = schemas.get(call["tool"], {}).get(name)
            if value is not None and not any(references(value)):
                yield grounded(value, schema if isinstance(schema, Mapping) else {}, said)


def critical_path(calls: Calls) -> float:
    """The number of calls that have to follow each other."""
    edges = {
        (earlier - 1, number)
        for number, call in enumerate(calls)
        for earlier in (*(call.get("after") or ()), *(each["ref"] for each in references(call["args"])))
        if 1 <= earlier <= number
    }
    return longest_path(frozenset(edges), [1.0] * len(calls))


def controls(known: Sequence[PlanRow]) -> dict[str, Write]:
    """Planners that have learnt nothing, or only remember the `known` rows."""
    memory = Catalogue.of([SchemaTool(str(place), row.request) for place, row in enumerate(known)])

    def nearest(row: PlanRow) -> Calls:
        match = memory.nearest(row.request, 1)
        return known[int(match[0].name)].calls if match else []

    return {"rules": by_rules, "nearest request": nearest, "request copied": copied, "chain": chained}


def by_rules(row: PlanRow) -> Calls:
    """The rules' plan; none where they find no way."""
    try:
        return calls_of(RulePlanner().plan_now(row.request, tools=[SchemaTool.of(each) for each in row.tools]))
    except PlanningFailed:
        return []


def copied(row: PlanRow) -> Calls:
    """The tool nearest to the request, with the request in place of every required text."""
    tools = Catalogue.of([SchemaTool.of(each) for each in row.tools])
    return [_with_request(tool, row.request) for tool in tools.nearest(row.request, 1)]


def chained(row: PlanRow) -> Calls:
    """Every tool that is named by a word of the request, one after the other as they are listed."""
    said = set(content_words(row.request))
    tools = [SchemaTool.of(each) for each in row.tools]
    calls = [_with_request(tool, row.request) for tool in tools if said & {*content_words(split_name(tool.name))}]
    return [{**call, "after": [place]} if place else call for place, call in enumerate(calls)]


def _with_request(tool: Any, request: str) -> dict[str, Any]:
    kinds = tool.schema.get("properties") or {}
    texts = [name for name in tool.schema.get("required") or () if (kinds.get(name) or {}).get("type") == "string"]
    return {"tool": tool.name, "args": dict.fromkeys(texts, request)}


def by_model(model: Any) -> Callable[[PlanRow], tuple[Calls, float]]:
    """A planner that writes with a `PlanModel`: its calls, and how sure it is of them."""

    def write(row: PlanRow) -> tuple[Calls, float]:
        writer = model.write(row.request, row.tools)
        sure = min(writer.confidences) if writer.calls else writer.none_probability
        return writer.calls, 1.0 if sure is None else float(sure)

    return write


def calibration(sure: Sequence[float], right: Sequence[float], bins: int = 5) -> list[list[float]]:
    """How often plans of each confidence were right, rising: equal shares of the rows, pooled where a surer share was
    right less often (isotonic regression); one row in each bin is added half right, for rows are few."""
    pairs = sorted(zip(sure, right, strict=True))
    size = max(1, -(-len(pairs) // bins))
    parts = [pairs[at : at + size] for at in range(0, len(pairs), size)]
    pools: list[list[tuple[float, float]]] = []
    for part in parts:
        pools.append(part)
        while len(pools) > 1 and _share(pools[-2]) > _share(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    return [[0.0, 0.0], *([sum(c for c, _ in pool) / len(pool), _share(pool)] for pool in pools)]


def _share(pool: Sequence[tuple[float, float]]) -> float:
    return (sum(hit for _, hit in pool) + 0.5) / (len(pool) + 1)
