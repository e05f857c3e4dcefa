"""Which tool fits a clause, and which of its arguments the clause already holds."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agent_forge.agents.language import content_words, words

THRESHOLD = 0.15  # least similarity of a clause to a tool; below it the clause is talk. Set on the looked-at rows.
VERB_BONUS = 0.1  # for a tool whose name holds the clause's own verb
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[_\-./:]+")
_QUOTED = re.compile(r"\"([^\"]+)\"|“([^”]+)”|(?<!\w)'([^']+)'(?!\w)")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w.]*\w)")


class ToolSpec(Protocol):
    """What planning needs of a tool (an `agent_forge.agents.Tool` is one)."""

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
    postings: dict[str, list[tuple[int, float]]]  # word -> (tool, weight)
    named: dict[str, list[int]]  # word -> the tools that have it in their name
    idf: dict[str, float]
    verbs: frozenset[str]

    @classmethod
    def of(cls, tools: Sequence[ToolSpec]) -> ToolIndex:
        texts = [Counter(content_words(f"{split_name(t.name)} {split_name(t.name)} {t.description}")) for t in tools]
        seen = Counter(word for text in texts for word in text)
        idf = {word: math.log(1 + len(texts) / count) for word, count in seen.items()}
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
        """The tool nearest to a clause, or None below the threshold."""
        scores = self._scores(clause)
        for number in self.named.get((content_words(clause) or [""])[0], ()):
            scores[number] = scores.get(number, 0.0) + VERB_BONUS
        top = min(scores, key=lambda number: (-scores[number], number), default=None)
        return self.tools[top] if top is not None and scores[top] >= THRESHOLD else None

    def nearest(self, text: str, count: int) -> list[ToolSpec]:
        """The `count` tools nearest to a whole request, for a prompt that cannot hold them all."""
        scores = self._scores(text)
        order = sorted(range(len(self.tools)), key=lambda number: (-scores.get(number, 0.0), number))
        return [self.tools[number] for number in order[:count]]

    def _scores(self, text: str) -> dict[int, float]:
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


def fill(tool: ToolSpec, clause: str, earlier: Sequence[str], *, whole: bool = True) -> dict[str, Any]:
    """Arguments that stand in the clause: listed choices, numbers and quoted text by type, a reference for "it".

    A tool with one parameter of text takes the `whole` clause when nothing better is there. What cannot be filled is
    left out, and the tool's own validation says so before it is called.
    """
    properties: Mapping[str, Any] = tool.schema.get("properties") or {}
    required = [name for name in tool.schema.get("required") or () if name in properties]
    quoted = [next(filter(None, groups)) for groups in _QUOTED.findall(clause)]
    numbers = [float(n) if "." in n else int(n) for n in _NUMBER.findall(_QUOTED.sub("", clause))]
    references = list(earlier)
    args: dict[str, Any] = {}
    for name in required:
        kind = properties[name].get("type") if isinstance(properties[name], Mapping) else None
        choice = _choice(properties[name], clause)
        if choice is not None:
            args[name] = choice
        elif kind in {"integer", "number"} and numbers:
            args[name] = numbers.pop(0)
        elif kind == "string" and quoted:
            args[name] = quoted.pop(0)
        elif references:
            args[name] = references.pop(0)
        elif whole and kind == "string" and len(required) == 1:
            args[name] = clause
    return args


def _choice(schema: Any, clause: str) -> Any:
    options = schema.get("enum") if isinstance(schema, Mapping) else None
    said = set(words(clause))
    return next((option for option in options or () if str(option).lower() in said), None)
