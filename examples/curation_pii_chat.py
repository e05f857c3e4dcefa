"""Recall and precision on chats and call logs: templates, filled with made-up people, telephones, keys and papers.

    python examples/curation_pii_chat.py [--set written-after|written-before|development] [--rounds 20] [--seed 11]

The rules were developed on the set `development`. `written-before` was written before them; its misses were looked at
once, and led to four changes. `written-after` was written after those, and nothing was changed since. Needs faker and
python-stdnum, which make the values: check digits are theirs, not ours.
"""

from __future__ import annotations

import argparse
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from agent_forge.pii import find_pii

DEVELOPMENT = """
[Call 1] {name} ({phone})
[Call 2] {name} ({phone}) - missed
Call from {name}, {phone}, 3 minutes
hey its me, new number {phone}
Caller: {phone}, callee: {phone}
my password {password} does not work
use the token {token} for staging
api key {apikey} was leaked
The password for the wifi is {password}
Passports: {passport} and {passport}
Passport numbers {passport}, {passport}
SIN {sin}
Her social insurance number is {sin}.
NHS number {nhs}
My NHS no: {nhs}
Aadhaar {aadhaar}
aadhaar card number is {aadhaar}
Tax ID: {tin}
I live at {address}
Ship it to {address}, please.
Her address: {address}
passwords: {password} and {password}
secret {token} expired
texted {name} at {phone}
"""
WRITTEN_BEFORE = """
10:32 outgoing call to {name} ({phone}), 4m12s
[14:05] {name}: ok call me {phone}
{name} <{phone}> joined the conference
missed call {phone} 09:14
Incoming: {name} ({phone}), duration 00:03:11
agent: can I have a callback number? customer: sure, {phone}
pls whatsapp {name} {phone}
Contacts: {name} ({phone}), {name} ({phone})
dialed {phone}, no answer
SMS to {phone}: "running late"
voicemail from {name} ({phone})
his cell {phone} and hers {phone}
the number you have dialled {phone} is not available
you can reach mom on {phone} after 6
Speaker 2 ({phone}): hello?
emergency contact {name} - {phone}
login bob password {password}
try password {password} instead
I think my password was {password} before
changed the root password to {password} last night
here's the token {token}
auth token {token} keeps expiring
set api key {apikey} in the header
API key {apikey}
our api key is {apikey}, do not share
access key {apikey} secret key {token}
the secret is {token}
passports {passport} / {passport} were stolen
passport no. {passport} and passport no. {passport}
Our passport numbers are {passport} and {passport}.
SIN: {sin}
sin number {sin} for payroll
my social insurance number {sin}
patient NHS number: {nhs}
nhs {nhs}
NHS No {nhs}, DOB unknown
Aadhaar number: {aadhaar}
aadhar no {aadhaar}
link my aadhaar {aadhaar} to the account
taxpayer identification number {tin}
tax number: {tin}
my tax id is {tin}
TIN {tin}
we moved to {address} last year
The parcel goes to {address}.
home address {address}
Deliver to: {address}
she lives at {address} with her cat
meet me at {address} at noon
Billing address: {address}
"""
WRITTEN_AFTER = """
{name} ({phone}) called twice
2 missed calls from {phone}
Call log: {phone} (outgoing), {phone} (incoming)
[09:12] dialing {phone}...
Transferred to {name} ({phone})
{name} [{phone}]: can you hear me?
call duration 12m, number dialed: {phone}
ok. my number's {phone}, text me
ring my wife on {phone}
Q: what is your mobile number? A: {phone}
Calling {name} at {phone}
Participants: {name} ({phone}); {name} ({phone})
his password {password} is weak
wifi password {password}
bearer token {token}
api keys: {apikey}, {apikey}
Passports {passport} and {passport}
SIN #{sin}
NHS number {nhs} was on the letter
Aadhaar: {aadhaar}
his tax number {tin}
send the invoice to {address}
My address is {address}
"""
SETS = {"development": DEVELOPMENT, "written-before": WRITTEN_BEFORE, "written-after": WRITTEN_AFTER}
LOCALES = [
    "en_US",
    "en_GB",
    "en_IN",
    "en_CA",
    "en_AU",
    "de_DE",
    "fr_FR",
    "es_ES",
    "it_IT",
    "pt_BR",
    "nl_NL",
    "pl_PL",
    "zh_CN",
    "ja_JP",
]
ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


class Values:
    """What the slots of the templates are filled with."""

    def __init__(self, seed: int) -> None:
        from faker import Faker

        self.random = random.Random(seed)
        self.people = [Faker(locale) for locale in LOCALES]
        for person in self.people:
            person.seed_instance(seed)

    def digits(self, count: int, first: str = "123456789") -> str:
        return self.random.choice(first) + "".join(self.random.choices("0123456789", k=count - 1))

    def grouped(self, digits: str, *sizes: int) -> str:
        ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
        return self.random.choice([" ", "-", ""]).join(
            digits[end - size : end] for end, size in zip(ends, sizes, strict=True)
        )

    def name(self) -> str:
        return str(self.random.choice(self.people).name())

    def phone(self) -> str:
        """Bare digits of Chinese, Indian and American numbers, and what faker writes in all its locales."""
        bare = (self.random.choice(["13", "15", "18"]) + self.digits(9, "0123456789"), self.digits(10, "6789"),
                self.digits(10, "23456789"))  # fmt: skip
        return self.random.choice([*bare, str(self.random.choice(self.people).phone_number())])

    def password(self) -> str:
        word, draw = self.people[0].word(), self.random
        simple = (f"{word.capitalize()}{draw.randint(10, 9999)}!", f"{word}{draw.randint(1000, 99999)}")
        return draw.choice([*simple, str(self.people[0].password(length=draw.randint(8, 14)))])

    def token(self) -> str:
        return "".join(self.random.choices(ALPHABET, k=self.random.randint(16, 40)))

    def apikey(self) -> str:
        return "".join(self.random.choices("0123456789abcdef", k=self.random.choice([12, 16, 24, 32])))

    def passport(self) -> str:
        return self.random.choice(["", "A", "K", "AB"]) + self.digits(self.random.choice([7, 8]))

    def sin(self) -> str:
        from stdnum import luhn

        base = self.digits(8, "1234567")
        return self.grouped(base + luhn.calc_check_digit(base), 3, 3, 3)

    def nhs(self) -> str:
        from stdnum.gb import nhs

        while True:
            if nhs.is_valid(number := self.digits(10, "4679")):
                return self.grouped(number, 3, 3, 4)

    def aadhaar(self) -> str:
        from stdnum import verhoeff

        base = self.digits(11, "23456789")
        return self.grouped(base + verhoeff.calc_check_digit(base), 4, 4, 4)

    def tin(self) -> str:
        return self.random.choice([f"{self.digits(2)}-{self.digits(7)}", self.digits(10), self.digits(11)])

    def address(self) -> str:
        person = self.random.choice(self.people[:-2])
        return str(self.random.choice([person.street_address, person.address])()).replace("\n", ", ")


def filled(templates: str, rounds: int, values: Values) -> Iterator[tuple[str, list[tuple[str, int, int]]]]:
    """The texts, each with its slots and where they lie."""
    for template in templates.strip().splitlines() * rounds:
        text, spans, at = "", [], 0
        for slot in re.finditer(r"{(\w+)}", template):
            make: Callable[[], Any] = getattr(values, slot[1])
            value = make().strip()
            text += template[at : slot.start()]
            if slot[1] != "name":
                spans.append((slot[1], len(text), len(text) + len(value)))
            text, at = text + value, slot.end()
        yield text + template[at:], spans


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", default="written-after", choices=sorted(SETS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=11)
    chosen = parser.parse_args()
    try:
        values = Values(chosen.seed)
    except ImportError:
        print("faker is not installed: pip install faker python-stdnum")
        return
    total: Counter[str] = Counter()
    masked: Counter[str] = Counter()
    predicted = false = 0
    for text, spans in filled(SETS[chosen.set], chosen.rounds, values):
        matches = find_pii(text)
        covered = {place for match in matches for place in range(match.start, match.end)}
        for slot, start, end in spans:
            total[slot] += 1
            masked[slot] += {place for place in range(start, end) if text[place].isalnum()} <= covered
        predicted += len(matches)
        false += sum(not any(s < m.end and m.start < e for _, s, e in spans) for m in matches)
    for slot, count in total.items():
        print(f"{slot:10} {count:5} recall {masked[slot] / count:.3f}")
    print(f"precision {1 - false / max(1, predicted):.4f} ({false} of {predicted} matches touch nothing labelled)")


if __name__ == "__main__":
    main()
