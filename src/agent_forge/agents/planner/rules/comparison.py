"""Comparison questions: the same look-up for each thing, all at once, then one step that compares.

"Which film has the director who died later, X or Y?" becomes five steps of which the first two pairs run in parallel:
director of X · director of Y · date of death of {s1} · date of death of {s2} · which is latest of {s3} (X), {s4} (Y).
"""

# ruff: noqa: E501  (a pattern reads best on one line)

from __future__ import annotations

import re

from agent_forge.agents.planner.rules.draft import Draft
from agent_forge.agents.relations import COMPARISONS, MEASURE_OF, ROLES, SHARED, canonical

_AUX = r"(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would)"
_CHOICE = re.compile(
    r"^(?P<head>.+?)[,:;?]\s+(?:between\s+|either\s+)?(?P<a>.+)\s+or\s+(?P<b>.+?)\s*[?.]*$", re.IGNORECASE
)
_OUT_OF = re.compile(r"^(?P<head>.+?)\s+(?:out of|of|between|among)\s+(?P<things>[A-Z0-9\"“].*?\sand\s.+?)\s*[?.]*$")
_BARE_CHOICE = re.compile(rf"^(?P<aux>{_AUX})\s+(?P<a>.+?)\s+or\s+(?P<rest>.+?)\s*[?.]*$", re.IGNORECASE)
_PAIR = re.compile(
    rf"^(?P<aux>{_AUX})\s+(?:both\s+)?(?P<things>.+?\sand\s.+?),?\s+(?:both\s+)?"
    r"(?P<tail>(?:(?:located|situated|based|born|found|published|released|made|directed|originating|originate|come|live|work|play|"
    r"share|have|has|both|from|of|in|on|at|by|a|an|the)\s+)*(?:the\s+)?same\b.*|share\b.*|both\b.*|have in common\b.*)[?.]*$",
    re.IGNORECASE,
)
_SAME_AS = re.compile(
    rf"^(?P<aux>{_AUX})\s+(?P<a>.+?)\s+(?P<verb>have|has|share|from|of|in|born in)\s+the\s+same\s+(?P<what>[\w -]+?)\s+as\s+(?P<b>.+?)[?.]*$",
    re.IGNORECASE,
)
_BOTH = re.compile(rf"^(?P<aux>{_AUX})\s+(?P<a>.+?)\s+and\s+(?P<b>.+?)\s+both\s+(?P<tail>.+?)[?.]*$", re.IGNORECASE)
_BOTH_FIRST = re.compile(rf"^(?P<aux>{_AUX})\s+both\s+(?P<a>.+?)\s+and\s+(?P<rest>.+?)[?.]*$", re.IGNORECASE)
_COMMON = re.compile(
    rf"^(?:what|which)\s+(?P<noun>[\w\s-]+?)\s+{_AUX}\s+(?P<a>.+?)\s+and\s+(?P<b>.+?)\s+"
    r"(?:share|both|have in common|in common|have)\b.*$",
    re.IGNORECASE,
)
_ROLE_OF = re.compile(
    rf"^(?:the\s+)?(?P<role>{'|'.join(sorted(ROLES))})s?\s+of\s+(?:(?:the\s+)?(?:both\s+)?(?P<type>films?|movies?|songs?|books?|albums?)\s+)?",
    re.IGNORECASE,
)
_ROLE_IN_HEAD = re.compile(
    rf"\b(?:has the|whose|with the|have the|has a|had the)\s+(?P<role>{'|'.join(sorted(ROLES))})\b", re.I
)
_TYPE = re.compile(
    r"^(?:the\s+|both\s+)*(?P<type>movies?|films?|bands?|songs?|albums?|books?|novels?|magazines?|schools?|"
    r"buildings?|singers?|actors?|companies|universities|musicians?|directors?|people|artists?|authors?|games?)\s+(?=[A-Z0-9\"'“])"
)


def comparison(question: str) -> Draft | None:
    """The plan of a question that compares two or more things, or None."""
    question = question.strip()
    for reading in (_choice, _common, _same_as, _pair, _both, _bare_choice, _out_of):
        draft = reading(question)
        if draft is not None:
            return draft
    return None


def _choice(question: str) -> Draft | None:
    """ "Which …, A or B?" """
    found = _CHOICE.match(question)
    if not found or len(found["head"].split()) < 2 or re.match(r"^(?:how|if|when|where)\b", found["head"], re.I):
        return None
    things = [part for part in [*re.split(r",\s+(?=[A-Z\"“])", found["a"]), found["b"]] if part.strip()]
    if len(things) > 2 and len(things) != found["a"].count(", ") + 2:
        things = [found["a"], found["b"]]
    if len(things) > 2 and not found["a"].rstrip().endswith(","):
        things = [found["a"], found["b"]]
    return _compare(found["head"], [_name(thing) for thing in things])


def _out_of(question: str) -> Draft | None:
    """ "Who was born first out of A and B?" """
    found = _OUT_OF.match(question)
    if not found or not re.match(r"^(?:who|which|what)\b", question, re.IGNORECASE) or not _how(found["head"]):
        return None
    return _compare(found["head"], [_name(thing) for thing in _cut_at_and(found["things"])])


def _bare_choice(question: str) -> Draft | None:
    """ "Was A or B founded first?" """
    found = _BARE_CHOICE.match(question)
    if not found:
        return None
    name, predicate = _name_and_rest(found["rest"])
    if not predicate or not _how(predicate):
        return None
    return _compare(f"which {found['aux']} {predicate}", [_name(found["a"]), name])


def _compare(head: str, things: list[str]) -> Draft | None:
    draft = Draft("comparison")
    how = _how(head)
    role = _ROLE_IN_HEAD.search(head)
    if how is None:
        return _which_when(draft, head, things) or _which_is_true(draft, head, things)
    relation, operation = how
    kind = re.match(r"^\s*(?:which|what)\s+(film|movie|song|book|album)\b", head, re.I)
    subjects = things
    if role:
        subjects = [draft.look_up(f"{role['role'].lower()} of {_typed(kind, thing)}") for thing in things]
    values = [draft.look_up(f"{relation} of {subject if role else _typed(kind, subject)}") for subject in subjects]
    draft.combine(f"which is {operation} of {_labelled(values, things)}")
    return draft


def _typed(kind: re.Match[str] | None, thing: str) -> str:
    return f"{kind.group(1).lower()} {thing}" if kind else thing


def _labelled(values: list[str], things: list[str]) -> str:
    return ", ".join(f"{value} ({thing})" for value, thing in zip(values, things, strict=True))


def _how(head: str) -> tuple[str, str] | None:
    """(relation, operation) of a comparing predicate."""
    for pattern, relation, operation in COMPARISONS:
        found = pattern.search(head)
        if found:
            noun = (found.groupdict().get("n") or "").strip().lower()
            return (MEASURE_OF.get(noun, noun) if relation == "{n}" else relation.replace("{n}", noun)), operation
    return None


def _which_when(draft: Draft, head: str, things: list[str]) -> Draft | None:
    """ "Who landed in Smerwick later, A or B?": when it was for each, then the earliest or latest."""
    order = re.search(r"\s+(?P<o>first|earlier|before|later|last|recently)\s*$", head, re.IGNORECASE)
    event = re.match(
        rf"^(?:which|who|what)\s+(?:\w+\s+)??(?P<e>(?P<aux>{_AUX}\b)?.*)$", head[: order.start()] if order else "", re.I
    )
    if not order or not event:
        return None
    if event["aux"]:
        goals = [f"when {event['e']} {thing}" for thing in things]
    else:
        goals = [f"when {thing} {event['e']}" for thing in things]
    operation = "earliest" if order["o"].lower() in {"first", "earlier", "before"} else "latest"
    draft.combine(f"which is {operation} of {_labelled([draft.look_up(goal) for goal in goals], things)}")
    return draft


def _which_is_true(draft: Draft, head: str, things: list[str]) -> Draft | None:
    """ "Which artist was Italian, A or B?": a yes/no look-up for each."""
    found = re.match(rf"^(?:which|who|what)\b.*?\b(?P<p>{_AUX}\b.+)$", head, re.IGNORECASE)
    if not found:
        return None
    values = [draft.look_up(f"if {thing} {found['p']}") for thing in things]
    draft.combine(f"which is true of {_labelled(values, things)}")
    return draft


def _same_as(question: str) -> Draft | None:
    """ "Does A have the same nationality as B?" """
    found = _SAME_AS.match(question)
    if not found:
        return None
    turned = f"{found['aux']} {found['a']} and {found['b']} {found['verb']} the same {found['what']}?"
    return _pair(turned)


def _pair(question: str) -> Draft | None:
    """ "Are A and B from the same country?" """
    found = _PAIR.match(question)
    if not found or ("same" not in found["tail"].lower() and "share" not in found["tail"].lower()):
        return None
    relation = next((name for pattern, name in SHARED if pattern.search(f"{found['things']} {found['tail']}")), None)
    relation = relation or _same_what(found["tail"])
    if relation is None:
        return None
    draft = Draft("comparison")
    subjects = [_subject(draft, thing) for thing in _things(found["things"])]
    values = [draft.look_up(f"{relation} of {subject}") for subject in subjects]
    draft.combine(f"if {' and '.join(values)} are the same")
    return draft


def _same_what(tail: str) -> str | None:
    found = re.search(r"\bsame\s+(?P<n>[\w-]+(?:\s+[\w-]+)?)", tail, re.IGNORECASE)
    return re.sub(r"\s+(?:as|to|in|by|of|for|at|on)$", "", found["n"]) if found else None


def _things(text: str) -> list[str]:
    """ "directors of films X and Y" -> ["director of film X", "director of film Y"]"""
    role = _ROLE_OF.match(text)
    kind = _TYPE.match(text)
    start = role.end() if role else kind.end() if kind else 0
    first, second = _cut_at_and(text[start:])
    if role:
        of = f"{role['role'].lower()} of {(role['type'] or '').rstrip('s')} "
        again = _ROLE_OF.match(second)
        return [f"{of}{first}", f"{of}{second[again.end() :] if again else second}"]
    lead = (
        f"{kind['type'].rstrip('s')} " if kind and kind["type"].startswith(("film", "movie", "song", "album")) else ""
    )
    return [f"{lead}{_name(first)}", f"{lead}{_name(second)}"]


def _cut_at_and(text: str) -> tuple[str, str]:
    """Cuts "A and B" at the "and" that leaves both sides capitalised and most even: titles hold the word themselves."""
    cuts = [m.span() for m in re.finditer(r",?\s+and\s+", text)]
    best = min(cuts, key=lambda c: (not text[c[1] : c[1] + 1].isupper(), abs(c[0] - (len(text) - c[1]))))
    return text[: best[0]], text[best[1] :]


def _subject(draft: Draft, thing: str) -> str:
    """The thing itself, or a reference to the step that finds it ("director of film X")."""
    return draft.look_up(thing) if _ROLE_OF.match(thing) else thing


def _both(question: str) -> Draft | None:
    """ "Are A and B both PREDICATE?", "Are both A and B PREDICATE?" """
    found = _BOTH.match(question)
    if found:
        names, tail = [_name(found["a"]), _name(found["b"])], found["tail"]
    else:
        first = _BOTH_FIRST.match(question)
        if not first:
            return None
        second, tail = _name_and_rest(first["rest"])
        names, found = [_name(first["a"]), second], first
    if not tail:
        return None
    draft = Draft("comparison")
    values = [draft.look_up(f"if {name} {_singular(found['aux'])} {tail}") for name in names]
    draft.combine(f"if both {' and '.join(values)} are true")
    return draft


def _common(question: str) -> Draft | None:
    """ "What profession do A and B have in common?" """
    found = _COMMON.match(question)
    if not found:
        return None
    draft = Draft("comparison")
    values = [draft.look_up(f"{canonical(found['noun'])} of {_name(found[side])}") for side in "ab"]
    draft.combine(f"what {' and '.join(values)} have in common")
    return draft


def _singular(aux: str) -> str:
    return {"are": "is", "were": "was", "do": "does", "have": "has"}.get(aux.lower(), aux.lower())


def _name(text: str) -> str:
    text = re.sub(r"^(?:the\s+)?(?:film|movie|band|song|album|either|between)\s+(?=[A-Z0-9])", "", text.strip(" ,"))
    return text.strip(' ,"“”')


def _name_and_rest(text: str) -> tuple[str, str]:
    """Cuts a name from what follows it: names are capitalised, with small joining words inside."""
    tokens = text.split()
    end = 0
    for number, token in enumerate(tokens):
        if token[:1].isupper() or token[:1].isdigit() or token[:1] in "\"'“(&":
            end = number + 1
        elif token not in {
            "of",
            "the",
            "and",
            "de",
            "la",
            "von",
            "van",
            "in",
            "for",
            "a",
            "an",
            "to",
            "on",
            "at",
            "v.",
            "&",
        }:
            break
    return " ".join(tokens[:end]), " ".join(tokens[end:])
