"""What only its label gives away: dates of birth, passports, driver's licences. And crypto addresses."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agent_forge.pii import checksums
from agent_forge.pii.match import Match

_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|"
    r"nov(?:ember)?|dec(?:ember)?)"
)
_DAY, _MONTH_NUMBER = r"(?:0?[1-9]|[12]\d|3[01])", r"(?:0?[1-9]|1[0-2])"
_YEAR = r"(?:1[89]|20)\d{2}"
_DATE = (
    rf"(?:{_YEAR}[\-/.]\d{{1,2}}[\-/.]\d{{1,2}}|(?:{_DAY}(?P<a>[\-/. ]){_MONTH_NUMBER}(?P=a)|"
    rf"{_MONTH_NUMBER}(?P<b>[\-/. ]){_DAY}(?P=b))(?:{_YEAR}|\d{{2}})(?!\d)|"
    rf"{_MONTH}\.? \d{{1,2}}(?:st|nd|rd|th)?,? {_YEAR}|\d{{1,2}}(?:st|nd|rd|th)?(?: of)? {_MONTH}\.?,? {_YEAR})"
)
_BIRTH = re.compile(
    rf"(?:birth(?:day|date)?|born|d\.?o\.?b\.?)(?![A-Za-z])(?:(?!//)[^0-9\n]){{0,40}}?\n?(?<!\d)(?P<value>{_DATE})(?!\d)",
    re.IGNORECASE,
)
_BIRTH_OF = re.compile(r"(?:my|his|her|their|the) (?:date of )?\Z", re.IGNORECASE)
_BIRTH_AFTER = re.compile(
    rf"(?<!\d)(?P<value>{_DATE})(?:,? (?:is|was|as))? (?:my|his|her|their|the) (?:date of )?birth", re.IGNORECASE
)
_NUMBER_LINK = (
    r"s?(?:[ ]?(?:number|num|no|nr|id|#)s?\.?)?[\s:#=\"'(]{0,4}"
    r"(?:(?:is|was|are|were)[\s:]{1,2})?(?:numbers?[\s:]{1,2})?"
)
_PASSPORT = re.compile(
    rf"passport{_NUMBER_LINK}(?P<value>(?=[A-Z0-9]{{0,4}}\d{{4}})[A-Z0-9]{{6,10}})(?![A-Za-z0-9])", re.IGNORECASE
)
_DRIVER = re.compile(r"driv(?:er|ing)(?:['’]?s)?[\s_\-]{0,2}\Z", re.IGNORECASE)
_LICENCE = re.compile(
    rf"licen[cs]e{_NUMBER_LINK}(?P<value>(?=[A-Z\-]{{0,6}}\d)[A-Z0-9][A-Z0-9\-]{{4,18}}[A-Z0-9])(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_PAPERS = ("PASSPORT", "DRIVER_LICENSE")
# Another one of the same kind: "Passports: A and B".
_NEXT_PAPER = re.compile(
    r"[\"')]?(?:\s?[,;/&]\s?|\s)(?:and\s|or\s)?[\"'(]?(?P<value>(?=[A-Z0-9]{0,4}\d{4})[A-Z0-9]{6,18})(?![A-Za-z0-9])"
)
_NO_LETTER = re.compile(r"(?<![A-Za-z])\Z")  # newborn and reborn say nothing about a date
# word: type, pattern from the word on, what must stand before the word
LABELS: dict[str, tuple[str, re.Pattern[str], re.Pattern[str] | None]] = {
    "birth": ("DATE_OF_BIRTH", _BIRTH, None),
    "born": ("DATE_OF_BIRTH", _BIRTH, _NO_LETTER),
    "dob": ("DATE_OF_BIRTH", _BIRTH, None),
    "passport": ("PASSPORT", _PASSPORT, None),
    "licen": ("DRIVER_LICENSE", _LICENCE, _DRIVER),
}
_ETHEREUM = re.compile(r"0x(?<![A-Za-z0-9]0x)[0-9a-fA-F]{40}(?![A-Za-z0-9])")
_BECH32 = re.compile(r"(?<![A-Za-z0-9])(?:bc1|tb1|ltc1)[02-9ac-hj-np-z]{20,90}(?![A-Za-z0-9])", re.IGNORECASE)
_REACH = 48  # how far a label and its value may lie apart
_BASE58 = re.compile(r"[13][1-9A-HJ-NP-Za-km-z]{25,34}(?![A-Za-z0-9])")


def find_labelled(text: str, word: str, at: int) -> Iterator[Match]:
    """What the label `word` at `at` introduces: DATE_OF_BIRTH, PASSPORT or DRIVER_LICENSE."""
    kind, pattern, lead = LABELS[word]
    labelled = lead is None or lead.search(text, max(0, at - 12), at)  # `license` counts only after `driver's`
    hit = pattern.match(text, at, at + 2 * _REACH) if labelled else None
    if hit is None and word == "birth" and _BIRTH_OF.search(text, max(0, at - 16), at):
        hit = _BIRTH_AFTER.search(text, max(0, at - _REACH), at + 5)
    while hit is not None and sum(map(str.isdigit, hit["value"])) >= 4:
        yield Match(kind, hit.start("value"), hit.end("value"), hit["value"])
        hit = _NEXT_PAPER.match(text, hit.end("value"), hit.end("value") + _REACH) if kind in _PAPERS else None


def find_base58(text: str) -> Iterator[Match]:
    """Legacy Bitcoin addresses whose checksum is right."""
    for hit in _BASE58.finditer(text):
        start = hit.start()
        if not text[max(0, start - 1) : start].isalnum() and checksums.is_base58check(hit.group()):
            yield Match("CRYPTO", start, hit.end(), hit.group())


def find_bech32(text: str) -> Iterator[Match]:
    """Segwit and taproot addresses whose checksum is right; those of the test net are reserved."""
    for hit in _BECH32.finditer(text):
        if checksums.is_bech32(hit.group()):
            yield Match("CRYPTO", hit.start(), hit.end(), hit.group(), hit.group().startswith("tb1"))


def find_ethereum(text: str) -> Iterator[Match]:
    """Forty hexadecimal digits behind 0x."""
    for hit in _ETHEREUM.finditer(text):
        yield Match("CRYPTO", hit.start(), hit.end(), hit.group())
