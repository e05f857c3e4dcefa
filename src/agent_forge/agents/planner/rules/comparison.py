"""Comparison questions: the same look-up for each thing, in parallel, then one step that compares.

"Which film has the director who died later, X or Y?" becomes five steps, of which each pair runs in parallel: director
of X · director of Y · date of death of {s1} · date of death of {s2} · which is latest of {s3} (X), {s4} (Y).
"""

# ruff: noqa: E501  (a pattern reads best on one line)

from __future__ import annotations

import re

from agent_forge.agents.planner.rules.draft import PlanDraft
from agent_forge.agents.relations import COMPARISONS, MEASURE_OF, ROLES, SHARED, canonical
from agent_forge.tasks.words import word_set

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


_INSIDE_NAMES = word_set("of the and de la von van in for a an to on at v. &")


def comparison(question: str) -> PlanDraft | None:
    """The plan of a question that compares two or more things, or None."""
    readings = (_choice, _common, _same_as, _pair, _both, _bare_choice, _out_of)
    return next((draft for draft in (reading(question) for reading in readings) if draft is not None), None)


def _choice(question: str) -> PlanDraft | None:
    """ "Which …, A or B?" """
    match = _CHOICE.match(question)
    if not match or len(match["head"].split()) < 2 or re.match(r"^(?:how|if|when|where)\b", match["head"], re.I):
        return None
    first, last = match["a"], match["b"]
    things = [part for part in [*re.split(r",\s+(?=[A-Z\"“])", first), last] if part.strip()]
    if len(things) > 2 and (len(things) != first.count(", ") + 2 or not first.rstrip().endswith(",")):
        things = [first, last]  # the commas belong to a title ("Murder, She Said")
    return _compare(match["head"], [_name(thing) for thing in things])


def _out_of(question: str) -> PlanDraft | None:
    """ "Who was born first out of A and B?" """
    match = _OUT_OF.match(question)
    if not match or not re.match(r"^(?:who|which|what)\b", question, re.IGNORECASE) or not _how(match["head"]):
        return None
    return _compare(match["head"], [_name(thing) for thing in _cut_at_and(match["things"])])


def _bare_choice(question: str) -> PlanDraft | None:
    """ "Was A or B founded first?" """
    match = _BARE_CHOICE.match(question)
    if not match:
        return None
    name, predicate = _name_and_rest(match["rest"])
    if not predicate or not _how(predicate):
        return None
    return _compare(f"which {match['aux']} {predicate}", [_name(match["a"]), name])


def _compare(head: str, things: list[str]) -> PlanDraft | None:
    how = _how(head)
    if how is None:
        return _which_when(head, things) or _which_is_true(head, things)
    relation, operation = how
    draft = PlanDraft("comparison")
    role = _ROLE_IN_HEAD.search(head)
    kind = re.match(r"^\s*(?:which|what)\s+(film|movie|song|book|album)\b", head, re.I)
    subjects = [f"{kind.group(1).lower()} {thing}" if kind else thing for thing in things]
    if role:
        subjects = [draft.look_up(role["role"].lower(), subject) for subject in subjects]
    draft.combine(operation, [draft.look_up(relation, subject) for subject in subjects], things)
    return draft


def _how(head: str) -> tuple[str, str] | None:
    """(relation, operation) of a comparing predicate."""
    for pattern, relation, operation in COMPARISONS:
        match = pattern.search(head)
        if match:
            noun = (match.groupdict().get("n") or "").strip().lower()
            return (MEASURE_OF.get(noun, noun) if relation == "{n}" else relation.replace("{n}", noun)), operation
    return None


def _which_when(head: str, things: list[str]) -> PlanDraft | None:
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
    draft = PlanDraft("comparison")
    draft.combine(operation, [draft.find(goal) for goal in goals], things)
    return draft


def _which_is_true(head: str, things: list[str]) -> PlanDraft | None:
    """ "Which artist was Italian, A or B?": a yes-or-no search for each."""
    match = re.match(rf"^(?:which|who|what)\b.*?\b(?P<p>{_AUX}\b.+)$", head, re.IGNORECASE)
    if not match:
        return None
    draft = PlanDraft("comparison")
    draft.combine("true", [draft.find(f"if {thing} {match['p']}") for thing in things], things)
    return draft


def _same_as(question: str) -> PlanDraft | None:
    """ "Does A have the same nationality as B?" """
    match = _SAME_AS.match(question)
    if not match:
        return None
    return _pair(f"{match['aux']} {match['a']} and {match['b']} {match['verb']} the same {match['what']}?")


def _pair(question: str) -> PlanDraft | None:
    """ "Are A and B from the same country?" """
    match = _PAIR.match(question)
    if not match or ("same" not in match["tail"].lower() and "share" not in match["tail"].lower()):
        return None
    relation = next((name for pattern, name in SHARED if pattern.search(f"{match['things']} {match['tail']}")), None)
    if relation is None:
        noun = re.search(r"\bsame\s+(?P<n>[\w-]+(?:\s+[\w-]+)?)", match["tail"], re.IGNORECASE)
        if not noun:
            return None
        relation = re.sub(r"\s+(?:as|to|in|by|of|for|at|on)$", "", noun["n"])
    draft = PlanDraft("comparison")
    # "director of film X" is itself looked up first
    subjects = [draft.find(thing) if _ROLE_OF.match(thing) else thing for thing in _things(match["things"])]
    draft.combine("same", [draft.look_up(relation, subject) for subject in subjects])
    return draft


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


def _both(question: str) -> PlanDraft | None:
    """ "Are A and B both PREDICATE?", "Are both A and B PREDICATE?" """
    match = _BOTH.match(question)
    if match:
        second, tail = _name(match["b"]), match["tail"]
    else:
        match = _BOTH_FIRST.match(question)
        if not match:
            return None
        second, tail = _name_and_rest(match["rest"])
    if not tail:
        return None
    auxiliary = match["aux"].lower()
    singular = {"are": "is", "were": "was", "do": "does", "have": "has"}.get(auxiliary, auxiliary)
    draft = PlanDraft("comparison")
    draft.combine("both", [draft.find(f"if {name} {singular} {tail}") for name in (_name(match["a"]), second)])
    return draft


def _common(question: str) -> PlanDraft | None:
    """ "What profession do A and B have in common?" """
    match = _COMMON.match(question)
    if not match:
        return None
    draft = PlanDraft("comparison")
    draft.combine("common", [draft.look_up(canonical(match["noun"]), _name(match[side])) for side in "ab"])
    return draft


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
        elif token not in _INSIDE_NAMES:
            break
    return " ".join(tokens[:end]), " ".join(tokens[end:])
