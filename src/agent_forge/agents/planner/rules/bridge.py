"""Bridge questions: a description inside the question is looked up first, and its result asked about.

"Where was the director of film X born?" -> director of film X · place of birth of {s1}
"""

# ruff: noqa: E501  (a pattern reads best on one line)

from __future__ import annotations

import re

from agent_forge.agents.planner.rules.draft import Draft
from agent_forge.agents.relations import KINSHIP, NOUNS, QUESTIONS, ROLES, canonical

_KIN = "|".join(sorted(map(re.escape, KINSHIP), key=len, reverse=True))
_ROLE = "|".join(sorted(map(re.escape, ROLES), key=len, reverse=True))
_NOUN = "|".join(sorted((re.escape(form) for forms in NOUNS.values() for form in forms), key=len, reverse=True))
_REFERENCE = re.compile(r"\{s\d+\}")

# Innermost descriptions first: "the director of film X" up to the end of the name, or "X's husband".
_OF = re.compile(rf"\b(?:the\s+)?(?P<r>{_KIN}|{_ROLE})\s+(?:of|for)\s+(?P<e>.+)$", re.IGNORECASE)
_OWN = re.compile(rf"(?P<e>(?:[A-Z\"“{{(0-9][^\s]*|of|the|de|la|von|van|di|da|du|and|al|el|bin|ibn)(?:\s+(?:[A-Z\"“(0-9][^\s]*|of|the|de|la|von|van|di|da|du|and|al|el|bin|ibn))*)(?:'s|’s|'|’)\s+(?P<r>{_KIN}|{_ROLE})\b")  # fmt: skip
_TAIL = re.compile(r"\s+(?P<t>born(?: in| at| on)?|die[ds]?|from|study|studied|graduate[d]?(?: from)?|work(?:s|ed)?(?: at| for)?|buried|won|win|receive[d]?|married(?: to)?|educated|is from|was from|come from|get|got|earn(?:ed)?)\s*[?.]*$", re.IGNORECASE)  # fmt: skip
_ASKED = re.compile(
    rf"^(?:who|what|which)\s+(?:is|was|are|were)\s+(?:the\s+)?(?P<r>{_KIN}|{_ROLE}|{_NOUN})\s+of\s+(?P<e>.+?)\s*[?.]*$",
    re.I,
)
_ASKED_OWN = re.compile(
    rf"^(?:who|what|which)\s+(?:is|was|are|were)\s+(?P<e>.+?)(?:'s|’s|'|’)\s+(?P<r>{_KIN}|{_ROLE}|{_NOUN})\s*[?.]*$",
    re.I,
)
_RELATIVE = re.compile(
    r"^(?P<head>.+?)\s+(?P<np>(?:the|a|an|this|that)\s+(?:(?!(?:of|in|for|by|from|at|on)\s)[\w'’.-]+\s+){1,5}?)(?P<rel>who|that|which|where|whose|in which|of which|on which)\s+"
    r"(?P<clause>\S+(?:\s+\S+)+?)\s*[?.]*$",
    re.IGNORECASE,
)
_WHICH_WITH = re.compile(
    r"^(?:in\s+)?(?:which|what)\s+(?P<np>[\w'’ -]+?\s(?:with|by|of|in|from|that|who|which|whose)\s+.+?)\s+(?P<aux>did|does|do|is|was|were|are)\s+"
    r"(?P<rest>.+?)\s*[?.]*$",
    re.IGNORECASE,
)
_QUESTION_HEAD = re.compile(
    r"^(?P<pre>(?:in|on|at|for|from|of|to|by|under|during)\s+)?(?P<wh>who|whom|what|which|where|when|how)\b", re.I
)
_FINAL_WHAT = re.compile(r"^(?P<stem>.+?)\s+(?P<wh>what|which|who|whom|whose)\b\s*(?P<np>.*?)\s*[?.]*$", re.IGNORECASE)


def bridge(question: str) -> Draft | None:
    """The plan of a question with a description inside it, or None when there is nothing to look up first."""
    draft = Draft("bridge")
    text = _fold_roles(draft, question.strip())
    if not draft.steps:
        return _relative(question.strip())
    _ask(draft, text)
    return draft


def single(question: str) -> Draft:
    """A question of one look-up, or of the two hops that a kinship word hides."""
    draft = Draft("look-up")
    _ask(draft, question.strip())
    return draft


def _fold_roles(draft: Draft, text: str) -> str:
    """Replaces the descriptions inside `text`, innermost first, by references to the steps that find them."""
    for _ in range(4):
        if _asked(text):
            inner = _asked(text)
            assert inner is not None
            folded = _fold_one(draft, inner["e"])
            if folded == inner["e"]:
                return text
            text = text.replace(inner["e"], folded, 1)
            continue
        folded = _fold_one(draft, text)
        if folded == text:
            return text
        text = folded
    return text


def _fold_one(draft: Draft, text: str) -> str:
    own = _OWN.search(text)
    if own:
        return text[: own.start()] + _hop(draft, own["r"], _entity(own["e"])) + text[own.end() :]
    nested = _OF.search(text)
    if not nested:
        return text
    deeper = _OF.search(nested["e"])
    if deeper:
        return text[: nested.start("e")] + _fold_one(draft, nested["e"])
    name, tail = _cut_tail(nested["e"])
    return text[: nested.start()] + _hop(draft, nested["r"], name) + tail


def _cut_tail(text: str) -> tuple[str, str]:
    found = _TAIL.search(text)
    if found:
        return text[: found.start()].strip(), f" {found['t']}"
    return text.rstrip(" ?."), ""


def _hop(draft: Draft, role: str, entity: str) -> str:
    for relation in KINSHIP.get(role.lower(), (canonical(role),)):
        entity = draft.look_up(f"{relation} of {entity}")
    return entity


def _asked(text: str) -> re.Match[str] | None:
    return _ASKED.match(text) or _ASKED_OWN.match(text)


def _ask(draft: Draft, question: str) -> None:
    """Adds the last step: what is asked about the entity that is left."""
    direct = _asked(question)
    if direct:
        _hop(draft, direct["r"], _entity(direct["e"]))
        return
    for pattern, relation in QUESTIONS:
        found = pattern.match(question)
        if found:
            name = relation.replace("{r}", (found.groupdict().get("r") or "").lower())
            draft.look_up(f"{name} of {_entity(found['e'])}")
            return
    draft.look_up(question.rstrip(" ?."))


def _entity(text: str) -> str:
    return re.sub(r"^the\s+(?=film |movie |song )", "", text.strip(' ?.,"“”'), flags=re.IGNORECASE)


def _relative(question: str) -> Draft | None:
    """Relative clauses: "What is the language of the country where X is spoken?" """
    return _trailing_clause(question) or _modified_which(question) or _final_what(question)


def _trailing_clause(question: str) -> Draft | None:
    found = _RELATIVE.match(question)
    if not found or not _QUESTION_HEAD.match(found["head"]):
        return None
    draft = Draft("bridge")
    thing = draft.look_up(f"{found['np']}{found['rel']} {found['clause'].rstrip(' ?.')}")
    draft.look_up(f"{_statement(found['head'])} {thing}")
    return draft


def _modified_which(question: str) -> Draft | None:
    """ "Which movie with music by H. J. did Rihanna play in?" -> the movie · {s1} that Rihanna did play in"""
    found = _WHICH_WITH.match(question)
    if not found:
        return None
    draft = Draft("bridge")
    thing = draft.look_up(found["np"])
    draft.look_up(f"{thing} that {found['rest']}")
    return draft


def _final_what(question: str) -> Draft | None:
    """ "The star of The Inkwell also starred in what 1993 movie?": the question word stands at the end."""
    found = _FINAL_WHAT.match(question)
    if not found or _QUESTION_HEAD.match(question) or len(found["stem"].split()) < 4:
        return None
    draft = Draft("bridge")
    subject, verb = _subject_of(found["stem"])
    if not verb:
        return None
    thing = draft.look_up(subject)
    draft.look_up(f"{found['np']} that {thing} {verb}")
    return draft


_MAIN_VERB = re.compile(
    r"\s+(?P<v>(?:is|was|are|were|has|had|have|also|currently|originally|did|does)\b.*|\w+(?:ed|es)\s+(?:in|by|for|at|on|with|from|to|as|of)\b.*)$"
)


def _subject_of(stem: str) -> tuple[str, str]:
    found = _MAIN_VERB.search(stem)
    return (stem[: found.start()], found["v"]) if found else (stem, "")


def _statement(head: str) -> str:
    """ "What is the most common language in" -> "the most common language in" """
    return re.sub(r"^(?:who|what|which|where)\s+(?:is|was|are|were)\s+(?=\S)", "", head, flags=re.IGNORECASE)
