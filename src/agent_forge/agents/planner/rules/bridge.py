"""Bridge questions: a description inside the question is looked up first, then the question is asked of its result.

"Where was the director of film X born?" -> director of film X · place of birth of {s1}
"""

# ruff: noqa: E501  (a pattern reads best on one line)

from __future__ import annotations

import re

from agent_forge.agents.planner.rules.draft import PlanDraft
from agent_forge.agents.relations import KINSHIP, NOUNS, QUESTIONS, ROLES, canonical

_KIN = "|".join(sorted(map(re.escape, KINSHIP), key=len, reverse=True))
_ROLE = "|".join(sorted(map(re.escape, ROLES), key=len, reverse=True))
_NOUN = "|".join(sorted((re.escape(form) for forms in NOUNS.values() for form in forms), key=len, reverse=True))

# The patterns here and in the other shapes try every place of a question, some of them every pair of places.
LONGEST_QUESTION = 2000

# Innermost descriptions first: "the director of film X" up to the end of the name, or "X's husband".
_OF = re.compile(rf"\b(?:the\s+)?(?P<r>{_KIN}|{_ROLE})\s+(?:of|for)\s+(?P<e>.+)$", re.IGNORECASE)
_OWN = re.compile(rf"(?P<e>(?:[A-Z\"“{{(0-9][^\s]*|of|the|de|la|von|van|di|da|du|and|al|el|bin|ibn)(?:\s+(?:[A-Z\"“(0-9][^\s]*|of|the|de|la|von|van|di|da|du|and|al|el|bin|ibn))*)(?:'s|’s|'|’)\s+(?P<r>{_KIN}|{_ROLE})\b")  # fmt: skip
_TAIL = re.compile(r"\s+(?P<t>born(?: in| at| on)?|die[ds]?|from|study|studied|graduate[d]?(?: from)?|work(?:s|ed)?(?: at| for)?|buried|won|win|receive[d]?|married(?: to)?|educated|is from|was from|come from|get|got|earn(?:ed)?)\s*[?.]*$", re.IGNORECASE)  # fmt: skip
_WHO_IS = re.compile(
    rf"^(?:who|what|which)\s+(?:is|was|are|were)\s+(?:the\s+)?(?P<r>{_KIN}|{_ROLE}|{_NOUN})\s+of\s+(?P<e>.+?)\s*[?.]*$",
    re.I,
)
_WHO_IS_OWN = re.compile(
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

_MAIN_VERB = re.compile(
    r"\s+(?P<v>(?:is|was|are|were|has|had|have|also|currently|originally|did|does)\b.*|\w+(?:ed|es)\s+(?:in|by|for|at|on|with|from|to|as|of)\b.*)$"
)


def bridge(question: str) -> PlanDraft | None:
    """The plan of a question that contains a description, or None if there is nothing to look up first."""
    draft = PlanDraft("bridge")
    text = _fold_roles(draft, question)
    if not draft.steps:
        return _trailing_clause(question) or _modified_which(question) or _final_what(question)
    _ask(draft, text)
    return draft


def single(question: str) -> PlanDraft:
    """A question of one look-up, or of the two hops that a kinship word hides."""
    draft = PlanDraft("look-up")
    if len(question) <= LONGEST_QUESTION:
        _ask(draft, question)
    else:
        draft.find(question.rstrip(" ?."))
    return draft


def _fold_roles(draft: PlanDraft, text: str) -> str:
    """Replaces the descriptions in the text, innermost first, by references to the steps that find them."""
    for _ in range(4):
        inner = _direct(text)
        if inner:
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


def _fold_one(draft: PlanDraft, text: str) -> str:
    own = _OWN.search(text)
    if own:
        return text[: own.start()] + _hop(draft, own["r"], _entity(own["e"])) + text[own.end() :]
    nested = _OF.search(text)
    if not nested:
        return text
    deeper = _OF.search(nested["e"])
    if deeper:
        return text[: nested.start("e")] + _fold_one(draft, nested["e"])
    tail = _TAIL.search(nested["e"])
    name = nested["e"][: tail.start()].strip() if tail else nested["e"].rstrip(" ?.")
    return text[: nested.start()] + _hop(draft, nested["r"], name) + (f" {tail['t']}" if tail else "")


def _hop(draft: PlanDraft, role: str, entity: str) -> str:
    for relation in KINSHIP.get(role.lower(), (canonical(role),)):
        entity = draft.look_up(relation, entity)
    return entity


def _direct(text: str) -> re.Match[str] | None:
    return _WHO_IS.match(text) or _WHO_IS_OWN.match(text)


def _ask(draft: PlanDraft, question: str) -> None:
    """Adds the last step: the question about the remaining entity."""
    direct = _direct(question)
    if direct:
        _hop(draft, direct["r"], _entity(direct["e"]))
        return
    for pattern, relation in QUESTIONS:
        match = pattern.match(question)
        if match:
            name = relation.replace("{r}", (match.groupdict().get("r") or "").lower())
            draft.look_up(name, _entity(match["e"]))
            return
    draft.find(question.rstrip(" ?."))


def _entity(text: str) -> str:
    return re.sub(r"^the\s+(?=film |movie |song )", "", text.strip(' ?.,"“”'), flags=re.IGNORECASE)


def _trailing_clause(question: str) -> PlanDraft | None:
    """ "What is the language of the country where X is spoken?" -> the country where X is spoken · the language of {s1}"""
    match = _RELATIVE.match(question)
    if not match or not _QUESTION_HEAD.match(match["head"]):
        return None
    draft = PlanDraft("bridge")
    thing = draft.find(f"{match['np']}{match['rel']} {match['clause'].rstrip(' ?.')}")
    statement = re.sub(
        r"^(?:who|what|which|where)\s+(?:is|was|are|were)\s+(?=\S)", "", match["head"], flags=re.IGNORECASE
    )
    draft.find(f"{statement} {thing}")
    return draft


def _modified_which(question: str) -> PlanDraft | None:
    """ "Which movie with music by H. J. did Rihanna play in?" -> the movie · {s1} that Rihanna did play in"""
    match = _WHICH_WITH.match(question)
    if not match:
        return None
    draft = PlanDraft("bridge")
    thing = draft.find(match["np"])
    draft.find(f"{thing} that {match['rest']}")
    return draft


def _final_what(question: str) -> PlanDraft | None:
    """ "The star of The Inkwell also starred in what 1993 movie?": the question word stands at the end."""
    match = _FINAL_WHAT.match(question)
    if not match or _QUESTION_HEAD.match(question) or len(match["stem"].split()) < 4:
        return None
    verb = _MAIN_VERB.search(match["stem"])
    if not verb:
        return None
    draft = PlanDraft("bridge")
    thing = draft.find(match["stem"][: verb.start()])
    draft.find(f"{match['np']} that {thing} {verb['v']}")
    return draft
