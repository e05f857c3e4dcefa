"""Recorded attempts at exercises, to learn from: right answers for SFT, right against wrong ones for DPO.

They come from a trace store, or from files of trajectory records (`traces export --format turns`). What must not be
learnt is dropped and counted: held-out exercises and what repeats them, answers of the wrong form, duplicates.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_forge.curation.duplicates import exact_groups
from agent_forge.curation.lines import read_rows
from agent_forge.errors import AgentForgeError, DataError
from agent_forge.learning.practice import Practice
from agent_forge.rewards.sources import exercise_from
from agent_forge.settings import trace_store
from agent_forge.tasks import Exercise
from agent_forge.tasks.answers import read_answer
from agent_forge.tasks.family import is_held_out
from agent_forge.traces.turns import EXERCISE, turns


@dataclass(frozen=True)
class Attempt:
    """An answer that somebody gave to an exercise, and whether nothing was wrong with it."""

    exercise: Exercise
    text: str
    correct: bool


@dataclass
class Attempts:
    """Attempts to learn from; `dropped` says how many others there were, and why they are none."""

    kept: list[Attempt] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)

    @property
    def right(self) -> list[Attempt]:
        return [attempt for attempt in self.kept if attempt.correct]

    def pairs(self) -> list[tuple[Attempt, Attempt]]:
        """A right and a wrong answer to the same exercise, each used once."""
        by_prompt: dict[str, tuple[list[Attempt], list[Attempt]]] = {}
        for attempt in self.kept:
            by_prompt.setdefault(attempt.exercise.prompt, ([], []))[not attempt.correct].append(attempt)
        return [pair for right, wrong in by_prompt.values() for pair in zip(right, wrong, strict=False)]

    def digest(self) -> str:
        """The digest of what is learnt."""
        lines = [json.dumps([each.exercise.prompt, each.text, each.correct]) for each in self.kept]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def counts(self) -> dict[str, int]:
        """How many attempts there are, right and wrong, and how many were dropped for which reason."""
        right = len(self.right)
        dropped = {f"dropped, {reason}": count for reason, count in sorted(self.dropped.items())}
        return {"right": right, "wrong": len(self.kept) - right, **dropped}


def records_of(source: str) -> Iterator[Mapping[str, Any]]:
    """The trajectory records of a folder of .jsonl files (also .gz and .zst), of one such file, or of the trace store
    in a home folder or behind a URL. Raises DataError if there are none."""
    place = Path(source)
    if "://" not in source and (place.is_file() or any(place.glob("*.jsonl*"))):
        for file in [place] if place.is_file() else sorted(place.glob("*.jsonl*")):
            yield from read_rows(file)
        return
    if "://" not in source and not place.is_dir():
        raise DataError("there are no traces", where=source, fix="Collect some: agent-forge traces collect")
    from agent_forge.traces import Store

    with Store.open(trace_store(source)) as store:
        yield from turns(store.each_trace())


def attempts_of(
    records: Iterable[Mapping[str, Any]], practice: Practice, held_out: Sequence[Exercise] = ()
) -> Attempts:
    """The attempts of the practice's agent, without those that must not be learnt."""
    attempts = Attempts()
    judged = {exercise.prompt for exercise in held_out}
    for record in records:
        reason, attempt = _attempt(record, practice, judged)
        if attempt is not None:
            attempts.kept.append(attempt)
        elif reason is not None:
            attempts.dropped[reason] += 1
    texts = [f"{each.exercise.prompt}\n{each.text}" for each in attempts.kept]
    again = {place for group in exact_groups(texts) for place in group[1:]}
    attempts.dropped["duplicate"] += len(again)
    attempts.kept = [each for place, each in enumerate(attempts.kept) if place not in again]
    attempts.dropped = +attempts.dropped  # without zeros
    return attempts


def _attempt(record: Mapping[str, Any], practice: Practice, judged: set[str]) -> tuple[str | None, Attempt | None]:
    """An attempt, or why it is none; neither for another agent's."""
    if record.get("agent") != practice.profile.name:
        return None, None
    if EXERCISE not in record:
        return "names no exercise", None
    try:
        exercise = exercise_from(record[EXERCISE])
    except (AgentForgeError, KeyError, TypeError) as error:
        return f"its exercise cannot be read ({type(error).__name__})", None
    if exercise.held_out or is_held_out(exercise.prompt) or exercise.prompt in judged:
        return "held out", None
    if exercise.family != practice.tasks.name:
        return "of another task family", None
    result = record.get("final_result")
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    correct = bool(record.get("correct"))
    if not text.strip() or (correct and read_answer(text, practice.tasks.schema)[1] is not None):
        return "answer of the wrong form", None
    return None, Attempt(exercise, text, correct)
