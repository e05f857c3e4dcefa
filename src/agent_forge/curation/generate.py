"""New rows from a model behind any OpenAI-compatible endpoint, each checked before it is accepted."""

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
from agent_forge.errors import ModelError
from agent_forge.pii.replace import Scrubber, mask_pii
from agent_forge.urls import without_credentials

Judge = Callable[[Row], Difficulty]
_FENCE = re.compile(r"```(?:json)?[^\S\n]*\n(.*?)```", re.DOTALL)
_DESCRIPTIONS = {
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
        """The text of one answer. Raises ModelError."""
        import httpx

        key = self.api_key or os.environ.get("OPENAI_API_KEY")
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": self.temperature,
            "seed": seed,
        }
        try:
            response = httpx.post(
                f"{self.url.rstrip('/')}/chat/completions",
                json=body,
                headers={"Authorization": f"Bearer {key}"} if key else {},
                timeout=self.timeout_s,
            )
            response.raise_for_status()
            return str(response.json()["choices"][0]["message"]["content"] or "")
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, IndexError, TypeError) as error:
            raise ModelError(
                f"no usable answer ({type(error).__name__}: {without_credentials(str(error))})",
                where=without_credentials(self.url),
                fix="Is the endpoint up?",
            ) from error


@dataclass(slots=True)
class Intake:
    """Decides whether a generated row is accepted: it has the shape of the others, the right difficulty, and is new.

    Personal data is replaced before the row is compared. Its difficulty is judged, never taken from its label.
    """

    examples: Sequence[Row]
    judge: Judge = estimate
    scrubber: Scrubber = field(default_factory=Scrubber)
    refused: dict[str, int] = field(default_factory=dict)
    _texts: set[str] = field(default_factory=set)
    _sets: list[frozenset[str]] = field(default_factory=list)
    _postings: dict[str, list[int]] = field(default_factory=dict)

    def remember(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._remember(content_of(row))

    def take(self, answer: str, stratum: str) -> Row | None:
        """The row in `answer`, if it is accepted as `stratum`; otherwise the reason is counted in `refused`."""
        row = _parse(answer)
        if row is None:
            reason = "not_json"
        elif not self._has_shape(row):
            reason = "schema"
        elif self.judge({key: value for key, value in row.items() if key != _LABEL}).stratum != stratum:
            reason = "difficulty"
        elif self._is_duplicate(text := content_of(clean := mask_pii(row, self.scrubber))):
            reason = "duplicate"
        else:
            self._remember(text)
            return {**clean, _LABEL: stratum, "generated": True}
        self.refused[reason] = self.refused.get(reason, 0) + 1
        return None

    def _has_shape(self, row: Row) -> bool:
        """Every key that all examples have, with a value of the same kind that is not empty."""
        for key, value in self.examples[0].items() if self.examples else ():
            if key in (_LABEL, "id", "generated") or not all(key in example for example in self.examples):
                continue
            if key not in row or type(row[key]) is not type(value) or (value and not row[key]):
                return False
        return bool(content_of(row).strip())

    def _is_duplicate(self, text: str) -> bool:
        if normalised(text) in self._texts:
            return True
        mine = frozenset(shingles(text))
        common: dict[int, int] = {}  # shingles in common with each other text
        for piece in mine:
            for other in self._postings.get(piece, ()):
                common[other] = common.get(other, 0) + 1
        return any(n >= _NEAR * (len(mine) + len(self._sets[other]) - n) for other, n in common.items())  # Jaccard

    def _remember(self, text: str) -> None:
        mine = frozenset(shingles(text))
        self._texts.add(normalised(text))
        for piece in mine:
            self._postings.setdefault(piece, []).append(len(self._sets))
        self._sets.append(mine)


def _parse(answer: str) -> Row | None:
    """The JSON object in an answer, fenced or surrounded by words."""
    fenced = _FENCE.search(answer)
    text = fenced[1] if fenced else answer[answer.find("{") : answer.rfind("}") + 1]
    try:
        row: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def prompt_for(stratum: str, examples: Sequence[Row]) -> str:
    """The prompt for one row like the examples, of this difficulty, as JSON."""
    shown = "\n".join(json.dumps(row, ensure_ascii=False) for row in examples)
    return (
        f"Here are rows of a training set, one JSON object per line:\n{shown}\n\n"
        f"Write one new row with the same keys. Its difficulty must be {stratum}: {_DESCRIPTIONS[stratum]}. "
        "It must not repeat a row above, and it must contain no real names, addresses, numbers or keys of people. "
        "Answer with the JSON object alone."
    )
