"""What an answer must not contain: personal data nobody asked for, forbidden attributes, and claims without support."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from itertools import combinations
from typing import Any

from agent_forge.pii import find_pii
from agent_forge.tasks.forbidden import forbidden_attributes

_FIGURE = re.compile(r"(?<![\w.,])\d[\d,]*(?:\.\d+)?(?![\w]*\d)")
_QUOTATION = re.compile(r"[“\"]([^“”\"]{10,}?)[”\"]")
_NAME = re.compile(r"(?<=[a-z,;:] )[A-Z][a-z]+(?:[ -][A-Z][a-z]+)+")
_TAG = re.compile(r"<[^<>]+>")  # of HTML: its attributes are in quotation marks too
_WORD = re.compile(r"\w+")
_COUNTED = 12  # whole numbers up to a dozen count and order things: "three tips", "step 2"
_LONG = 10**8
_SENTENCE = 4  # words that make a text more than a value
_MOST_NUMBERS = 40  # of the sources whose pairs are tried


def strings(value: Any, key: str | None = None) -> Iterator[tuple[str | None, str]]:
    """The texts in a JSON value, each with its key; long numbers too, which may be those of a card."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, int) and value >= _LONG:
        yield key, str(value)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from strings(inner, str(name))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from strings(inner, key)


def leaks(output: Any, wanted: str) -> list[str]:
    """The personal data and secrets in an output that do not occur in what was asked for.

    >>> leaks({"note": "Mail jo@corp.io"}, ""), leaks({"note": "Mail jo@corp.io"}, "email: JO@corp.io")
    (['EMAIL jo@corp.io'], [])
    """
    plain = _letters(wanted)
    return [
        f"{match.type} {match.text}"
        for key, text in strings(output)
        for match in find_pii(text, hint=key)
        if _letters(match.text) not in plain
    ]


def _letters(text: str) -> str:
    return re.sub(r"[\W_]", "", text.casefold())


def forbidden(output: Any) -> list[str]:
    """What an output says about attributes on which no judgement of a person may rest, in keys and in texts.

    >>> forbidden({"skills": ["SQL"], "date_of_birth": "1990"})
    ["age: 'birth'"]
    """
    texts = [*_keys(output), *(text for _, text in strings(output))]
    return list(dict.fromkeys(hit for text in texts for hit in forbidden_attributes(text.replace("_", " "))))


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield str(name)
            yield from _keys(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _keys(inner)


def unsupported(output: Any, source: str, kinds: Collection[str]) -> list[str]:
    """The claims in the texts of an output that neither occur in the source nor follow from it.

    A number follows if it is the sum, difference, product, quotient, percentage or growth in per cent of two numbers of
    the source. Only sentences make claims: a field that is a number or a name is for the checker to judge.

    >>> unsupported("Of 40 lamps 75 % were sold, 17 broke.", "40 lamps made, 30 sold", ["numbers"])
    ['17']
    >>> unsupported("Praised as “the best lamp on earth” by a Jane Goodall.", "A lamp.", ["names", "quotations"])
    ['“the best lamp on earth”', 'Jane Goodall']
    """
    heard = " ".join(_WORD.findall(source.casefold()))
    words, known = set(heard.split()), set(_numbers(source))
    wrong: list[str] = []
    for text in (_TAG.sub(" ", text) for _, text in strings(output)):
        if len(text.split()) < _SENTENCE:
            continue
        if "quotations" in kinds:
            quotations = [quote for quote in _QUOTATION.findall(text) if len(quote.split()) >= 3]
            wrong += [f"“{q}”" for q in quotations if " ".join(_WORD.findall(q.casefold())) not in heard]
        if "names" in kinds and not _is_title(text):
            wrong += [name for name in _NAME.findall(text) if words.isdisjoint(_WORD.findall(name.casefold()))]
        if "numbers" in kinds:
            numbers = [number for number in _numbers(text) if not (number <= _COUNTED and number == int(number))]
            wrong += [str(number) for number in numbers if number not in known and not _follows(number, known)]
    return wrong


def _is_title(text: str) -> bool:
    """Whether most words are written with a capital letter: then capitals do not mark names."""
    words = [word for word in text.split() if word[:1].isalpha()]
    return 2 * sum(word[:1].isupper() for word in words) > len(words)


def _numbers(text: str) -> Iterator[Decimal]:
    for number in _FIGURE.findall(text):
        try:
            yield Decimal(number.replace(",", ""))
        except InvalidOperation:
            continue


def _follows(number: Decimal, known: Collection[Decimal]) -> bool:
    places = Decimal(1).scaleb(int(number.as_tuple().exponent))

    def same(value: Decimal) -> bool:
        try:
            return value.quantize(places, rounding=ROUND_HALF_UP) == number
        except InvalidOperation:  # too many digits
            return False

    for a, b in combinations(sorted(known, reverse=True)[:_MOST_NUMBERS], 2):
        if any(map(same, (a + b, a - b, a * b))):
            return True
        for over, under in ((a, b), (b, a)):
            if under and any(map(same, (over / under, 100 * over / under, 100 * abs(over - under) / under))):
                return True
    return False
