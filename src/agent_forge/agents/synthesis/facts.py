"""Facts read from passages: for each relation, how an encyclopedia words it.

Only the passage about the entity itself is read, and a wording that does not fit gives no fact. The gaps in the
patterns and the text are bounded: passages come from any search tool, and unbounded gaps take cubic time.
"""

# ruff: noqa: E501  (a pattern reads best on one line)

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from agent_forge.agents.synthesis.values import DATE, NAME, PLACE, country_in, parse_date, plain


@dataclass(frozen=True, slots=True)
class Fact:
    """A value, the title of its passage, and the sentence it was read from."""

    value: str
    source: str
    evidence: str


_TYPES = (
    r"(?:film|movie|song|album|book|novel|band|magazine|actor|singer|director|company|school|university|river|village)"
)
MOST_TEXT = 10_000  # characters of a passage
_GAP = r"[^.]{0,300}?"  # within a sentence
_DASH = r"\s*[–—-]\s*"
_BORN_DIED = rf"\((?:[^()\d]*?[;,]?\s*)?(?:born\s+)?(?:c\.?\s*)?(?P<v>{DATE})[^()–—]*{_DASH}(?:c\.?\s*)?"
_AND = (
    r"(?:\s*,?\s+and\s+(?:his|her|their)?\s*(?:first |second |third )?(?:wife|husband|consort)?,?\s*(?:the former )?)"
)
_TITLED = r"(?:(?:King|Queen|Prince|Princess|Duke|Duchess|Count|Countess|Emperor|Empress|Sir|Lord|Lady|Baron|actor|actress|director|politician|singer|writer|businessman|film director|the|former|late)\s+)*"

# relation -> patterns with the value as group `v`, tried in order
PATTERNS: dict[str, tuple[str, ...]] = {
    "date of birth": (
        rf"\((?:[^()]*?\s)?born\s+(?:as\s[^()]*?\s|on\s|in\s|c\.?\s*|circa\s)?(?P<v>{DATE})",
        rf"{_BORN_DIED}(?:{DATE}|present|)",
        rf"\bborn\b[^.]{{0,80}}?\b(?:on|in)\s+(?P<v>{DATE})",
        rf"\bborn\s+(?P<v>{DATE})",
        rf"\bborn\b[^.]{{0,60}}?(?P<v>{DATE})",
    ),
    "date of death": (
        rf"\([^()]*?{DATE}[^()–—]*{_DASH}(?:[^()\d]*?\s)?(?:c\.?\s*)?(?P<v>{DATE})",
        rf"\(\s*(?:died|d\.)\s*(?:c\.?\s*|on\s|in\s)?(?P<v>{DATE})",
        rf"\b(?:died|passed away|was killed|death)\b[^.]{{0,80}}?\b(?:on|in)\s+(?P<v>{DATE})",
        rf"\bdied\s+(?P<v>{DATE})",
    ),
    "place of birth": (
        rf"\bborn\s+(?:on\s+)?{DATE}\s*,?\s*(?:in|at)\s+(?:the\s+\w+\s+of\s+)?(?P<v>{PLACE})",
        rf"\bborn\s+(?:and raised\s+|as [^.,]*?\s)?(?:in|at)\s+(?:the\s+(?:village|town|city)\s+of\s+)?(?P<v>{PLACE})",
        rf"\(\s*{DATE}\s*(?:,|in)\s*(?P<v>{PLACE})\s*[–—-]",
        rf"\b(?:is|was)\s+born\b[^.]{{0,60}}?\s(?:in|at)\s+(?P<v>{PLACE})",
        rf"\bborn\b[^.]{{0,50}}?\s(?:in|at)\s+(?P<v>{PLACE})",
        rf"\b(?:a|an)?\s*native of (?P<v>{PLACE})",
    ),
    "place of death": (
        rf"[–—-]\s*{DATE}\s*(?:,|in)\s*(?P<v>{PLACE})\s*\)",
        rf"\b(?:died|passed away)\b[^.]{{0,90}}?\s(?:in|at)\s+(?:his home in\s+|her home in\s+|the\s+)?(?P<v>{PLACE})",
    ),
    "place of burial": (rf"\bburied\b[^.]{{0,40}}?\s(?:in|at)\s+(?:the\s+)?(?P<v>{PLACE})",),
    "cause of death": (
        r"\bdied\s+(?:[^.]{0,40}?\s)?(?:of|from|due to)\s+(?:an?\s+|complications (?:of|from)\s+)?(?P<v>[a-z][a-z -]+?)(?=\s+(?:on|in|at|aged|when|while)\b|[.,;])",
        r"\bkilled\s+(?:in|by)\s+(?:an?\s+)?(?P<v>[a-z][a-z -]+?)(?=\s+(?:on|in|at|near)\b|[.,;])",
    ),
    "director": (
        rf"\bdirected(?: and [a-z ]{{1,80}}?| [a-z, ]{{1,80}}? and [a-z]+?)? by (?:the\s+)?{_TITLED}(?P<v>{NAME})",
        rf"\b(?:a|an)\b{_GAP}\bfilm\b{_GAP}\bby (?:the\s+)?(?:[A-Z]\w+ )?(?:director|filmmaker) (?P<v>{NAME})",
        rf"\bdirector (?P<v>{NAME})",
        rf"\bfilm (?:made )?by (?P<v>{NAME})",
        rf"\b(?P<v>{NAME})'s (?:\w+ ){{0,3}}film\b",
    ),
    "composer": (
        rf"\b(?:composed|music|score|written and composed|songwriting)(?: and [a-z ]{{1,80}}?)? by (?:the\s+)?(?:[a-z]+ ){{0,12}}?(?P<v>{NAME})",
        rf"\bwritten (?:and [a-z ]{{1,80}}? )?by (?:the\s+)?(?:[A-Z]?[a-z]+ ){{0,12}}?(?P<v>{NAME})",
        rf"\bsong (?:written |composed )?by (?:[A-Z]\w+ )?(?:[a-z-]+ ){{0,12}}(?P<v>{NAME})",
    ),
    "performer": (
        rf"\b(?:song|single|album|track)\b{_GAP}\bby (?:the\s+)?(?:[A-Z]\w+ )?(?:[a-z&/-]+ ){{1,12}}(?P<v>{NAME})",
        rf"\b(?:song|single|album|track)\b{_GAP}\b(?:recorded|performed|sung|released)?\s*by (?P<v>{NAME})",
        rf"\b(?:recorded|performed|sung) by (?P<v>{NAME})",
    ),
    "author": (rf"\b(?:written|authored|novel|book)\b{_GAP} by (?:the\s+)?(?:[A-Z]?[a-z]+ ){{0,12}}?(?P<v>{NAME})",),
    "producer": (rf"\bproduced (?:and [a-z ]{{1,80}}? )?by (?P<v>{NAME})",),
    "founder": (rf"\bfounded (?:{_GAP} )?by (?P<v>{NAME})", rf"\bfounder,? (?P<v>{NAME})"),
    "creator": (rf"\bcreated by (?P<v>{NAME})",),
    "father": (
        rf"\b(?:son|daughter|child|children)\s+(?:and \w+ )?(?:of|to)\s+(?:the\s+)?{_TITLED}(?P<v>{NAME})",
        rf"\bfather(?: was|,| is)?\s+(?:the\s+)?{_TITLED}(?P<v>{NAME})",
        rf"\bborn to\s+{_TITLED}(?P<v>{NAME})",
    ),
    "mother": (
        rf"\b(?:son|daughter|child|children)\b{_GAP}\b(?:of|to)\s+(?:the\s+)?{_TITLED}{NAME}{_GAP}{_AND}{_TITLED}(?P<v>{NAME})",
        rf"\bmother(?: was|,| is)?\s+(?:the\s+)?{_TITLED}(?P<v>{NAME})",
        rf"\b(?:by|with) (?:his|her) (?:first |second |third )?wife,?\s+{_TITLED}(?P<v>{NAME})",
    ),
    "spouse": (
        rf"\b(?:wife|husband|spouse|consort|queen consort|widow|married|marriage)\s+(?:of|to|with|was)?\s*(?:the\s+)?{_TITLED}(?P<v>{NAME})",
        rf"\b(?:wife|husband),?\s+(?:the\s+)?{_TITLED}(?P<v>{NAME})",
        rf"\bmarried\b[^.]{{0,40}}?\bto\s+{_TITLED}(?P<v>{NAME})",
    ),
    "child": (
        rf"\b(?:father|mother|parent)\s+(?:of|to)\s+(?:the\s+)?{_TITLED}(?P<v>{NAME})",
        rf"\b(?:son|daughter|child),?\s+{_TITLED}(?P<v>{NAME})",
    ),
    "sibling": (rf"\b(?:brother|sister|sibling)s?\s*(?:of|,|was|is|to)?\s+{_TITLED}(?P<v>{NAME})",),
    "alma mater": (
        rf"\b(?:graduated|graduate|graduating)\s+(?:from|of|at)\s+(?:the\s+)?(?P<v>{NAME})",
        rf"\b(?:studied|educated|study)\b[^.]{{0,60}}?\sat\s+(?:the\s+)?(?P<v>{NAME})",
        rf"\battended\s+(?:the\s+)?(?P<v>{NAME})",
    ),
    "employer": (rf"\b(?:works|worked|working|teaches|taught|professor|employed)\b[^.]{{0,50}}?\s(?:at|for|by)\s+(?:the\s+)?(?P<v>{NAME})",),
    "award": (rf"\b(?:won|received|awarded|recipient of|winner of)\b[^.]{{0,40}}?\s(?:the\s+|an?\s+)?(?P<v>{NAME}(?:Award|Prize|Medal|Grammy|Oscar)\w*(?:\s+for\s+{NAME})?)",),
    "release date": (
        rf"\b(?:released|premiered|published|aired|debuted)\b[^.]{{0,40}}?\b(?:on|in)\s+(?P<v>{DATE})",
        rf"\b(?:is|was)\s+(?:a|an|the)\b{_GAP}\b(?P<v>(?:18|19|20)\d\d)\b{_GAP}\b(?:film|album|song|single|movie|novel|book|series|game|documentary|short|comedy|drama)",
        rf"\b(?:is|was)\s+(?:a|an|the)\b{_GAP}\b(?P<v>(?:18|19|20)\d\d)\b",
        rf"\b(?:first published|launched|founded|established)\b[^.]{{0,40}}?(?P<v>{DATE})",
    ),
    "date founded": (
        rf"\b(?:founded|established|formed|created|started|built|opened|constructed|incorporated|completed|began|launched)\b[^.]{{0,60}}?(?P<v>{DATE})",
        rf"\b(?:in|since)\s+(?P<v>{DATE})",
    ),
}  # fmt: skip
_PARENTHESES = re.compile(r" ?\([^)]{0,200}\)")


@cache
def _patterns(relation: str) -> tuple[re.Pattern[str], ...]:
    """Compiled on first use: compiling all of them takes as long as importing the rest of the room."""
    return tuple(re.compile(pattern) for pattern in PATTERNS.get(relation, ()))


def look_up(relation: str, entity: str, passages: Sequence[Mapping[str, Any]]) -> Fact | None:
    """The value of a relation of an entity, from the passage about it, or None.

    >>> passage = {"title": "James Tyson", "text": "James Tyson (8 April 1819 – 4 December 1898) was an Australian."}
    >>> look_up("date of death", "James Tyson", [passage]).value
    '4 December 1898'
    """
    passage = about(entity, passages)
    if passage is None:
        return None
    text = clean(passage["text"][:MOST_TEXT])
    special = _SPECIAL.get(relation)
    value = special(text) if special else _first(relation, text)
    if not value:
        return None
    return Fact(value, str(passage["title"]), _sentence(text, value))


def about(entity: str, passages: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The passage whose title is the entity: the same words, or the same without "(1941 film)". A person may lack an
    initial or a middle name, as long as two names agree."""
    kind, name = _split_type(entity)
    exact = [p for p in passages if plain(str(p["title"])) == plain(name)]
    bare = [p for p in passages if _bare(str(p["title"])) == _bare(name) and not _other_year(name, str(p["title"]))]
    typed = [p for p in bare if kind and kind in plain(str(p["title"]))]
    for matches in (exact, typed, bare):
        if matches:
            return matches[0]
    tokens = set(_bare(name).split())
    people = [p for p in passages if _same_person(tokens, set(_bare(str(p["title"])).split()))]
    return people[0] if people and not kind else None


def _other_year(name: str, title: str) -> bool:
    """ "Camille (1915 film)" is not "Camille (1926 feature film)"."""
    years, others = (re.findall(r"\b\d{4}\b", " ".join(_PARENTHESES.findall(text))) for text in (name, title))
    return bool(years and others and years != others)


def _same_person(a: set[str], b: set[str]) -> bool:
    small, large = sorted((a, b), key=len)
    return len(small) >= 2 and small <= large and len(large) - len(small) <= 1


def _split_type(entity: str) -> tuple[str, str]:
    match = re.match(rf"^(?:the\s+)?({_TYPES})\s+(?=\S)", entity.strip(), re.IGNORECASE)
    return (match.group(1).lower(), entity.strip()[match.end() :]) if match else ("", entity.strip())


def _bare(title: str) -> str:
    return plain(_PARENTHESES.sub("", title) or title)


def clean(text: str) -> str:
    """Repairs the blanks of the corpus, which writes "Teutberga( died …" and "Hesse- Kassel"."""
    text = re.sub(r"(\w)\(\s*", r"\1 (", text)
    text = re.sub(r"(\w)- (?=[A-Z])", r"\1-", text)
    return re.sub(r"\s+", " ", text)


def _first(relation: str, text: str) -> str | None:
    for pattern in _patterns(relation):
        match = pattern.search(text)
        if match:
            value = re.sub(r"(?:'s|’s)$", "", match["v"].strip(" ,.;"))
            return value if "date" not in relation or parse_date(value) else None
    return None


def _demonym(text: str) -> str | None:
    """The country in "X is a French director", the first sentence that says what something is."""
    match = re.search(r"\b(?:is|was|were|are)\b\s+(?:a|an|the|one)?\b(?P<rest>[^.]*)", text)
    return country_in(match["rest"]) if match else None


def _country(text: str) -> str | None:
    return _demonym(text) or country_in(text)


def _lifespan(text: str) -> str | None:
    born, died = _first("date of birth", text), _first("date of death", text)
    start, end = parse_date(born or ""), parse_date(died or "")
    if not start or not end:
        return None
    return f"{end[0] - start[0] - (end[1:] < start[1:])} years"


def _occupation(text: str) -> str | None:
    match = re.search(
        rf"\b(?:is|was)\s+(?:a|an)\s+(?P<v>{_GAP})(?=\s+(?:who|from|and is|known|born|of|in)\b|[.,])", text
    )
    return match["v"] if match else None


_SPECIAL: dict[str, Callable[[str], str | None]] = {
    "nationality": _demonym,
    "country of origin": _demonym,
    "country": _country,
    "lifespan": _lifespan,
    "occupation": _occupation,
}


def _sentence(text: str, value: str) -> str:
    for sentence in re.split(r"(?<=[.?!])\s+(?=[A-Z])", text):
        if value in sentence:
            return sentence
    return text[:200]
