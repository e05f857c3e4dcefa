"""Domains from text, for models that solve no task yet: which of these pieces comes next?

The model writes one of the pieces, held to them by a grammar. Passages do not overlap and each is asked about in one
way only, so that no held-out passage is ever trained on. Other passages of its document may be.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from agent_forge.errors import DataError
from agent_forge.forge.corpus import Source, read_corpus
from agent_forge.inference.grammar import Grammar
from agent_forge.tasks import Draft, Verdict, task_family

BEGINNING, PIECE = 16, 5  # words
MOST_PIECES = 8
FEWEST = 200  # passages


def text_families(sources: Mapping[str, Source], held_out: float) -> list[str]:
    """Registers a task family for each source, of the documents that the phases train on; returns their names.

    The level is the number of pieces: two at 0, eight at 1. Raises DataError for a source with too little text.
    """
    if not sources:
        return []
    names = []
    for source, texts in read_corpus(sources, held_out).train.items():
        passages = []
        for words in map(str.split, texts):
            starts = range(0, len(words) - BEGINNING - PIECE + 1, BEGINNING + PIECE)
            passages += [words[start : start + BEGINNING + PIECE] for start in starts]
        if len(passages) < FEWEST:
            raise DataError(f"{len(passages)} passages are too few for a domain", where=sources[source].path)
        _register(f"text-{source}", passages)
        names.append(f"text-{source}")
    return names


def _register(name: str, passages: Sequence[Sequence[str]]) -> None:
    def check(answer: Any, expected: Mapping[str, Any]) -> Verdict:
        return Verdict.of(answer.strip() == expected["right"], "another passage goes on like that")

    @task_family(name, check=check, solve=lambda expected: expected["right"])
    def draw(rng: random.Random, level: float) -> Draft:
        words = rng.choice(passages)
        pieces = {" ".join(words[BEGINNING : BEGINNING + PIECE]): None}
        right = next(iter(pieces))
        while len(pieces) < 2 + round((MOST_PIECES - 2) * level):
            pieces[" ".join(rng.choice(passages)[BEGINNING : BEGINNING + PIECE])] = None
        return Draft(" ".join(words[:BEGINNING]), {"right": right, "choices": sorted(pieces)})


def choice_grammar(choices: Sequence[str]) -> Grammar:
    """One of these texts, after a blank."""
    return Grammar("start: " + " | ".join(json.dumps(f" {choice}", ensure_ascii=False) for choice in choices) + "\n")
