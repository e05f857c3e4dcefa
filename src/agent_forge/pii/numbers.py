"""One scan for runs of digits; each run is read as SSN, card, telephone or IBAN, whichever its shape allows."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agent_forge.pii import checksums, context, national
from agent_forge.pii.match import Match
from agent_forge.pii.phones import find_phone

# Six digits or more with at most three separators between two of them. It begins with a character class and every
# step is decided by one character, so the search skips fast over prose and takes linear time on anything.
RUN = re.compile(r"[0-9](?:[ ().\-/]{0,3}[0-9]){5,}")
_GROUP = re.compile(r"[0-9]+")
_SSN = re.compile(r"([0-9]{3})([-. /]| - )([0-9]{2})\2([0-9]{4})(?![0-9])")
_CARD_SHAPES = re.compile(
    r"(?:4(?: 4){2,3}(?: [1-4])?|4 6 [45]|6 13|8 8|4 4 5|4 5 6|4 5 5|4 7 4|6 6|6 4 6|5 5 5|1[2-9])\Z"
)
_IBAN = re.compile(r"[A-Za-z]{2}[0-9]{2}(?:[ \-]?[A-Za-z0-9]){8,30}")
_IBAN_GROUPS = re.compile(r"[A-Za-z0-9]{4}(?: [A-Z0-9]{4}){2,7}(?: [A-Z0-9]{1,3})?(?![A-Za-z0-9])|[A-Za-z0-9]+")
_IBAN_HEAD = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}[0-9]{2}")
_LONGEST_RUN = 4096
Span = tuple[int, int]


def find_numbers(text: str) -> Iterator[Match]:
    """SSN, CARD, PHONE and IBAN in `text`, whose digits and dashes are ASCII (see `fold`)."""
    previous: Match | None = None
    for run in RUN.finditer(text):
        start, end = run.span()
        yield from _ibans(text, start, end)
        if end - start > _LONGEST_RUN and text[start:end].isdigit():
            continue
        for match in _read_run(text, start, end, previous):
            previous = match if match.type == "PHONE" else previous
            yield match


def _read_run(text: str, start: int, end: int, previous: Match | None) -> Iterator[Match]:
    groups = [group.span() for group in _GROUP.finditer(text, start, end)]
    at, labels = 0, True
    while at < len(groups):
        bracket = text[groups[at][0] - 1 : groups[at][0]] in tuple("(<[")  # "Speaker 2 (13802135691)"
        match = _read_group(text, groups, at, previous, labels or bracket) if _begins(text, groups, at) else None
        labels = match is not None and match.type == "PHONE"  # a label counts for the number that follows it at once
        if match is None:
            at += 1
            continue
        yield match
        previous = match if labels else previous
        while at < len(groups) and groups[at][0] < match.end:
            at += 1


def _begins(text: str, groups: list[Span], at: int) -> bool:
    """A number can begin at this group: no letter before it, no group joined to it by a dash or a dot."""
    start = groups[at][0]
    if at and groups[at - 1][1] < start:
        between = text[groups[at - 1][1] : start]
        return " " in between or "/" in between or "(" in between
    head = text[max(0, start - 2) : start]
    if not head:
        return True
    last = head[-1]
    if context.joins(last) or last == "_":
        return False
    return not (last in ".-" and len(head) == 2 and (head[0].isalnum() or head[0] in "_."))


def _read_group(text: str, groups: list[Span], at: int, previous: Match | None, labels: bool) -> Match | None:
    start = groups[at][0]
    signed = start > 0 and text[start - 1] == "+"
    match = None
    if not signed:
        match = national.find_worded(text, start, groups[at : at + 6]) or _ssn(text, start) or _card(text, groups, at)
        match = match or national.find_strong(text, start, groups[-1][1])
    if match is not None:
        return match
    lead = start
    while lead and start - lead < 2 and text[lead - 1] in "(+":
        lead -= 1
    if lead < start and text[lead] == "+" and text[lead - 1 : lead].isalnum():
        lead = start
    limit = groups[min(at + 9, len(groups) - 1)][1]
    for begin in range(lead, start + 1):
        phone = find_phone(text, begin, limit, previous, labels=labels)
        if phone is not None:
            return phone
    return None


def _ssn(text: str, start: int) -> Match | None:
    hit = _SSN.match(text, start)
    if hit is None:
        bare = text[start : start + 9]
        whole = len(bare) == 9 and bare.isdigit() and not context.joins(text[start + 9 : start + 10])
        if whole and checksums.is_ssn(bare[:3], bare[3:5], bare[5:]) and context.ssn_context(text, start):
            return Match("SSN", start, start + 9, bare, bare in checksums.SAMPLE_SSNS)
        return None
    area, separator, group, serial = hit.groups()
    end = hit.end()
    tail = text[end : end + 2]
    if context.joins(tail[:1]) or tail[:1] == "_" or (tail[:1] in ("-", ".") and tail[1:].isdigit()):
        return None
    if not checksums.is_ssn(area, group, serial) or context.goods_label(text, start):
        return None
    # "Suite 680 36 4022 Oakridge Drive": spaces alone are weak evidence
    weak = separator != "-" and not context.ssn_context(text, start)
    if weak and separator not in ". ":
        return None
    if weak and (context.phone_context(text, start, end) or context.address_around(text, start, end)):
        return None
    return Match("SSN", start, end, hit.group(), area + group + serial in checksums.SAMPLE_SSNS)


def _card(text: str, groups: list[Span], at: int) -> Match | None:
    """The longest card number that begins at this group."""
    start, stop = groups[at]
    if stop - start < 4 or text[start] == "7":
        return None  # no network begins with 7, nobody writes a card in smaller groups
    digits, last = "", start
    sizes: list[str] = []
    separators: set[str] = set()
    best: Match | None = None
    for begin, stop in groups[at : at + 8]:
        if sizes:
            separators.add(text[last:begin])
        digits, last = digits + text[begin:stop], stop
        sizes.append(str(stop - begin))
        if len(digits) > 19:
            break
        if len(digits) >= 12 and _card_ends(text, stop) and checksums.is_card(digits):
            usual = _CARD_SHAPES.match(" ".join(sizes)) and (len(separators) < 2 or sizes == ["4"] * 4)
            other = _is_long_integer(text, start, stop) or context.goods_label(text, start)
            if (usual and not other) or context.card_context(text, start):
                best = Match("CARD", start, stop, text[start:stop], checksums.is_test_card(digits))
    return best


def _is_long_integer(text: str, start: int, end: int) -> bool:
    """Seventeen digits or more as one element of a list, or as an argument: 64-bit numbers of source code."""
    if end - start < 17 or not text[start:end].isdigit():
        return False
    return text[max(0, start - 3) : start].rstrip(" ")[-1:] in tuple("[(,=-") and text[end : end + 1] in tuple(",)];\n")


def _card_ends(text: str, end: int) -> bool:
    tail = text[end : end + 2]
    if context.joins(tail[:1]) or tail[:1] == "_":
        return False
    return not (tail[:1] in ("-", ".") and tail[1:].isdigit())


def _ibans(text: str, start: int, end: int) -> Iterator[Match]:
    """An IBAN around this run: its country and check digits stand at most 14 characters before."""
    for head in _IBAN_HEAD.finditer(text, max(0, start - 14), start + 2):
        match = _iban(text, head.start())
        if match is not None and match.end > start:
            yield match


def _iban(text: str, start: int) -> Match | None:
    hit = _IBAN.match(text, start, start + 48)
    if hit is None:
        return None
    size = checksums.iban_length(text[start : start + 2].upper())
    at, compact = start, ""
    while at < hit.end() and len(compact) < (size or 34):
        compact += text[at] if text[at].isalnum() else ""
        at += 1
    if checksums.is_iban(compact.upper()) and not text[at : at + 1].isalnum():
        return Match("IBAN", start, at, text[start:at], checksums.is_sample_iban(compact.upper()))
    token = _IBAN_GROUPS.match(hit.group())
    if token and context.iban_context(text, start) and checksums.mod97(token.group().replace(" ", "").upper()):
        return Match("IBAN", start, start + token.end(), token.group())
    return None
