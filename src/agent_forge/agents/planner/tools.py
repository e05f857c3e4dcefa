"""Tools for planning: which one fits a clause, and how a prompt describes them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agent_forge.tasks.words import content_words

THRESHOLD = 0.15  # minimum similarity of a clause and its tool, tuned on rows that are not held out
VERB_BONUS = 0.1  # for a tool whose name contains the first word of the clause
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[_\-./:]+")


class ToolSpec(Protocol):
    """What a planner needs to know about a tool (an `agent_forge.agents.Tool` is one)."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def schema(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class ToolIndex:
    """TF-IDF over the names and descriptions of the tools."""

    tools: tuple[ToolSpec, ...]
    postings: dict[str, list[tuple[int, float]]]  # word -> (index of the tool, weight)
    named: dict[str, list[int]]  # word -> the tools with this word in their name
    idf: dict[str, float]
    verbs: frozenset[str]

    @classmethod
    def of(cls, tools: Sequence[ToolSpec]) -> ToolIndex:
        texts = [Counter(content_words(f"{split_name(t.name)} {split_name(t.name)} {t.description}")) for t in tools]
        frequency = Counter(word for text in texts for word in text)
        idf = {word: math.log(1 + len(texts) / count) for word, count in frequency.items()}
        postings: dict[str, list[tuple[int, float]]] = {}
        named: dict[str, list[int]] = {}
        for number, (tool, text) in enumerate(zip(tools, texts, strict=True)):
            for word, weight in _vector(text, idf).items():
                postings.setdefault(word, []).append((number, weight))
            for word in set(content_words(split_name(tool.name))):
                named.setdefault(word, []).append(number)
        verbs = frozenset(split_name(t.name).split()[0].lower() for t in tools if split_name(t.name))
        return cls(tuple(tools), postings, named, idf, verbs)

    def best(self, clause: str) -> ToolSpec | None:
        """The tool most similar to a clause, or None below the threshold."""
        scores = self.scores(clause)
        for number in self.named.get((content_words(clause) or [""])[0], ()):
            scores[number] = scores.get(number, 0.0) + VERB_BONUS
        top = min(scores, key=lambda number: (-scores[number], number), default=None)
        return self.tools[top] if top is not None and scores[top] >= THRESHOLD else None

    def scores(self, text: str) -> dict[int, float]:
        """How similar each tool is to a text, by its place; those that share no word are left out."""
        scores: dict[int, float] = {}
        for word, weight in _vector(Counter(content_words(text)), self.idf).items():
            for number, other in self.postings.get(word, ()):
                scores[number] = scores.get(number, 0.0) + weight * other
        return scores


def split_name(name: str) -> str:
    """
    >>> split_name("getWeatherReport"), split_name("send_sms")
    ('get Weather Report', 'send sms')
    """
    return _CAMEL.sub(" ", name).strip()


def _vector(counts: Counter[str], idf: dict[str, float]) -> dict[str, float]:
    default = max(idf.values(), default=1.0)
    weights = {word: (1 + math.log(count)) * idf.get(word, default) for word, count in counts.items()}
    norm = math.sqrt(sum(weight * weight for weight in weights.values())) or 1.0
    return {word: weight / norm for word, weight in weights.items()}


def describe(tools: Sequence[ToolSpec]) -> str:
    """The tools as lines of a prompt, `name(parameter, ...): description`; empty if there are none."""
    if not tools:
        return ""
    lines = [f"- {tool.name}({', '.join(tool.schema.get('properties') or ())}): {tool.description}" for tool in tools]
    return "\n".join(["Tools:", *lines])
