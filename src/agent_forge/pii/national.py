"""Numbers that states give to people: tax and health numbers, identity cards. Check digits, and the words before them.

A form that is unmistakable (its check digits are right, and letters or points stand where they belong) needs no word.
Plain digits need one: with a word such as "number" or a colon between, their count is enough; without, the check digits
must be right too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import date

from agent_forge.pii import context
from agent_forge.pii.checksums import luhn
from agent_forge.pii.match import Match

Check = Callable[[str], bool]


def weighted(weights: str, modulus: int, remainder: int = 0) -> Check:
    """A check by a weighted sum of the digits; `weights` are hexadecimal digits, or `-` for -1.

    >>> weighted("a987654321", 11)("9434765919")  # NHS
    True
    """
    factors = [-1 if char == "-" else int(char, 16) for char in weights]

    def check(digits: str) -> bool:
        if len(digits) != len(factors):
            return False
        return sum(factor * int(digit) for factor, digit in zip(factors, digits, strict=True)) % modulus == remainder

    return check


_MULTIPLY = tuple(
    tuple((a + b) % 5 + (5 if b > 4 else 0) if a < 5 else (a - b) % 5 + (0 if b > 4 else 5) for b in range(10))
    for a in range(10)
)  # the dihedral group of order ten
_PERMUTE = [tuple(range(10))]
for _ in range(7):
    _PERMUTE.append(tuple(_PERMUTE[-1][digit] for digit in (1, 5, 7, 6, 2, 8, 3, 0, 9, 4)))


def verhoeff(digits: str) -> bool:
    """Verhoeff's check, which Aadhaar uses.

    >>> verhoeff("234123412346"), verhoeff("234123412347")
    (True, False)
    """
    state = 0
    for place, digit in enumerate(reversed(digits)):
        state = _MULTIPLY[state][_PERMUTE[place % 8][int(digit)]]
    return state == 0


def iso_7064(digits: str) -> bool:
    """ISO 7064 mod 11, 10: the German tax number and the Croatian OIB."""
    product = 10
    for digit in digits[:-1]:
        product = ((int(digit) + product) % 10 or 10) * 2 % 11
    return (11 - product) % 10 == int(digits[-1])


def _two_checks(digits: str, first: str, second: str) -> bool:
    """Brazil's scheme: two digits, each 11 minus a weighted sum, with 10 and 11 as 0."""
    for weights in (first, second):
        total = sum(int(digit) * int(weight, 16) for digit, weight in zip(digits, weights, strict=False))
        if (11 - total % 11) % 11 % 10 != int(digits[len(weights)]):
            return False
    return len(set(digits)) > 1


def cpf(digits: str) -> bool:
    return len(digits) == 11 and _two_checks(digits, "a98765432", "ba98765432")


def cnpj(digits: str) -> bool:
    return len(digits) == 14 and _two_checks(digits, "543298765432", "6543298765432")


def chinese(number: str) -> bool:
    """Seventeen digits with a date of birth, and a check digit that may be X."""
    total = sum(int(digit) * pow(2, 17 - place, 11) for place, digit in enumerate(number[:17]))
    return _is_date(number[6:14]) and "10X98765432"[total % 11] == number[17].upper()


def french(number: str) -> bool:
    digits = number.replace("2A", "19").replace("2B", "18")
    return 97 - int(digits[:13]) % 97 == int(digits[13:])


def spanish(number: str) -> bool:
    digits = number[:-1].translate(str.maketrans("XYZ", "012"))
    return "TRWAGMYFPDXBNJZSQVHLCKE"[int(digits) % 23] == number[-1]


def singaporean(number: str) -> bool:
    total = sum(int(digit) * weight for digit, weight in zip(number[1:8], (2, 7, 6, 5, 4, 3, 2), strict=True))
    total += 4 if number[0] in "TG" else 0
    return ("JZIHGFEDCBA" if number[0] in "ST" else "XWUTRQPNMLK")[total % 11] == number[-1]


_ODD = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23)


def italian(number: str) -> bool:
    """The codice fiscale: every second character counts by a table of its own."""
    values = [int(char) if char.isdigit() else ord(char) - 65 for char in number[:15]]
    total = sum(_ODD[value] if place % 2 == 0 else value for place, value in enumerate(values))
    return chr(65 + total % 26) == number[15]


def finnish(number: str) -> bool:
    return "0123456789ABCDEFHJKLMNPRSTUVWXY"[int(number[:6] + number[7:10]) % 31] == number[10]


def swiss(digits: str) -> bool:
    return sum(int(digit) * (3 if place % 2 else 1) for place, digit in enumerate(digits)) % 10 == 0


def chilean(number: str) -> bool:
    total = sum(int(digit) * (2 + place % 6) for place, digit in enumerate(reversed(number[:-1])))
    return "0K987654321"[total % 11] == number[-1].upper()


def swedish(digits: str) -> bool:
    return luhn(digits[-10:]) and _is_date("19" + digits[-10:-4])


def _is_date(text: str) -> bool:
    try:
        date(int(text[:4]), int(text[4:6]), int(text[6:8]))
    except ValueError:
        return False
    return True


def _any(digits: str) -> bool:
    return True


# Forms that need no word, by what they begin with; the check sees letters and digits only.
_STRONG: tuple[tuple[re.Pattern[str], Check], ...] = tuple(
    (re.compile(pattern), check)
    for pattern, check in (
        (r"\d{3}\.\d{3}\.\d{3}-\d{2}", cpf),
        (r"\d{2}\.\d{3}\.\d{3}/\d{4}-\d{2}", cnpj),
        (r"[1-9]\d{5}(?:19|20)\d{9}[\dXx]", chinese),
        (r"[12] ?\d\d ?(?:0[1-9]|1[0-2]|[2-9]\d) ?(?:\d\d|2[AB]) ?\d{3} ?\d{3} ?\d\d", french),
        (r"756\.\d{4}\.\d{4}\.\d{2}", swiss),
        (r"\d{1,2}\.\d{3}\.\d{3}-[\dkK]", chilean),
        (r"9\d\d-(?:5\d|6[0-5]|7\d|8[0-8]|9[0-24-9])-\d{4}", _any),  # the US tax number of those without an SSN
        (r"(?:19|20)?\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])[-+]\d{4}", swedish),
        (r"\d{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])-[1-4]\d{6}", _any),  # Korea
        (r"(?:0[1-9]|[12]\d|3[01])(?:0[1-9]|1[0-2])\d\d[-+A]\d{3}[0-9A-FHJ-NPR-Y]", finnish),
    )
)
# Tokens that end in three digits or more and a letter, upper case throughout.
TAIL = re.compile(r"[0-9]{3}[A-Z](?![A-Za-z0-9])")
_TOKEN_HEAD = re.compile(r"(?<![A-Za-z0-9])[A-Z0-9]{5,15}\Z")
_LETTERED: tuple[tuple[re.Pattern[str], Check], ...] = tuple(
    (re.compile(pattern + r"\Z"), check)
    for pattern, check in (
        (r"[A-Z]{6}\d\d[A-EHLMPRST]\d\d[A-Z]\d{3}[A-Z]", italian),
        (r"[XYZ]\d{7}[A-Z]", spanish),
        (r"[STFG]\d{7}[A-Z]", singaporean),
    )
)
_LABELLED_LETTERED = (
    (re.compile(r"\b(?:pan|permanent account)\b"), re.compile(r"[A-Z]{3}[ABCFGHJLPT][A-Z]\d{4}[A-Z]\Z"), _any),
    (re.compile(r"\b(?:nino|ni|national insurance)\b"), re.compile(r"[A-Z]{2}\d{6}[A-D]\Z"), _any),
    (re.compile(r"\b(?:dni|nif)\b"), re.compile(r"\d{8}[A-Z]\Z"), spanish),
)
NINO = re.compile(r"[0-9]{2} ?[0-9]{2} ?[0-9]{2} ?[A-D](?![A-Za-z0-9])")
NINO_HEAD = re.compile(r"(?<![A-Za-z0-9])[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\Z")
# Digits behind a word: the word, the possible numbers of digits, the check.
_LABELS: tuple[tuple[str, tuple[int, ...], Check], ...] = (
    (r"sins?|social insurance", (9,), luhn),
    (r"nhs", (10,), weighted("a987654321", 11)),
    (r"aadh?aa?r|uidai", (12,), verhoeff),
    (r"eins?|employer identification|fein", (9,), _any),
    (r"itins?", (9,), _any),
    (r"utr|unique taxpayer reference", (10,), _any),
    (r"tfn|tax file", (8, 9), weighted("14375869a", 11)),
    (r"steuer-?(?:id\w*|nummer|identifikationsnummer)|idnr", (10, 11, 13), iso_7064),
    (r"bsn|burgerservicenummer", (9,), weighted("98765432-", 11)),
    (r"pesel", (11,), weighted("13791379131", 10)),
    (r"cpf", (11,), cpf),
    (r"cnpj", (14,), cnpj),
    (r"personnummer|f[øo]dselsnummer|cpr|henkil[öo]tunnus", (10, 11, 12), _any),
    (r"my ?number", (12,), _any),
    (r"curp|rfc|oib|tckn|rrn", (10, 11, 13), _any),
    (r"tins?|(?:tax|vat)(?:payer)?(?: (?:id|identification|identity|reference|registration))?|tax ?id",
     (8, 9, 10, 11, 12, 13), _any),
    (r"(?:national|citizen|resident|personal)(?:'s)? (?:id|identity|identification)|(?:id|identity) card",
     (8, 9, 10, 11, 12, 13, 14, 15, 18), _any),
    (r"身份证号?码?", (15, 18), _any),
)  # fmt: skip
_WORDS = tuple(
    (re.compile(rf"(?:(?<![^\W_])|(?<=身))(?:{words})(?P<link>(?: (?:card|file))?"
                r"(?: ?(?:numbers?|num|nos?|nr|code|id)\b\.?)?"
                r"(?:[ ]?\([^()]{1,20}\))?(?P<sign>[ ]?[:#=]|[ ](?:is|was|are)\b)?)[\s:#\"'(]{0,3}\Z"), sizes, check)
    for words, sizes, check in _LABELS
)  # fmt: skip
_ANY_WORD = re.compile("|".join(f"(?:{words})" for words, _, _ in _LABELS))
_COMPACT = re.compile(r"[^0-9A-Za-z]")


def find_strong(text: str, start: int, end: int) -> Match | None:
    """A number that begins at `start` and needs no word; `end` is where its run of digits ends."""
    for pattern, check in _STRONG:
        hit = pattern.match(text, start, min(len(text), end + 2))
        if hit is None or context.joins(text[hit.end() : hit.end() + 1]):
            continue
        tail = text[hit.end() : hit.end() + 2]
        if not (tail[:1] in tuple("-.") and tail[1:].isdigit()) and check(_COMPACT.sub("", hit.group())):
            return Match("NATIONAL_ID", start, hit.end(), hit.group())
    return None


def find_worded(text: str, start: int, groups: list[tuple[int, int]]) -> Match | None:
    """Plain digits, in one or several groups, behind a word that says what they are."""
    words = context.before(text, start)
    if not _ANY_WORD.search(words):
        return None
    for pattern, sizes, check in _WORDS:
        label = pattern.search(words)
        if label is None:
            continue
        digits, last = "", start
        for begin, stop in groups:
            if begin - last > 1:
                break
            digits, last = digits + text[begin:stop], stop
            ends = not context.joins(text[stop : stop + 1])
            follows = text[stop : stop + 1] in tuple(" -./") and text[stop + 1 : stop + 2].isdigit()
            right = len(digits) in sizes and check(digits)
            if (
                len(digits) in sizes
                and ends
                and ((label["link"] and right) or (not follows and (label["link"] or right)))
            ):
                return Match("NATIONAL_ID", start, stop, text[start:stop])
    return None


def find_lettered(text: str) -> Iterator[Match]:
    """Tokens of letters and digits: Italy, Spain, Singapore; behind their words those of India and Britain too."""
    for tail in TAIL.finditer(text):
        head = _TOKEN_HEAD.search(text, max(0, tail.start() - 13), tail.end() - 1)
        start = head.start() if head else tail.start()
        token = text[start : tail.end()]
        if start and context.joins(text[start - 1]):
            continue
        strong = any(pattern.match(token) and check(token) for pattern, check in _LETTERED)
        if strong or _is_worded(token, context.before(text, start)):
            yield Match("NATIONAL_ID", start, tail.end(), token)


def _is_worded(token: str, words: str) -> bool:
    return any(
        label.search(words) is not None and pattern.match(token) is not None and check(token)
        for label, pattern, check in _LABELLED_LETTERED
    )


def find_nino(text: str) -> Iterator[Match]:
    """British national insurance numbers written in pairs, or behind their name."""
    for hit in NINO.finditer(text):
        head = NINO_HEAD.search(text, max(0, hit.start() - 4), hit.start())
        if head is None:
            continue
        written = text[head.start() : hit.end()]
        if " " in written or re.search(r"insurance|\bnino?\b", context.before(text, head.start())):
            yield Match("NATIONAL_ID", head.start(), hit.end(), written)
