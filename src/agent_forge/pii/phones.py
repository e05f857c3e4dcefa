"""Telephone numbers: the written forms, and which of them need a word beside them to be believed.

The lengths per calling code are those of libphonenumber's metadata (a test compares the table with the package). They
cut a number that runs into the next one; they do not reject: people write down numbers that are not in service.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

from agent_forge.pii import context
from agent_forge.pii.match import Match

# calling code: most digits of a national number
_LENGTHS_TEXT = (
    "1:10 7:14 20:10 27:10 30:12 31:11 32:9 33:9 34:9 36:9 39:12 40:9 41:12 43:13 44:10 45:8 46:12 47:8 48:10 "
    "49:15 51:9 52:10 53:10 54:11 55:11 56:11 57:11 58:10 60:10 61:12 62:17 63:13 64:10 65:11 66:13 81:17 "
    "82:14 84:10 86:12 90:13 91:13 92:12 93:9 94:9 95:10 98:10 211:9 212:9 213:9 216:8 218:9 220:9 221:9 "
    "222:8 223:8 224:9 225:10 226:8 227:8 228:8 229:10 230:10 231:9 232:8 233:9 234:14 235:8 236:8 237:9 "
    "238:7 239:7 240:9 241:8 242:9 243:10 244:9 245:9 246:7 247:6 248:7 249:9 250:9 251:9 252:9 253:8 254:10 "
    "255:9 256:9 257:8 258:9 260:9 261:9 262:9 263:10 264:9 265:9 266:8 267:10 268:9 269:7 290:5 291:7 297:7 "
    "298:6 299:6 350:8 351:9 352:11 353:10 354:9 355:9 356:8 357:8 358:12 359:12 370:8 371:8 372:10 373:8 "
    "374:8 375:11 376:9 377:9 378:10 380:10 381:12 382:9 383:12 385:9 386:8 387:9 389:8 420:12 421:9 423:9 "
    "500:5 501:11 502:11 503:11 504:11 505:8 506:10 507:11 508:9 509:8 590:9 591:9 592:7 593:11 594:9 595:11 "
    "596:9 597:7 598:13 599:8 670:8 672:6 673:7 674:7 675:8 676:7 677:7 678:7 679:11 680:7 681:9 682:5 683:7 "
    "685:10 686:8 687:6 688:7 689:9 690:7 691:7 692:7 800:8 808:8 850:10 852:11 853:8 855:10 856:10 870:12 "
    "878:12 880:10 881:10 882:12 883:12 886:11 888:11 960:10 961:8 962:9 963:9 964:10 965:8 966:10 967:9 "
    "968:9 970:10 971:12 972:12 973:8 974:11 975:8 976:10 977:11 979:9 992:9 993:8 994:9 995:9 996:10 998:9"
)
_LENGTHS = {code: int(longest) for code, longest in (item.split(":") for item in _LENGTHS_TEXT.split())}
CALLING_CODES = frozenset(_LENGTHS)


def longest_national_number(code: str) -> int | None:
    """How many digits may follow this calling code, or None when no country has it.

    >>> longest_national_number("44"), longest_national_number("999")
    (10, None)
    """
    return _LENGTHS.get(code)


class Form(NamedTuple):
    """One way to write a number. `digits` bounds how many it has; `sure` forms need no word beside them."""

    name: str
    pattern: re.Pattern[str]
    digits: tuple[int, int]
    sure: bool


def _form(name: str, pattern: str, digits: tuple[int, int], sure: bool) -> Form:
    return Form(name, re.compile(pattern), digits, sure)


_S = r"[ .\-]"  # one separator
_GAP = r"(?:[ .\-/]|[ ]?[\-/][ ]|[ ]{2})?"
_TAIL = rf"\d{{1,5}}(?:{_GAP}\d{{1,5}}){{0,7}}"
FORMS = (
    _form("international", rf"\(?\+\(?[1-9]\d{{0,2}}\)?{_GAP}(?:\(\d{{1,5}}\){_GAP})?{_TAIL}", (7, 15), True),
    _form(
        "nanp", rf"(?:\+?1{_S}?{_S}?|001{_S})?(?:\(\d{{3}}\){_S}{{0,3}}|\d{{3}}[.\-])\d{{3}}{_S}\d{{4}}", (10, 13), True
    ),
    _form("nanp spaced", r"(?:1 )?[2-9]\d{2} \d{3}[ \-]\d{4}", (10, 11), True),
    _form("double zero", rf"00{_GAP}[1-9]\d{{0,2}}(?:{_GAP}\(0?\d{{1,4}}\))?[ .\-/]{_TAIL}", (10, 17), True),
    _form("area in parentheses", rf"(?:\+?\d{{1,3}} ?)?\(\d{{2,5}}\){_GAP}{_TAIL}", (8, 13), True),
    _form("trunk zero", r"0[1-9]\d{0,4}(?:[ \-/.]|[ ][\-/][ ])\d{2,8}(?:[ \-.]\d{2,8}){0,4}", (9, 12), True),
    _form("grouped", r"\(?\d{1,5}\)?(?:[ .\-/]{1,2}\d{1,8}){1,6}", (6, 15), False),
    _form("bare", r"\d{7,15}", (7, 15), False),
)
# Which forms can begin with a character: most runs of digits are none of them, and are left after one or two attempts.
_BY_LEAD = {
    "+": tuple(form for form in FORMS if form.name in ("international", "nanp")),
    "(": tuple(form for form in FORMS if form.name in ("international", "nanp", "area in parentheses", "grouped")),
    "0": tuple(form for form in FORMS if form.name not in ("international", "nanp spaced")),
    **dict.fromkeys(
        "123456789", tuple(form for form in FORMS if "zero" not in form.name and form.name != "international")
    ),
}
_EXTENSION = re.compile(r",? ?(?:x|ext\.?|extn\.?|extension|#|durchwahl|poste) ?[.:]? ?\d{1,6}(?!\d)", re.IGNORECASE)
_SOMETHING_ELSE = re.compile(
    r"(?:\d{1,2}[./\- ]\d{1,2}[./\- ](?:19|20)\d{2}|(?:19|20)\d{2}[./\- ]\d{1,2}[./\- ]\d{1,2}(?: \d{1,2})?|"
    r"(?:0?[1-9]|[12]\d|3[01])[./\- ](?:0?[1-9]|1[0-2])[./\- ]\d{2}|"
    r"(?:0?[1-9]|1[0-2])[./\- ](?:0?[1-9]|[12]\d|3[01])[./\- ]\d{2}|"
    r"\(?(?:1\d|20)\d{2}(?:[ \-/.)]+(?:1\d|20)\d{2})+\)?|(?!\d{3}\.\d{4}\Z)\d+\.\d+(?:[ \-]\d+\.\d+)*|"
    r"\d{1,3} ?\((?:19|20)\d{2}\)[ \d\-]+|\d{1,3}(?:\.\d{1,3}){3}|\+?[01]+)\Z"
)  # dates, ranges of years, decimals, volume and year of a journal, IP addresses, binary numbers
_ZIP = re.compile(r"0\d{4}-\d{4}\Z")  # New England's postal codes look like German numbers
_SIGNED_DECIMAL = re.compile(r"\(?\+\(?\d+\.\d+\)?\Z")  # registrars write +1.4155552671 all the same
_IN_PATHS = ("double zero", "trunk zero", "grouped")  # what parts of a path can look like
_AND = re.compile(r"\s{0,3}(?:or|and|,|/|;|&|oder|ou|y|\||-)?(?: (?:his|hers?|mine|yours|theirs))?\s{0,3}\Z")
_NOT_BEFORE = frozenset("$€£¥%_@&=^~\\")
_NOT_AFTER = frozenset("%_@°")


def find_phone(text: str, start: int, limit: int, previous: Match | None, *, labels: bool) -> Match | None:
    """The telephone number that begins at `start` and ends at `limit` or before.

    Without `labels` only the forms that speak for themselves are read.
    """
    for form in _BY_LEAD.get(text[start], ()):
        hit = form.pattern.match(text, start, limit) if form.sure or labels else None
        if hit is None:
            continue
        end = _fit(form, text, start, hit.end())
        if end and _believable(form, text, start, end, previous):
            extension = _EXTENSION.match(text, end)
            end = extension.end() if extension else end
            return Match("PHONE", start, end, text[start:end], _is_reserved(text[start:end]))
    return None


def _fit(form: Form, text: str, start: int, end: int) -> int | None:
    """Where the number ends: with a calling code it is cut at a group end where it has more digits than the country."""
    fewest, most = form.digits
    if not fewest <= _count_digits(text[start:end]) <= most + 5 or not _ends_here(text, end):
        return None
    if form.name not in ("international", "double zero"):
        return end if _count_digits(text[start:end]) <= most else None
    limit, cut = _country_limit(text[start:end]), end
    fewest = max(fewest, min(8, limit - 3))  # seven digits with the code are enough for the smallest islands only
    while _count_digits(text[start:cut]) > limit:
        cut = _previous_group_end(text, start, cut)
    if limit and _count_digits(text[start:cut]) >= fewest and _ends_here(text, cut):
        return cut
    return end if limit and _count_digits(text[start:end]) <= most else None


def _count_digits(written: str) -> int:
    return sum(map(str.isdigit, written))


def _country_limit(written: str) -> int:
    digits = "".join(filter(str.isdigit, written))
    lead = 2 if digits.startswith("00") and "+" not in written else 0
    for size in (1, 2, 3):
        longest = _LENGTHS.get(digits[lead : lead + size])
        if longest is not None:
            trunk = 1 if "(0" in written else 0
            return lead + size + max(longest, 7) + trunk
    return 0


def _ends_here(text: str, end: int) -> bool:
    """No digit, and no group joined by a dash or a dot, follows."""
    tail = text[end : end + 2]
    if not tail:
        return True
    first = tail[0]
    if first in _NOT_AFTER:
        return False
    if context.joins(first):
        return _EXTENSION.match(text, end) is not None
    # a slash or a comma separates two numbers: 555-123-4567/555-987-6543
    return not (first in ".-:" and tail[1:].isdigit())


def _previous_group_end(text: str, start: int, end: int) -> int:
    at = end - 1
    while at > start and text[at].isdigit():
        at -= 1
    while at > start and not text[at].isdigit():
        at -= 1
    return at + 1 if at > start else start


def _believable(form: Form, text: str, start: int, end: int, previous: Match | None) -> bool:
    if start and text[start - 1] in _NOT_BEFORE - {"="}:
        return False
    written = text[start:end]
    if _SOMETHING_ELSE.match(written) or (form.name in _IN_PATHS and context.in_path(text, start)):
        return False
    if _ZIP.match(written) and context.state_before(text, start):
        return False
    if _SIGNED_DECIMAL.match(written):
        return context.phone_context(text, start, end)
    if form.sure and not _looks_like_a_list(form, text, start, end):
        return not context.labelled_otherwise(text, start) or form.name == "international"
    if form.name == "bare" and written[0] == "1" and len(written) != 11 and not context.named_phone(text, start):
        return False  # seconds and milliseconds since 1970
    if context.phone_context(text, start, end) or context.behind_name(text, start, end):
        return True
    if (context.in_call_log(text, start, end) or context.asked_for(text, start)) and not context.labelled_otherwise(
        text, start
    ):
        return True
    return previous is not None and start - previous.end <= 12 and _AND.match(text[previous.end : start]) is not None


def _looks_like_a_list(form: Form, text: str, start: int, end: int) -> bool:
    """Counting (01 02 03 …), decimals with a leading zero, and parentheses of a call or an index, as in `f(10) 200`."""
    written = text[start:end]
    if form.name == "trunk zero":
        groups = [int(group) for group in re.findall(r"\d+", written)]
        steps = {right - left for left, right in pairwise(groups)}
        decimal = len(groups) == 2 and "." in written
        return decimal or (len(groups) > 2 and (len(steps) == 1 or groups.count(0) > 2))
    if form.name == "nanp spaced":
        ahead = text[end : end + 1] == " " and text[end + 1 : end + 2].isdigit()
        return ahead or (text[max(0, start - 1) : start] == " " and text[max(0, start - 2) : start - 1].isdigit())
    if form.name == "area in parentheses":
        return bool(start) and (text[start - 1].isalnum() or text[start - 1] in ")]\"'")
    return False


def _is_reserved(written: str) -> bool:
    """555-01xx (and 555 as an area code) never rings; Ofcom keeps 7946 0xxx and 01632 960xxx for drama."""
    digits = "".join(filter(str.isdigit, written))
    national = digits[-10:]
    return national[:3] == "555" or national[3:8] == "55501" or "79460" in digits[-9:] or "1632960" in digits
