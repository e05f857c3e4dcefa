"""Aggregation questions: differences, counts and sums of values that are looked up first."""

# ruff: noqa: E501  (a pattern reads best on one line)

from __future__ import annotations

import re

from agent_forge.agents.planner.rules.draft import PlanDraft

_DIFFERENCE = re.compile(
    r"^(?:by\s+)?how\s+(?:many|much)\s+(?P<how>more|fewer|less|larger|higher|longer|older)\s+(?P<a>.+?)\s+(?:than|compared (?:to|with))\s+(?P<b>.+?)\s*[?.]*$",
    re.I,
)
_SPAN = re.compile(
    r"^how\s+(?P<u>many\s+(?P<unit>years|days|months|weeks|decades|hours|minutes)|long)\s+(?:(?P<w>after|before|passed between|between|elapsed between|were there between|was it between|from|separate[sd]?)\s+)"
    r"(?P<rest>.+?)\s*[?.]*$",
    re.I,
)
_BETWEEN = re.compile(r"^(?P<a>.+?)\s+(?:and|to|until|till)\s+(?P<b>.+)$", re.I)
_CLAUSE = re.compile(r"^(?P<a>.+?)\s+(?:did|was|were|is|does|had)\s+(?P<b>.+)$", re.I)
_COUNT = re.compile(
    r"^(?:how\s+many|what\s+(?:is\s+the\s+)?number\s+of|what\s+(?:is|was)\s+the\s+(?P<op>total|average|sum|combined)\s+(?:number|amount)?\s*(?:of\s+)?)\s*"
    r"(?P<what>.+?)\s*[?.]*$",
    re.I,
)
_NOT = re.compile(r"^how\s+(?:many|much)\s+(?:in\s+)?percent\w*\s+(?P<a>.*?)(?:\s+(?:is|are|was|were|did|do|does|who|that))?\s+(?:not|n't)\s+(?P<b>.+?)[?.]*$|"
                  r"^how\s+many\s+(?:in\s+)?percent\w*\s+.*?(?:weren't|aren't|isn't|wasn't|didn't)\s+(?P<c>.+?)[?.]*$", re.I)  # fmt: skip


def aggregation(question: str) -> PlanDraft | None:
    """The plan of a counting question, or None."""
    return _complement(question) or _span(question) or _difference(question) or _count(question)


def _complement(question: str) -> PlanDraft | None:
    """ "How many percent were not German?" -> the percentage that were · 100 minus it"""
    match = _NOT.match(question)
    if not match:
        return None
    draft = PlanDraft("aggregation")
    part = draft.find(f"percent {match['a'] or ''} {match['b'] or match['c']}")
    draft.combine("difference", [100, part])
    return draft


def _span(question: str) -> PlanDraft | None:
    """ "How many years after A did B?", "How long between A and B?" """
    match = _SPAN.match(question)
    if not match:
        return None
    after = match["w"].lower() in {"after", "before"}
    events = (_CLAUSE if after else _BETWEEN).match(match["rest"])
    if not events:
        return None
    draft = PlanDraft("aggregation")
    unit = "year" if (match["unit"] or "years").lower() in {"years", "decades"} else "date"
    draft.combine("difference", [draft.look_up(unit, events[side]) for side in "ab"])
    return draft


def _difference(question: str) -> PlanDraft | None:
    match = _DIFFERENCE.match(question)
    if not match:
        return None
    draft = PlanDraft("aggregation")
    amounts = (match["a"], _same_measure(match["a"], match["b"]))
    draft.combine("difference", [draft.find(_counted(amount)) for amount in amounts])
    return draft


def _counted(text: str) -> str:
    return re.sub(r"\b(?:did|does|do|were there|are there|was there)\b\s*", "that ", text, count=1, flags=re.IGNORECASE)


def _same_measure(subject: str, other: str) -> str:
    """ "people live in Oslo", "in Bergen" -> "people in Bergen": the noun of the first, the rest of the second."""
    noun = re.split(
        r"\b(?:did|does|do|were|are|was|is|had|have|has|in|of|by|from|for|who|that|speak)\b",
        subject,
        maxsplit=1,
        flags=re.I,
    )[0]
    return other if other.lower().startswith(noun.strip().lower()) else f"{noun.strip()} {other}"


def _count(question: str) -> PlanDraft | None:
    match = _COUNT.match(question)
    if not match:
        return None
    draft = PlanDraft("aggregation")
    what = re.sub(r"\s+(?:are|were|is|was)\s+there\b", "", match["what"])
    draft.combine("sum" if match["op"] else "number", [draft.find(_counted(what))])
    return draft
