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
    vectors: tuple[dict[str, float], ...]
    idf: dict[str, float]
    verbs: frozenset[str]

    @classmethod
    def of(cls, tools: Sequence[ToolSpec]) -> ToolIndex:
        texts = [Counter(content_words(f"{split_name(t.name)} {split_name(t.name)} {t.description}")) for t in tools]
        seen = Counter(word for text in texts for word in text)
        idf = {word: math.log(1 + len(texts) / count) for word, count in seen.items()}
        verbs = frozenset(split_name(t.name).split()[0].lower() for t in tools if split_name(t.name))
        return cls(tuple(tools), tuple(_vector(text, idf) for text in texts), idf, verbs)

    def best(self, clause: str) -> ToolSpec | None:
        """The tool nearest to a clause, or None below the threshold."""
        scores = self._scores(clause)
        verb = content_words(clause)[:1]
        for number, tool in enumerate(self.tools):
            if verb and verb[0] in content_words(split_name(tool.name)):
                scores[number] += VERB_BONUS
        top = max(range(len(scores)), key=scores.__getitem__, default=None)
        return self.tools[top] if top is not None and scores[top] >= THRESHOLD else None

    def nearest(self, text: str, count: int) -> list[ToolSpec]:
        """The `count` tools nearest to a whole request, for a prompt that cannot hold them all."""
        scores = self._scores(text)
        order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
        return [self.tools[i] for i in order[:count]]

    def _scores(self, text: str) -> list[float]:
        query = _vector(Counter(content_words(text)), self.idf)
        return [sum(weight * vector.get(word, 0.0) for word, weight in query.items()) for vector in self.vectors]


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


def fill(tool: ToolSpec, clause: str, earlier: Sequence[str]) -> dict[str, Any]:
    """Arguments that stand in the clause: listed choices, numbers and quoted text by type, a reference for "it".

    A tool with one parameter of text takes the whole clause when nothing better is there. What cannot be filled is left
    out, and the tool's own validation says so before it is called.
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
        elif kind == "string" and len(required) == 1:
            args[name] = clause
    return args


def _choice(schema: Any, clause: str) -> Any:
    options = schema.get("enum") if isinstance(schema, Mapping) else None
    said = set(words(clause))
    return next((option for option in options or () if str(option).lower() in said), None)
