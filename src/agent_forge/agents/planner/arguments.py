"""The arguments that a clause contains for a tool: typed by its schema and copied from the words, never invented.

A clause offers phrases: quoted text, numbers, dates, addresses, paths, names, options of an enumeration. A parameter
takes a phrase of its kind, at best one that the clause marks for it: "from Oslo" is an origin, "column sales" a column.
"Oslo and Rome" for one city are two calls. A required parameter that nothing fits stays open; `checking` reports it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any

from agent_forge.agents.grounding import CURRENCIES, MONTH, Mentions
from agent_forge.agents.language import VERBS
from agent_forge.agents.planner.tools import ToolSpec, split_name
from agent_forge.tasks.words import STOP_WORDS, content_words, stem, word_set

MOST_PHRASES = 1000  # in one clause

# What the name of a parameter says about its value.
KINDS = {
    "path": word_set("path file filename filepath folder directory"),
    "url": word_set("url uri link website"),
    "email": word_set("email mail"),
    "date": word_set("date day deadline birthday"),
    "time": word_set("time hour"),
    "currency": word_set("currency"),
    "expression": word_set("expression formula"),
}
FREE = word_set(
    """text message body content contents query question prompt note notes comment description caption title
    subject summary code sentence paragraph words"""
)
_FORMATS = {"date": "date", "time": "time", "email": "email", "uri": "url", "url": "url"}
_FAMILIES = {
    "from": word_set("origin source from start departure departing sender"),
    "to": word_set("destination target to recipient receiver end arrival language into"),
    "on": word_set("date day"),
    "at": word_set("time hour"),
    "in": word_set("city location place country region town column language unit"),
}
_PREPOSITIONS = word_set("from to into on at in for of about with by named called titled near around between")
_ARTICLES = word_set("a an the my our your his her its their this that these those some any last next new old")
_NAMING = word_set("of is as named called")
_CONNECTORS = word_set("of de del la le da do dos di van von der den el al")
_RELATIVE_DAYS = word_set("today tonight tomorrow yesterday monday tuesday wednesday thursday friday saturday sunday")

_MONTHS = "|".join(sorted(MONTH, key=len, reverse=True))
_PATTERNS = {
    "quoted": re.compile(r"\"([^\"]+)\"|“([^“”]+)”|(?<!\w)'([^']+)'(?!\w)"),
    "url": re.compile(r"https?://[^\s\"'<>]+[^\s\"'<>.,;:!?)]"),
    "email": re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"),
    "path": re.compile(
        r"(?<![\w./~-])(?:~?/)?(?:[\w.-]{1,128}/){0,32}[\w-][\w.-]{0,126}\.[A-Za-z]\w{0,5}(?![\w/])"
        r"|(?<![\w./~-])~?/[\w./-]{1,512}[\w-]"
    ),
    "date": re.compile(
        rf"\b\d{{4}}-\d{{1,2}}-\d{{1,2}}\b|\b\d{{1,2}}[/.]\d{{1,2}}[/.]\d{{4}}\b"
        rf"|\b(?:{_MONTHS})\b\.? +\d{{1,2}}(?:st|nd|rd|th)?(?:,? +\d{{4}})?\b"
        rf"|\b\d{{1,2}}(?:st|nd|rd|th)?(?: +of)? +(?:{_MONTHS})\b(?:,? +\d{{4}}\b)?"
        rf"|\b(?:{'|'.join(_RELATIVE_DAYS)})\b",
        re.IGNORECASE,
    ),
    "time": re.compile(r"\b\d{1,2}(?:[:.]\d{2})? ?[ap]\.?m\b|\b\d{1,2}:\d{2}\b|\b(?:noon|midnight)\b", re.IGNORECASE),
    "expression": re.compile(r"(?<![\w.,])[-(]{0,8}\d[\d.,]{0,40}(?: ?[-+*/^%()] ?[\d.(),]{1,40}){1,64}"),
}  # fmt: skip
_WORD = re.compile(r"[^\W_][\w'’&.-]*[^\W_]|[^\W_]")
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_CLOCK = re.compile(r"\d{2}:\d{2}")
_LIST = re.compile(r",?\s*(?:and|as well as|plus|or|&)\s*|,\s*")


@dataclass(frozen=True, slots=True)
class Phrase:
    """A part of a clause that may be a value: where it is, what it is, and the words right before it."""

    start: int
    end: int
    text: str
    kind: str  # a key of _PATTERNS, "number", "name", "word" or "option"
    before: tuple[str, ...] = ()  # the nearest word last, articles left out
    articled: bool = False  # "the old report" describes something: it does not name it
    value: Any = None  # of a number


def arguments(
    tool: ToolSpec, clause: str, references: Sequence[str] = (), *, weak: bool = True
) -> list[dict[str, Any]]:
    """The calls of a tool that a clause asks for, as arguments: nearly always one.

    `references` to earlier results go to required parameters that the words leave open. Without `weak`, only phrases
    count that clearly are values: quoted, of the parameter's own kind, or marked for it.

    >>> from agent_forge.agents.tools import tool
    >>> @tool
    ... def get_weather(city: str) -> str:
    ...     "Gets the weather of a city."
    ...     return city
    >>> arguments(get_weather, "Get the weather in Oslo and Rome")
    [{'city': 'Oslo'}, {'city': 'Rome'}]
    >>> arguments(get_weather, "Get the weather")
    [{}]
    """
    properties = {name: _schema(each) for name, each in (tool.schema.get("properties") or {}).items()}
    required = [name for name in tool.schema.get("required") or () if name in properties]
    phrases = _phrases(tool, clause, properties)
    taken, args = _assign(properties, required, phrases, references, weak=weak)
    several: tuple[str, list[Any]] | None = None
    for name, schema in properties.items():
        if name not in taken:
            continue
        values = [_value(each, schema) for each in _listed(taken[name], phrases, taken, clause)]
        if schema.get("type") == "array":
            args[name] = values
        else:
            args[name] = values[0]
            if len(values) > 1 and name in required and several is None:
                several = name, values
    ordered = {name: args[name] for name in properties if name in args}
    if several is None:
        return [ordered]
    return [{**ordered, several[0]: value} for value in several[1]]


def kind_of(name: str, schema: Mapping[str, Any]) -> str:
    """What a parameter's name, format and description say about its value; "free" for text, "any" if they say nothing.

    >>> kind_of("file_path", {}), kind_of("to", {"description": "email address of the recipient"}), kind_of("city", {})
    ('path', 'email', 'any')
    """
    if schema.get("format") in _FORMATS:
        return _FORMATS[str(schema["format"])]
    words = _name_words(name)
    for kind, names in KINDS.items():
        if not names.isdisjoint(words):
            return kind
    described = str(schema.get("description") or "").lower()
    if "email address" in described or "e-mail address" in described:
        return "email"
    if "iso 4217" in described or "currency code" in described:
        return "currency"
    return "free" if not FREE.isdisjoint(words) else "any"


@lru_cache(maxsize=4096)
def _name_words(name: str) -> frozenset[str]:
    return frozenset(split_name(name).lower().split())


def _schema(schema: Any) -> Mapping[str, Any]:
    """The schema itself; of `X | None` the schema of X."""
    if not isinstance(schema, Mapping):
        return {}
    variants = [each for each in schema.get("anyOf") or () if isinstance(each, Mapping) and each.get("type") != "null"]
    return {**schema, **variants[0]} if len(variants) == 1 else schema


def _open_first(properties: Mapping[str, Mapping[str, Any]], names: list[str]) -> list[str]:
    """Parameters in the order in which they get earlier results: lists and objects, then text, then the others."""

    def place(name: str) -> int:
        if properties[name].get("type") in ("array", "object"):
            return 0
        return 1 if kind_of(name, properties[name]) == "free" else 2

    return sorted(names, key=place)


# The phrases of a clause


def _phrases(tool: ToolSpec, clause: str, properties: Mapping[str, Mapping[str, Any]]) -> list[Phrase]:
    """What the clause offers, in order, without overlaps: the more specific kind wins."""
    found: list[Phrase] = []
    masked = clause
    options = [str(option) for each in properties.values() for option in _options(each) if isinstance(option, str)]
    kinds = {kind_of(name, each) for name, each in properties.items()}
    for kind, pattern in _PATTERNS.items():
        if kind == "expression" and kind not in kinds:
            continue
        for match in pattern.finditer(masked):
            text = next(filter(None, match.groups()), match.group()) if kind == "quoted" else match.group()
            found.append(Phrase(match.start(), match.end(), text, kind))
        masked = pattern.sub(lambda match: "\x00" * len(match.group()), masked)
    lower = masked.lower()
    said = [each for each in dict.fromkeys(options) if re.split(r"[_ -]", each.lower())[0] in lower]
    for option in sorted(said, key=len, reverse=True):
        pattern = re.compile(rf"(?<!\w){re.escape(option).replace('_', '[_ -]')}(?!\w)", re.IGNORECASE)
        for match in pattern.finditer(masked):
            found.append(Phrase(match.start(), match.end(), match.group(), "option", value=option))
        masked = pattern.sub(lambda match: "\x00" * len(match.group()), masked)
    known = OwnWords.of(tool, properties)
    found += islice(_runs(masked, known), MOST_PHRASES + 1)
    if len(found) > MOST_PHRASES:
        return []  # nobody says that many values: it stays open
    marks = sorted(found, key=lambda phrase: phrase.start)
    return [_with_context(phrase, clause) for phrase in marks]


@dataclass(frozen=True, slots=True)
class OwnWords:
    """Stems of the words that speak of the tool and its parameters: they are no values. A description may name some
    ("for example San Francisco"), so of the capitalised ones only those of names count."""

    names: frozenset[str]
    all: frozenset[str]

    @classmethod
    def of(cls, tool: ToolSpec, properties: Mapping[str, Mapping[str, Any]]) -> OwnWords:
        names = [split_name(tool.name), *map(split_name, properties)]
        texts = [tool.description, *(str(each.get("description") or "") for each in properties.values())]
        named = frozenset(word for text in names for word in content_words(text))
        return cls(named, named.union(word for text in texts for word in content_words(text)))


def _runs(masked: str, known: OwnWords) -> Iterator[Phrase]:
    """Runs of capitalised words, runs of other words that are neither grammar nor about the tool, and numbers."""
    tokens = list(_WORD.finditer(masked))
    at = 0
    while at < len(tokens):
        word = tokens[at].group()
        numbers = Mentions(word).numbers
        if numbers and (word[0].isdigit() or not word[0].isupper()) and word.lower() not in MONTH:
            end = at + 1
            while (
                end < len(tokens)
                and Mentions(tokens[end].group()).numbers
                and _adjacent(masked, tokens[end - 1], tokens[end])
            ):
                end += 1  # "two hundred"
            sign = masked[tokens[at].start() - 1 : tokens[at].start()]
            start = tokens[at].start() - (
                sign in ("-", "−") and masked[tokens[at].start() - 2 : tokens[at].start() - 1] in ("", " ")
            )
            text = masked[start : tokens[end - 1].end()]
            yield Phrase(start, tokens[end - 1].end(), text, "number", value=Mentions(text).numbers[-1])
            at = end
            continue
        kind = _word_kind(word, known, first=at == 0)
        if kind is None:
            at += 1
            continue
        end = at + 1
        while end < len(tokens) and _adjacent(masked, tokens[end - 1], tokens[end]):
            following = tokens[end].group()
            if _word_kind(following, known, first=False) == kind:
                end += 1
            elif (
                kind == "name"
                and following in _CONNECTORS
                and end + 1 < len(tokens)
                and tokens[end + 1].group()[:1].isupper()
                and _adjacent(masked, tokens[end], tokens[end + 1])
            ):
                end += 2
            else:
                break
        yield Phrase(
            tokens[at].start(), tokens[end - 1].end(), masked[tokens[at].start() : tokens[end - 1].end()], kind
        )
        at = end


def _word_kind(word: str, known: OwnWords, *, first: bool) -> str | None:
    lower = word.lower()
    if lower in STOP_WORDS or stem(lower) in known.names or (first and (lower in VERBS or stem(lower) in known.all)):
        return None
    if word[0].isupper() and not (len(word) == 1 and lower == "i"):
        return "name"
    if lower in VERBS or lower in _PREPOSITIONS or lower in _ARTICLES or stem(lower) in known.all or word[0].isdigit():
        return None
    return "word"


def _adjacent(text: str, left: re.Match[str], right: re.Match[str]) -> bool:
    return text[left.end() : right.start()] == " "


def _with_context(phrase: Phrase, clause: str) -> Phrase:
    """The phrase with up to three words before it."""
    words = [word.lower() for word in _WORD.findall(clause[max(0, phrase.start - 60) : phrase.start])]
    articled = bool(words) and words[-1] in _ARTICLES
    before = tuple(word for word in words if word not in _ARTICLES)[-3:]
    return replace(phrase, before=before, articled=articled)


# Which parameter takes which phrase


def _assign(
    properties: Mapping[str, Mapping[str, Any]],
    required: Sequence[str],
    phrases: Sequence[Phrase],
    references: Sequence[str],
    *,
    weak: bool,
) -> tuple[dict[str, Phrase], dict[str, Any]]:
    """The best phrase for each parameter, each phrase once: the clearest pairs first, then in the order of both; and
    the parameters that get an earlier result, which is likelier than a phrase that merely could be meant."""
    pairs = []
    for position, (name, schema) in enumerate(properties.items()):
        for index, phrase in enumerate(phrases):
            fit = _fit(name, schema, phrase)
            if fit is not None and (name in required or fit >= 3):
                pairs.append((-fit, name not in required, position, index, name, phrase))
    taken: dict[str, Phrase] = {}
    referring: dict[str, Any] = {}
    used: set[int] = set()
    pairs.sort(key=lambda pair: pair[:4])
    for strong in (True, False) if weak else (True,):
        for fit, _, _, index, name, phrase in pairs:
            if (fit < 0) is strong and name not in taken and name not in referring and index not in used:
                taken[name] = phrase
                used.add(index)
        if strong:
            left = _open_first(properties, [name for name in required if name not in taken])
            referring = dict(zip(left, references, strict=False))
    return taken, referring


def _fit(name: str, schema: Mapping[str, Any], phrase: Phrase) -> int | None:
    """How well a phrase fits a parameter; None if it cannot be its value."""
    base = _kind_fit(name, schema, phrase)
    if base is None:
        return None
    names = _name_words(name)
    last = phrase.before[-1] if phrase.before else ""
    told = phrase.before[-2:-1] if last in _NAMING else phrase.before[-1:]  # "column of", "subject"
    if names & set(told) - _PREPOSITIONS:
        return base + 4
    marked = {"into": "to"}.get(last, last)
    own = {preposition for preposition, words in _FAMILIES.items() if names & words}
    if marked in own:
        return base + 2
    if (marked in ("from", "to") and own & {"from", "to"}) or (marked in ("on", "at") and own & {"on", "at"}):
        return None  # "from Oslo" is no destination
    return base


def _kind_fit(name: str, schema: Mapping[str, Any], phrase: Phrase) -> int | None:
    """3: of the parameter's own kind. 2: quoted. 1: a name. 0: plain words after a preposition."""
    options = _options(schema)
    if options:
        return 3 if phrase.kind == "option" and phrase.value in options else None
    kind, wanted = schema.get("type"), kind_of(name, schema)
    if kind in ("integer", "number"):
        whole = phrase.kind == "number" and (kind == "number" or phrase.value == int(phrase.value))
        return 1 if whole else None
    if kind == "array":
        inner = _schema(schema.get("items"))
        return _kind_fit(name, inner, phrase) if inner.get("type") in ("string", "integer", "number") else None
    if kind not in ("string", None) or (kind is None and schema):
        return None
    if phrase.kind == wanted and phrase.kind != "quoted":
        return 3
    if phrase.kind == "quoted":
        return 2
    if wanted == "currency":
        named = any(phrase.text.lower() in names.split() for names in CURRENCIES.values())
        return 3 if re.fullmatch(r"[A-Z]{3}", phrase.text) or named else None
    if wanted not in ("any", "free"):
        return None
    if phrase.kind in ("url", "email", "path") and wanted == "any":
        return 0
    if phrase.kind == "name":
        return 1 if wanted == "any" and not phrase.articled else 0
    if phrase.kind == "word" and not phrase.articled:
        return 0 if wanted == "free" or (phrase.before and phrase.before[-1] in _PREPOSITIONS) else None
    return None


def _options(schema: Mapping[str, Any]) -> list[Any]:
    return [*(schema.get("enum") or ()), *([schema["const"]] if "const" in schema else [])]


def _listed(first: Phrase, phrases: Sequence[Phrase], taken: Mapping[str, Phrase], clause: str) -> list[Phrase]:
    """The phrase and those of its kind that are listed with it: "Oslo, Rome and Lima"."""
    others = [each for each in phrases if each.kind == first.kind and each not in taken.values()]
    group, joints = [first], []
    for each in others:
        if each.start < group[-1].end:
            continue
        joint = clause[group[-1].end : each.start]
        if not _LIST.fullmatch(joint):
            break
        group.append(each)
        joints.append(joint.strip())
    if len(group) > 1 and all(joint == "," for joint in joints):  # "Austin, Texas" is one place
        return [Phrase(first.start, group[-1].end, clause[first.start : group[-1].end], first.kind)]
    return group


def _value(phrase: Phrase, schema: Mapping[str, Any]) -> Any:
    """The phrase as the schema wants it."""
    if schema.get("type") == "array":
        return _value(phrase, _schema(schema.get("items")))
    if phrase.kind == "option":
        return phrase.value
    if phrase.kind == "number":
        return phrase.value if schema.get("type") in ("integer", "number") else phrase.text
    forms = Mentions(phrase.text).forms
    if phrase.kind == "date" and not _ISO_DATE.fullmatch(phrase.text):
        return next((form for form in forms if _ISO_DATE.fullmatch(form)), phrase.text)
    if phrase.kind == "time" and not _CLOCK.fullmatch(phrase.text):
        return next((form for form in forms if _CLOCK.fullmatch(form)), phrase.text)
    code = next((code for code, names in CURRENCIES.items() if phrase.text.lower() in names.split()), None)
    return code if code is not None and phrase.kind == "word" else phrase.text
