"""New rows from a model behind any OpenAI-compatible endpoint, each checked before it counts."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_forge.curation.difficulties import Difficulty, estimate
from agent_forge.curation.duplicates import normalised, shingles
from agent_forge.curation.lines import Row, content_of
from agent_forge.curation.replace import Scrubber, mask_pii
from agent_forge.errors import ModelError

Judge = Callable[[Row], Difficulty]
_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)
_ASKED = {
    "easy": "one component and the standard approach; solvable in one or two steps",
    "medium": "two or three components and some judgement; several steps that build on each other",
    "hard": "several systems, edge cases and constraints that interact; many steps, with dependencies between them",
}
_NEAR = 0.8
_LABEL = "difficulty"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI-compatible chat endpoint, e.g. Endpoint("http://localhost:8000/v1", "qwen")."""

    url: str
    model: str
    api_key: str | None = None
    timeout_s: float = 120.0
    temperature: float = 0.9

    def complete(self, prompt: str, seed: int) -> str:
        """The text of one answer. Raises ModelError where there is none."""
        import httpx

        key = self.api_key or os.environ.get("OPENAI_API_KEY")
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": self.temperature,
            "seed": seed,
        }
        try:
            answer = httpx.post(
                f"{self.url.rstrip('/')}/chat/completions",
                json=body,
                headers={"Authorization": f"Bearer {key}"} if key else {},
                timeout=self.timeout_s,
            )
            answer.raise_for_status()
            return str(answer.json()["choices"][0]["message"]["content"] or "")
        except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
            raise ModelError(
                f"no usable answer ({type(error).__name__}: {error})", where=self.url, fix="is the endpoint up?"
            ) from error


@dataclass(slots=True)
class Intake:
    """Decides whether a generated row counts: it has the shape of the others, is as hard as asked, and is new.

    Personal data is replaced before the row is compared. The row's difficulty is judged, never taken from its label.
    """

    examples: Sequence[Row]
    judge: Judge = estimate
    scrubber: Scrubber = field(default_factory=Scrubber)
    refused: dict[str, int] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)
    _sets: list[frozenset[str]] = field(default_factory=list)
    _postings: dict[str, list[int]] = field(default_factory=dict)

    def remember(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._remember(_content(row))

    def take(self, answer: str, stratum: str) -> Row | None:
        """The row in `answer` if it counts as `stratum`; what it failed on is counted in `refused`."""
        row = _parsed(answer)
        reason = self._fault(row, stratum)
        if row is None or reason is not None:
            self.refused[reason or "not_json"] = self.refused.get(reason or "not_json", 0) + 1
            return None
        clean: Row = mask_pii(row, self.scrubber)
        text = _content(clean)
        if self._is_known(text):
            self.refused["duplicate"] = self.refused.get("duplicate", 0) + 1
            return None
        self._remember(text)
        clean[_LABEL] = stratum
        clean["generated"] = True
        return clean

    def _fault(self, row: Row | None, stratum: str) -> str | None:
        if row is None:
            return "not_json"
        if not self._has_shape(row):
            return "schema"
        return None if self.judge({k: v for k, v in row.items() if k != _LABEL}).stratum == stratum else "difficulty"

    def _has_shape(self, row: Row) -> bool:
        """Every key that all examples have, with a value of the same kind that is not empty."""
        for key, value in self.examples[0].items() if self.examples else ():
            if key in (_LABEL, "id", "generated") or not all(key in example for example in self.examples):
                continue
            if key not in row or type(row[key]) is not type(value) or (value and not row[key]):
                return False
        return bool(_content(row).strip())

    def _is_known(self, text: str) -> bool:
        if normalised(text) in self._known:
            return True
        mine = frozenset(shingles(text))
        near: dict[int, int] = {}
        for piece in mine:
            for other in self._postings.get(piece, ()):
                near[other] = near.get(other, 0) + 1
        return any(common >= _NEAR * (len(mine) + len(self._sets[other]) - common) for other, common in near.items())

    def _remember(self, text: str) -> None:
        mine = frozenset(shingles(text))
        self._known.add(normalised(text))
        for piece in mine:
            self._postings.setdefault(piece, []).append(len(self._sets))
        self._sets.append(mine)


def _content(row: Row) -> str:
    return content_of(row)


def _parsed(answer: str) -> Row | None:
    """The JSON object of an answer, fenced or with words around it."""
    fenced = _FENCE.search(answer)
    text = fenced[1] if fenced else answer[answer.find("{") : answer.rfind("}") + 1]
    try:
        row: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def prompt_for(stratum: str, examples: Sequence[Row]) -> str:
    """What the model is asked: one row like the examples, as hard as the stratum says, as JSON."""
    shown = "\n".join(json.dumps(row, ensure_ascii=False) for row in examples)
    return (
        f"Here are rows of a training set, one JSON object a line:\n{shown}\n\n"
        f"Write one new row with the same keys. Its difficulty must be {stratum}: {_ASKED[stratum]}. "
        "It must not repeat a row above, and it must contain no real names, addresses, numbers or keys of people. "
        "Answer with the JSON object alone."
    )
