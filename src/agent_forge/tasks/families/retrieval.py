"""Retrieval: a question over a few passages, answered with the passages that support the answer."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from agent_forge.tasks.calls import loose
from agent_forge.tasks.family import Draft, Verdict, task_family

_FIRST = ("Ana", "Boris", "Clara", "Dmitri", "Elsa", "Felix", "Greta", "Hamid")
_LAST = ("Arden", "Brook", "Calder", "Dunmore", "Ellery", "Farrow", "Garnet", "Holt")
_FIRMS = ("Altiva", "Borealis", "Cedra", "Dornex", "Elvion", "Fintara", "Gravex", "Halcyon")
_TOWNS = ("Aldervale", "Birchmouth", "Corran", "Dunwick", "Eastmere", "Fallowby", "Grimsel", "Harrowden")
_RIVERS = ("Asker", "Brune", "Calda", "Derwin", "Esk", "Fenna")
# relation: what has it, what it is, how a passage says it, and how a question does
_RELATIONS = {
    "employer": ("person", "firm", "{0} works for {1}.", "the company that {0} works for"),
    "birthplace": ("person", "town", "{0} was born in {1}.", "the town in which {0} was born"),
    "seat": ("firm", "town", "{0} has its office in {1}.", "the town in which {0} has its office"),
    "founder": ("firm", "person", "{0} was founded by {1}.", "the person who founded {0}"),
    "river": ("town", "river", "{0} lies on the river {1}.", "the river on which {0} lies"),
    "mayor": ("town", "person", "The mayor of {0} is {1}.", "the mayor of {0}"),
}
SCHEMA = {
    "type": "object",
    "properties": {
        "answer": {"type": "string"},
        "support": {"type": "array", "items": {"type": "string"}, "maxItems": 12},
    },
    "required": ["answer", "support"],
    "additionalProperties": False,
}


def check(answer: Mapping[str, Any], expected: Mapping[str, Any]) -> Verdict:
    """The answer, and exactly the titles of the passages from which it follows."""
    right, titles = follow(expected)
    given = sorted({loose(title) for title in answer["support"]})
    faults: dict[str, str | None] = {
        "answer": None if loose(answer["answer"]) == loose(right) else f"{answer['answer']!r} instead of {right!r}",
        "support": None if given == sorted(map(loose, titles)) else f"expected {titles}",
    }
    return Verdict.parts(faults)


def follow(expected: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Goes from the start along the relations: where that ends, and the passages on the way."""
    here, titles = expected["start"], []
    for relation in expected["path"]:
        titles.append(here)
        here = expected["facts"][here][relation]
    return here, titles


def solve(expected: Mapping[str, Any]) -> dict[str, Any]:
    """What the facts say."""
    right, titles = follow(expected)
    return {"answer": right, "support": titles}


@task_family("retrieval", check=check, solve=solve, schema=SCHEMA)
def retrieval(rng: random.Random, level: float) -> Draft:
    """One of two passages at first; later up to three of nine, one leading to the next."""
    each = 1 + round(2 * level)
    people = [f"{one} {two}" for one, two in zip(rng.sample(_FIRST, each), rng.sample(_LAST, each), strict=True)]
    things = {"person": people, "firm": rng.sample(_FIRMS, each), "town": rng.sample(_TOWNS, each), "river": _RIVERS}
    facts: dict[str, dict[str, str]] = {}
    if each == 1:
        facts = {people[0]: {"birthplace": rng.choice(_TOWNS)}, things["firm"][0]: {"seat": rng.choice(_TOWNS)}}
    else:
        for kind in ("person", "firm", "town"):
            for name in things[kind]:
                facts[name] = {
                    relation: rng.choice([thing for thing in things[to] if thing != name])
                    for relation, (owner, to, *_) in _RELATIONS.items()
                    if owner == kind
                }
    hops = 1 + round(2 * level)
    while True:
        here = start = rng.choice(list(facts))
        path: list[str] = []
        seen = [start]
        while len(path) < hops and facts.get(here):
            relation = rng.choice(list(facts[here]))
            path.append(relation)
            here = facts[here][relation]
            if here in seen:
                break
            seen.append(here)
        if len(path) == hops and len(seen) == hops + 1:
            break
    expected = {"facts": facts, "start": start, "path": path}
    return Draft(_prompt(rng, expected), expected)


def _prompt(rng: random.Random, expected: Mapping[str, Any]) -> str:
    passages = []
    for title, relations in expected["facts"].items():
        sentences = [_RELATIONS[relation][2].format(title, value) for relation, value in relations.items()]
        rng.shuffle(sentences)
        passages.append(f"[{title}] {' '.join(sentences)}")
    rng.shuffle(passages)
    question = expected["start"]
    for relation in expected["path"]:
        question = _RELATIONS[relation][3].format(question)
    text = "\n".join(passages)
    return (
        f"{text}\n\nQuestion: What is the name of {question}?\nAnswer from the passages, and name the titles of those "
        'from which the answer follows, as JSON: {"answer": "...", "support": ["..."]}'
    )
