"""The checks that published identifiers carry in themselves."""

from __future__ import annotations

import hashlib
import ipaddress


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LUHN_DOUBLED = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)


def luhn(digits: str) -> bool:
    """The check digit of payment cards (ISO/IEC 7812-1, annex B).

    >>> luhn("4242424242424242"), luhn("4242424242424241")
    (True, False)
    """
    total = 0
    for place, digit in enumerate(reversed(digits)):
        total += _LUHN_DOUBLED[int(digit)] if place % 2 else int(digit)
    return total % 10 == 0


# Issuer prefixes as (first, last, lengths); the bounds are compared on as many digits as they have.
_ISSUERS: tuple[tuple[str, str, frozenset[int]], ...] = tuple(
    (first, last, frozenset(lengths))
    for first, last, lengths in (
        ("4", "4", (13, 16, 19)),  # Visa
        ("51", "55", (16,)),  # Mastercard
        ("2221", "2720", (16,)),
        ("34", "34", (15,)),  # American Express
        ("37", "37", (15,)),
        ("300", "305", (14, 16)),  # Diners Club
        ("309", "309", (14, 16)),
        ("36", "36", (14, 16, 19)),
        ("38", "39", (14, 16, 19)),
        ("35", "35", (16, 17, 18, 19)),  # JCB: 3528 to 3589, and test data of all 35
        ("2131", "2131", (15,)),
        ("1800", "1800", (15,)),
        ("6011", "6011", (16, 17, 18, 19)),  # Discover
        ("644", "649", (16, 17, 18, 19)),
        ("65", "65", (16, 17, 18, 19)),
        ("62", "62", (16, 17, 18, 19)),  # UnionPay
        ("81", "81", (16,)),
        ("2200", "2204", (16, 17, 18, 19)),  # Mir
        ("60", "60", (16,)),  # RuPay
        ("82", "82", (16,)),
        ("508", "508", (16,)),
        ("9792", "9792", (16,)),  # Troy
        ("5060", "5061", (16, 18, 19)),  # Verve
        ("5019", "5019", (16,)),  # Dankort
        ("637", "639", (16,)),  # InstaPayment
        ("50", "50", tuple(range(12, 20))),  # Maestro
        ("56", "58", tuple(range(12, 20))),
        ("6304", "6304", tuple(range(12, 20))),
        ("6390", "6390", tuple(range(12, 20))),
        ("67", "67", tuple(range(12, 20))),
        ("0604", "0604", tuple(range(12, 20))),
    )
)
_TEST_CARDS = _words(
    "4242424242424242 4111111111111111 4000056655665556 5555555555554444 5200828282828210 5105105105105100 "
    "2223003122003222 378282246310005 371449635398431 378734493671000 6011111111111117 6011000990139424 "
    "3056930009020004 36227206271667 30569309025904 38520000023237 3566002020360505 3530111333300000 "
    "6200000000000005 4012888888881881 4222222222222 5019717010103742 6331101999990016 4000000000000002 "
    "4000000000000077 4917610000000000 4484070000000000 4462030000000000"
)
# Digits that count upwards appear in every manual; they fail the Luhn check and are replaced all the same.
_SAMPLE_CARDS = frozenset({"1234567890123456", "1234123412341234", "1111222233334444", "1234567812345678"})


def card_issuer(digits: str) -> bool:
    """Whether a known network issues cards with this prefix in this length."""
    size = len(digits)
    return any(size in lengths and first <= digits[: len(first)] <= last for first, last, lengths in _ISSUERS)


def is_card(digits: str) -> bool:
    """A payment card number: issuer prefix, length and check digit, or a well-known sample."""
    return (card_issuer(digits) and luhn(digits)) or digits in _SAMPLE_CARDS


def is_test_card(digits: str) -> bool:
    """A number that payment providers publish for tests, or one that only ever stands in manuals."""
    return digits in _TEST_CARDS or digits in _SAMPLE_CARDS or (digits.startswith("400000") and len(digits) == 16)


_IBAN_LENGTHS = {
    item[:2]: int(item[3:])
    for item in _words(
        "AD:24 AE:23 AL:28 AT:20 AZ:28 BA:20 BE:16 BG:22 BH:22 BI:27 BR:29 BY:28 CH:21 CR:22 CY:28 CZ:24 DE:22 "
        "DJ:27 DK:18 DO:28 EE:20 EG:29 ES:24 FI:18 FK:18 FO:18 FR:27 GB:22 GE:22 GI:23 GL:18 GR:27 GT:28 HN:28 "
        "HR:21 HU:28 IE:22 IL:23 IQ:23 IS:26 IT:27 JO:30 KW:30 KZ:20 LB:28 LC:32 LI:21 LT:20 LU:20 LV:21 LY:25 "
        "MC:27 MD:24 ME:22 MK:19 MN:20 MR:27 MT:31 MU:30 NI:28 NL:18 NO:15 OM:23 PK:24 PL:28 PS:29 PT:25 QA:29 "
        "RO:24 RS:22 RU:33 SA:24 SC:31 SD:18 SE:24 SI:19 SK:24 SM:27 SO:23 ST:25 SV:28 TL:23 TN:24 TR:26 UA:29 "
        "VA:22 VG:24 XK:20 YE:30 DZ:26 AO:25 BJ:28 BF:28 CM:27 CV:25 IR:26 CI:28 MG:27 ML:28 MZ:25 SN:28"
    )
}
_SAMPLE_IBANS = _words(
    "GB82WEST12345698765432 GB29NWBK60161331926819 DE89370400440532013000 DE75512108001245126199 NL91ABNA0417164300 "
    "FR1420041010050500013M02606 ES9121000418450200051332 IT60X0542811101000000123456 BE68539007547034 "
    "CH9300762011623852957 AT611904300234573201 PL61109010140000071219812874 SE4550000000058398257466"
)


def iban_length(country: str) -> int | None:
    """How many characters an IBAN of this country has (SWIFT's IBAN registry), or None."""
    return _IBAN_LENGTHS.get(country)


def is_iban(compact: str) -> bool:
    """ISO 13616: the country's length and the mod-97 check.

    >>> is_iban("GB82WEST12345698765432"), is_iban("GB83WEST12345698765432")
    (True, False)
    """
    return _IBAN_LENGTHS.get(compact[:2]) == len(compact) and mod97(compact)


def mod97(compact: str) -> bool:
    """The check of ISO 7064 alone, for countries that are not in the registry."""
    return int("".join(str(int(char, 36)) for char in compact[4:] + compact[:4])) % 97 == 1


def is_sample_iban(compact: str) -> bool:
    """An IBAN of a manual, or of the bank TEST, which does not exist."""
    return compact in _SAMPLE_IBANS or compact[4:8] == "TEST"


def is_ssn(area: str, group: str, serial: str) -> bool:
    """A number the US Social Security Administration can have issued (no 000, 666, 9xx; no 00; no 0000)."""
    return area not in ("000", "666") and area[0] != "9" and group != "00" and serial != "0000"


SAMPLE_SSNS = frozenset({"123456789", "078051120", "219099999", "457555462"})

_BASE58 = {char: value for value, char in enumerate("123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz")}


def is_base58check(address: str) -> bool:
    """A legacy Bitcoin address: 25 bytes whose last four are a double SHA-256 of the rest."""
    number = 0
    for char in address:
        number = number * 58 + _BASE58[char]
    try:
        raw = number.to_bytes(25, "big")
    except OverflowError:
        return False
    return hashlib.sha256(hashlib.sha256(raw[:21]).digest()).digest()[:4] == raw[21:]


_BECH32 = {char: value for value, char in enumerate("qpzry9x8gf2tvdw0s3jn54khce6mua7l")}
_GENERATOR = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)


def is_bech32(address: str) -> bool:
    """A segwit or taproot address (BIP 173 and 350)."""
    prefix, _, data = address.lower().rpartition("1")
    if not prefix or any(char not in _BECH32 for char in data):
        return False
    values = [ord(c) >> 5 for c in prefix] + [0] + [ord(c) & 31 for c in prefix] + [_BECH32[c] for c in data]
    check = 1
    for value in values:
        top = check >> 25
        check = (check & 0x1FFFFFF) << 5 ^ value
        for bit, generator in enumerate(_GENERATOR):
            if top >> bit & 1:
                check ^= generator
    return check in (1, 0x2BC830A3)


def parse_ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address, or None if the text is not one."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
