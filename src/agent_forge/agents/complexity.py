"""How many steps does a request need, and is a graph worth planning?

The rule: one or two steps are done directly, three or more are planned as a graph (GAP). The estimate is a sum over
features of the wording, and every term is reported, so that a decision can be read and disputed.

>>> decision = complexity("Who is older, Ada Lovelace or Charles Babbage?")
>>> decision.graph, decision.steps
(True, 3)
>>> complexity("Which brand do they understand?").graph
False
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from agent_forge.agents.language import clauses, sentences, squeeze
from agent_forge.tasks.words import word_set, words

GRAPH_FROM = 3

_QUESTION_HEAD = word_set(
    """who whom whose what which where when why how is are was were do does did can could has have had will would
    should in on at from for of during under"""
)
_AUXILIARY = word_set("is are was were do does did can could has have had will would should")
_COMPARATIVE = re.compile(
    r"^(?:\w{2,}(?:er|est)|more|most|less|least|fewer|fewest|first|last|later|latter|same|both|common|than|recently|between)$"
)
_NOT_COMPARATIVE = word_set(
    """after over under never ever other another number member character chapter player singer writer composer
    producer founder leader teacher master order water summer winter september october november december father
    mother brother sister daughter grandfather grandmother officer power center theater paper letter river
    quarter manager driver owner user server answer computer either neither whether together however further per
    her super inter enter offer consider remember discover cover deliver former newspaper soccer peter alexander
    west east northwest southwest best guest forest interest request harvest test rest manifest honest"""
)
_RELATIVE = re.compile(r"\b(?:who|that|which|whose|whom|where|in which|of which|for which|when)\b", re.IGNORECASE)
_AGGREGATE = re.compile(
    r"^(?:how many|how much|what (?:number|percent\w*|is the (?:total|average|sum)))\b", re.IGNORECASE
)
_LISTED = re.compile(r"^(?:\d+[.)]|[-*•])\s(\S.*)", re.MULTILINE)  # in squeezed text
_CHOICE = re.compile(r"\bor\b", re.IGNORECASE)
_NESTED = re.compile(
    r"(?:\bof (?:the|a|an)?\s*(?:\w+\s){1,3}?(?:of|in|by|for|from)\b)|"
    r"(?:['’]s\s\w+(?:\s\w+)?\s?(?:['’]s|\bborn|\bdie))",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Complexity:
    """The decision: `graph` or not, the estimated number of `steps`, its features, and the reason in words."""

    graph: bool
    steps: int
    features: Mapping[str, int]
    reason: str


def complexity(request: str) -> Complexity:
    """Estimates the steps of a request from its words and structure."""
    request = squeeze(request)
    if is_question(request):
        features = _question_features(request)
    else:
        items = listed_items(request)
        features = {"listed steps": len(items)} if items else {"clauses": len(clauses(request))}
    steps = max(1, sum(features.values()))
    graph = steps >= GRAPH_FROM
    terms = ", ".join(f"{name} {count}" for name, count in features.items() if count)
    verdict = f"{GRAPH_FROM} or more steps: plan a graph" if graph else f"fewer than {GRAPH_FROM} steps: no graph"
    return Complexity(
        graph, steps, features, f"{steps} step{'s' if steps > 1 else ''} ({terms or 'one plain step'}); {verdict}"
    )


def is_question(request: str) -> bool:
    """Whether a request is a single question: it ends or begins as one, and no instruction follows it."""
    first = words(request)[:1]
    begins = bool(first) and first[0] in _QUESTION_HEAD
    if request.rstrip().endswith("?") and begins:
        # A "!" inside a title, as in "Danger!! Death Ray", does not end a sentence.
        return len(sentences(request.replace("!", "").replace("...", "…"))) <= 1
    return len(sentences(request)) == 1 and (request.rstrip().endswith("?") or begins or first == ["if"])


def listed_items(request: str) -> list[str]:
    """The items of a numbered or bulleted request (two or more), else nothing."""
    items = [item.strip() for item in _LISTED.findall(squeeze(request))]
    return items if len(items) > 1 else []


def _question_features(question: str) -> dict[str, int]:
    """A question: the look-up itself, and one more per thing compared, hop and aggregation."""
    tokens = words(question)
    inner = question.partition(" ")[2]
    compared = any(_COMPARATIVE.match(token) and token not in _NOT_COMPARATIVE for token in tokens)
    choice = bool(_CHOICE.search(question)) and (compared or tokens[0] in _AUXILIARY | {"which", "who"})
    pair = tokens[:1] != ["which"] and bool({"both", "same", "common"} & set(tokens)) and "and" in tokens
    difference = "than" in tokens and bool({"how", "more", "fewer", "less"} & set(tokens))
    return {
        "look-up": 1,
        "second thing compared": int(choice or pair or difference),
        "comparison": int(choice or pair or difference),
        # Nested descriptions: each is a look-up whose result the next one needs.
        "hops": min(len(_RELATIVE.findall(inner)) + len(_NESTED.findall(inner)), 3),
        "aggregation": int(bool(_AGGREGATE.match(question))),
    }
