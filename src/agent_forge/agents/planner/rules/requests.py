"""Instructions: one step for each clause or listed item, tied together by what needs what.

A step depends on an earlier one when it speaks of its result ("it", "them", "the route", "based on that"). Order words
("then", "finally") make a dependency only where nothing else can: with tools whose parameters are known, a step that
names all it needs is independent whatever word precedes it.
"""

from __future__ import annotations

import re

from agent_forge.agents.language import Clause, clauses, content_words, plain, words
from agent_forge.agents.planner.rules.draft import Draft, Step, step_id
from agent_forge.agents.planner.rules.tools import ToolIndex, ToolSpec, fill

_LISTED = re.compile(r"^\s*(?:\d+[.)]|[-*•])\s+(\S.*)$", re.MULTILINE)
_BACKWARD = frozenset(
    """it its them they their this that these those result results output outcome there him her his he she such
    resulting above accordingly available booked chosen selected retrieved obtained found""".split()
)
_BACKWARD_PHRASE = re.compile(
    r"\b(?:based on|according to|using (?:the|that|this|these|those|it)|from (?:the|that|this|it)|with (?:the (?:result|same)|it|them)|"
    r"if (?:so|available|possible|there|it)|once|after (?:that is|it is|obtaining|finding|getting|\w+ing)|the same|of the)\b",
    re.IGNORECASE,
)


def listed(request: str) -> list[str]:
    """The items of a numbered or bulleted request (two or more), else nothing."""
    items = [item.strip() for item in _LISTED.findall(request)]
    return items if len(items) > 1 else []


def instructions(request: str, tools: ToolIndex | None = None) -> Draft | None:
    """The plan of an instruction, or None when nothing in it can be read as a step."""
    items = listed(request)
    if items:
        return _chain(items)
    if tools is not None:
        return _with_tools(request, tools)
    found = clauses(request)
    return _free(found) if found else None


def _chain(items: list[str]) -> Draft:
    """Listed steps keep their order, except that a step sharing nothing with the one before may start at once."""
    draft = Draft("list")
    previous: tuple[str, ...] = ()
    for item in items:
        previous = (step_id(draft.act(item, previous)),)
    return draft


def _free(found: list[Clause]) -> Draft:
    draft = Draft("request")
    for number, clause in enumerate(found):
        after: tuple[str, ...] = ()
        if number and (clause.joined_by == "then" or _refers_back(clause.text, [c.text for c in found[:number]])):
            after = (f"s{number}",)
        draft.act(clause.text, after)
    return draft


def _refers_back(text: str, earlier: list[str]) -> bool:
    """Whether a clause speaks of what an earlier one made: a pronoun, a phrase, or "the" + a word of an earlier clause."""
    tokens = words(text)
    if _BACKWARD & set(tokens) or _BACKWARD_PHRASE.search(text):
        return True
    said = {word for clause in earlier for word in content_words(clause)}
    definite = [b for a, b in zip(tokens, tokens[1:], strict=False) if a == "the"]
    return any(set(content_words(word)) & said for word in definite)


def _with_tools(request: str, index: ToolIndex) -> Draft | None:
    """Each clause goes to the tool that fits it best; clauses that fit none are talk, not steps."""
    draft = Draft("tools")
    texts: list[str] = []
    for clause in clauses(request, index.verbs):
        match = index.best(clause.text)
        if match is None:
            continue
        if draft.steps and draft.steps[-1].action == match.name and clause.joined_by not in {"then"}:
            draft.steps[-1].goal += f"; {clause.text}"  # two clauses about one call ("… with these details")
            continue
        step = Step(plain(clause.text), "act", action=match.name)
        step.after = _needed(step, clause, texts, draft, match)
        step.args = fill(match, clause.text, [f"{{{i}}}" for i in step.after])
        draft.steps.append(step)
        texts.append(clause.text)
    return draft if draft.steps else None


def _needed(step: Step, clause: Clause, earlier: list[str], draft: Draft, tool: ToolSpec) -> tuple[str, ...]:
    if not earlier:
        return ()
    last = f"s{len(draft.steps)}"
    if _refers_back(clause.text, earlier):
        return (last,)
    if not tool.schema and clause.joined_by in {"then", "and", "."}:
        return (last,)  # nothing is known of what the tool needs: keep the order in which it was asked for
    return ()
