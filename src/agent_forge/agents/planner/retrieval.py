"""Which of many tools a planner is shown: those nearest to a request, found by their words (BM25).

A request for several things is near to none of the tools as a whole, so that its clauses are looked up one by one and
a tool counts by the clause that it fits best. Figures: docs/results/forged-planner.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_forge.agents.language import clauses
from agent_forge.agents.planner.script import result_fields
from agent_forge.agents.planner.tools import ToolSpec, split_name
from agent_forge.tasks.words import content_words

SHOWN_TOOLS = 8
# Tuned on rows of Seal-Tools and UltraTool that are no test.
NAME, DESCRIPTION = 3, 2  # how often a word there counts; elsewhere once
SATURATION = 1.2  # how soon a word that is repeated counts no more (k1)
WHOLE = 0.5  # what the whole request counts beside the best clause
LENGTH = 0.75  # how much a long description is held against a tool (b)


@dataclass(frozen=True)
class Catalogue:
    """Tools by the words of their names, descriptions, parameters, choices and results."""

    tools: tuple[ToolSpec, ...]
    postings: Mapping[str, Sequence[tuple[int, float]]]  # word -> (place of the tool, weight)

    @classmethod
    def of(cls, tools: Sequence[ToolSpec]) -> Catalogue:
        texts = [Counter(_words(tool)) for tool in tools]
        frequency = Counter(word for text in texts for word in text)
        mean = sum(text.total() for text in texts) / max(1, len(texts))
        postings: dict[str, list[tuple[int, float]]] = {}
        for place, text in enumerate(texts):
            full = SATURATION * (1 - LENGTH + LENGTH * text.total() / (mean or 1))
            for word, count in text.items():
                rarity = math.log(1 + (len(texts) - frequency[word] + 0.5) / (frequency[word] + 0.5))
                postings.setdefault(word, []).append((place, rarity * count / (count + full)))
        return cls(tuple(tools), postings)

    def nearest(self, request: str, count: int) -> list[ToolSpec]:
        """The `count` tools nearest to a request, the best first."""
        parts = [self._scores(text) for text in dict.fromkeys(clause.text for clause in clauses(request))]
        whole = self._scores(request)
        best: dict[int, float] = {}
        for scores in parts:
            # A clause that fits no tool well ("I need your help") counts less, though not in proportion.
            scale = math.sqrt(max(scores.values(), default=0.0)) or 1.0
            for place, score in scores.items():
                best[place] = max(best.get(place, 0.0), score / scale)
        most, top = max(best.values(), default=0.0) or 1.0, max(whole.values(), default=0.0) or 1.0
        near = {place: best.get(place, 0.0) / most + WHOLE * score / top for place, score in whole.items()}
        order = sorted(range(len(self.tools)), key=lambda place: (-near.get(place, 0.0), place))
        return [self.tools[place] for place in order[:count]]

    def _scores(self, text: str) -> dict[int, float]:
        """BM25 of the tools that share a word with a text."""
        scores: dict[int, float] = {}
        for word, times in Counter(content_words(text)).items():
            for place, weight in self.postings.get(word, ()):
                scores[place] = scores.get(place, 0.0) + weight * (1 + math.log(times))
        return scores


_latest = [Catalogue((), {})]  # kept while the tools are the same: an index reads every description


def shown_tools(request: str, tools: Sequence[ToolSpec]) -> list[ToolSpec]:
    """The tools that a planner reads: all of them where they are few, else the nearest; in their own order."""
    tools = tuple(tools)
    if len(tools) <= SHOWN_TOOLS:
        return list(tools)
    catalogue = _latest[0]
    if catalogue.tools != tools:
        catalogue = _latest[0] = Catalogue.of(tools)
    names = {tool.name for tool in catalogue.nearest(request, SHOWN_TOOLS)}
    return [tool for tool in tools if tool.name in names]


def _words(tool: ToolSpec) -> Iterator[str]:
    yield from content_words(split_name(tool.name)) * NAME
    yield from content_words(tool.description) * DESCRIPTION
    properties: Mapping[str, Any] = tool.schema.get("properties") or {}
    for name, schema in properties.items():
        yield from content_words(split_name(name))
        if isinstance(schema, Mapping):
            yield from content_words(f"{schema.get('description') or ''} {schema.get('enum') or ''}")
    for field in result_fields({"returns": getattr(tool, "returns", None)}):
        yield from content_words(split_name(field))
