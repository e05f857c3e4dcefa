"""Values for generated requests: what an argument is, and how a person would say it.

The kind of a value is read from the parameter's name, type and description, as a person would guess it. The banks are
small on purpose: half of the names are put together at random, so that a model has to copy and cannot remember.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from agent_forge.agents.grounding import MONTHS, TENS, UNITS
from agent_forge.agents.planner.script import examples_in, name_words

RATES = re.compile(r"rate|percent|ratio|probability|discount|interest")


WORDS: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "words.yaml").read_text(encoding="utf-8"))
BANKS: dict[str, list[str]] = WORDS["values"]["banks"]
UNITS_OF: dict[str, str] = WORDS["values"]["units"]
# The first kind whose words share one with the parameter's name decides, most specific first.
_KIND_OF = {word: kind for kind, words in reversed(WORDS["values"]["kinds"].items()) for word in words}


@dataclass(frozen=True)
class Value:
    """A JSON value and the words for it in a request."""

    value: Any
    said: str
    kind: str
    quoted: bool = True  # whether quotation marks may be put around it


@dataclass
class Values:
    """A source of values; `seen` are values of real rows by parameter name, used beside the banks."""

    rng: random.Random
    seen: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def draw(self, name: str, schema: Mapping[str, Any]) -> Value:
        """A value that fits the parameter, and how it is said."""
        schema = plain_variant(schema)
        kind = schema.get("type")
        kind = next((each for each in kind if each != "null"), "string") if isinstance(kind, list) else kind
        choices = schema.get("enum")
        if choices:
            value = self.rng.choice([choice for choice in choices if choice is not None] or choices)
            return Value(value, self.say_choice(value), "choice")
        if kind == "boolean":
            return Value(self.rng.random() < 0.75, "", "boolean")
        if kind == "integer":
            return self.integer(name, schema)
        if kind == "number":
            return self.number(name, schema)
        if kind == "array":
            return self.several(name, schema)
        if kind == "object":
            inner = {key: self.draw(key, each) for key, each in (schema.get("properties") or {}).items()}
            return Value(
                {key: each.value for key, each in inner.items()},
                listing([f"{words_of(k)} {v.said}" for k, v in inner.items()]),
                "object",
            )
        return self.text(name, schema)

    def several(self, name: str, schema: Mapping[str, Any]) -> Value:
        items = schema.get("items") or {"type": "string"}
        drawn = list(
            {
                each.said: each
                for each in (self.draw(singular(name), items) for _ in range(self.rng.choice((1, 2, 2, 3, 3, 4))))
            }.values()
        )
        if drawn[0].kind in ("number", "integer") and self.rng.random() < 0.3:
            said = f"[{', '.join(str(each.value) for each in drawn)}]"
        else:
            said = listing([each.said for each in drawn], self.rng.choice((" and ", ", and ", " and ", ", ")))
        return Value([each.value for each in drawn], said, "array")

    def integer(self, name: str, schema: Mapping[str, Any]) -> Value:
        words = set(name_words(name))
        if "year" in words and "years" not in words:
            value = self.rng.randint(1850, 2026)
            return Value(value, str(value), "year")
        low = int(schema.get("minimum", self.rng.choice((0, 1, 1, 2, 10))))
        high = int(schema.get("maximum", max(low + 1, self.rng.choice((5, 9, 12, 60, 100, 500, 5000, 250_000)))))
        value = self.rng.randint(min(low, high), max(low, high))
        if "maximum" not in schema and self.rng.random() < 0.3:
            value = max(low, self.round_number())
        return Value(value, self.measured(name, self.say_number(value)), "integer")

    def round_number(self) -> int:
        """As people like them: 20, 1500, 100000."""
        return int(
            self.rng.choice((1, 1, 1.5, 2, 2, 2.5, 3, 4, 5, 5, 7.5, 8))
            * 10 ** self.rng.choice((1, 1, 2, 2, 3, 3, 4, 5))
        )

    def number(self, name: str, schema: Mapping[str, Any]) -> Value:
        if RATES.search(name.lower()) and self.rng.random() < 0.6:
            per_cent = self.rng.choice((1, 2, 3, 3.5, 4, 5, 7.25, 8, 10, 12.5, 15, 20))
            said = f"{per_cent}{self.rng.choice(('%', '%', ' percent'))}"
            about = str(schema.get("description")).lower()
            in_percent = "percent" in name.lower() or re.search(r"(?:in|as an?) percent|percentage|\(%\)", about)
            return Value(per_cent if in_percent else round(per_cent / 100, 6), said, "number")
        value: float = round(
            self.rng.uniform(0, self.rng.choice((1, 10, 100, 1000, 50_000))), self.rng.choice((0, 1, 1, 2))
        )
        if self.rng.random() < 0.25:
            value = self.round_number()
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        if not low <= value <= high:
            value = round(self.rng.uniform(min(low, high), max(low, high)), 2)
        value = int(value) if value == int(value) else value
        return Value(value, self.measured(name, self.say_number(value)), "number")

    def measured(self, name: str, said: str) -> str:
        """A number with a unit, where the parameter's name calls for one."""
        unit = next((units for word, units in UNITS_OF.items() if word in name.lower()), None)
        if unit is None or self.rng.random() < 0.35:
            return said
        form = self.rng.choice(unit.split("|"))
        return form.replace("#", said) if said[-1].isdigit() else re.sub(r"#(?=\w)", "# ", form).replace("#", said)

    def say_number(self, value: float) -> str:
        if isinstance(value, int):
            if 0 < value <= 20 and self.rng.random() < 0.2:
                return next(word for word, number in UNITS.items() if number == value) if value < 20 else "twenty"
            if value in TENS.values() and self.rng.random() < 0.1:
                return next(word for word, number in TENS.items() if number == value)
            if value >= 1000 and self.rng.random() < 0.5:
                return f"{value:,}"
        return str(value)

    def say_choice(self, value: Any) -> str:
        said = str(value)
        if isinstance(value, str) and self.rng.random() < 0.6:
            said = said.replace("_", " ")
            said = said.lower() if self.rng.random() < 0.3 and not said.isupper() else said
        return said

    def text(self, name: str, schema: Mapping[str, Any]) -> Value:
        description = schema.get("description") or ""
        if re.search(r"yyyy|\d{4}-\d\d-\d\d", description, re.IGNORECASE) or schema.get("format") == "date":
            return self.date(iso=True)
        if self.rng.random() < 0.5 and self.seen.get(name):
            value = str(self.rng.choice(self.seen[name]))
            return Value(value, value, kind_of(name))
        examples = examples_in(description)
        kind = kind_of(name)
        if examples and self.rng.random() < 0.6:
            value = self.rng.choice(examples)
            return Value(value, value, kind)
        return self.of_kind(kind)

    def of_kind(self, kind: str) -> Value:
        rng = self.rng
        if kind == "date":
            return self.date(iso=False)
        makers = {
            "city": self.place,
            "time": self.clock,
            "email": self.email,
            "url": self.url,
            "phone": self.phone,
            "file": self.file,
            "id": self.identifier,
            "person": self.person,
            "address": lambda: f"{rng.randint(1, 9999)} {rng.choice(BANKS['street'])}",
        }
        maker = makers.get(kind)
        said = maker() if maker else self.plain(kind)
        return Value(said, said, kind)

    def clock(self) -> str:
        pick = self.rng.choice
        if pick((True, False)):
            return f"{self.rng.randint(0, 23):02}:{pick((0, 15, 30, 45)):02}"
        return f"{self.rng.randint(1, 12)}{pick((':00', ':30', ':15', ''))} {pick(('am', 'pm', 'PM'))}"

    def email(self) -> str:
        pick = self.rng.choice
        name = f"{pick(BANKS['first'])}{pick(('.', '_', ''))}{self.plain('last')}".lower().replace(" ", "")
        return f"{name}@{pick(BANKS['site'])}.{pick(('com', 'org', 'no', 'io'))}"

    def url(self) -> str:
        pick = self.rng.choice
        host = f"{pick(('https://', 'www.', 'http://www.', ''))}{pick(BANKS['site'])}.{pick(('com', 'org', 'net'))}"
        return host + str(pick(("", "", "/about", "/data/3")))

    def phone(self) -> str:
        number = self.rng.randint
        if self.rng.random() < 0.5:
            return f"555-{number(100, 999)}-{number(1000, 9999)}"
        return f"+{number(1, 99)} {number(10**7, 10**9)}"

    def file(self) -> str:
        pick = self.rng.choice
        folder = pick(("", "", "data/", "/home/user/", "reports/2024/"))
        return f"{folder}{pick(BANKS['file'])}{pick(('', '_final', '2', '-old'))}.{pick(BANKS['ending'])}"

    def place(self) -> str:
        city = self.plain("city")
        wider = self.rng.choice(BANKS[self.rng.choice(("state", "state", "country"))])
        return city if "," in city or self.rng.random() < 0.7 else f"{city}, {wider}"

    def person(self) -> str:
        first = self.rng.choice(BANKS["first"])
        return f"{first} {self.plain('last')}" if self.rng.random() < 0.75 else first

    def plain(self, kind: str) -> str:
        """One of the bank, or for names often one that nobody has seen."""
        if kind in ("city", "last", "title", "company", "region") and self.rng.random() < 0.35:
            return self.coined()
        if kind == "topic" and self.rng.random() < 0.3:
            aspect = self.rng.choice(("trends", "policy", "history", "prices", "safety", "news"))
            return f"{self.rng.choice(BANKS['industry'])} {aspect}"
        return self.rng.choice(BANKS.get(kind) or BANKS["topic"])

    def coined(self) -> str:
        parts = [self.rng.choice(BANKS["syllable"]) for _ in range(self.rng.choice((2, 2, 3)))]
        word = "".join(parts).capitalize()
        return (
            f"{self.rng.choice(('New', 'Port', 'Saint', 'North', 'Old'))} {word}" if self.rng.random() < 0.2 else word
        )

    def identifier(self) -> str:
        rng = self.rng
        letters = "".join(rng.choices(string.ascii_letters + string.digits, k=rng.randint(6, 11)))
        return rng.choice(
            (
                letters,
                f"{rng.choice(string.ascii_uppercase)}{rng.randint(10, 99999)}",
                str(rng.randint(100, 999_999)),
                f"{rng.choice(('user', 'ORD', 'inv', 'P'))}{rng.choice(('-', '_', ''))}{rng.randint(1, 9999)}",
            )
        )

    def date(self, iso: bool) -> Value:
        rng = self.rng
        year, month, day = rng.randint(1995, 2030), rng.randint(1, 12), rng.randint(1, 28)
        name, ordinal = MONTHS[month - 1].capitalize(), _ordinal(day)
        value = f"{year}-{month:02}-{day:02}"
        if iso:
            forms: tuple[str, ...] = (
                value,
                value,
                f"{name} {day}, {year}",
                f"{name} {ordinal}, {year}",
                f"{day} {name} {year}",
                f"{ordinal} of {name} {year}",
                f"{name[:3]} {day}, {year}",
            )
            return Value(value, rng.choice(forms), "date")
        forms = (
            value,
            f"{name} {ordinal}",
            f"the {ordinal}",
            f"{name} {day}, {year}",
            "tomorrow",
            "next Monday",
            f"{day} {name}",
            f"the {ordinal} of this month",
            "today",
            f"{month:02}/{day:02}/{year}",
            "this weekend",
        )
        said = rng.choice(forms)
        return Value(said, said, "date")


def plain_variant(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema of one kind: a constant as its only choice, the first of several kinds that is not null.

    >>> plain_variant({"anyOf": [{"type": "null"}, {"type": "integer"}], "default": None})
    {'default': None, 'type': 'integer'}
    """
    if "const" in schema:
        return {**schema, "enum": [schema["const"]]}
    for key in ("anyOf", "oneOf"):
        variants = [each for each in schema.get(key) or () if isinstance(each, Mapping) and each.get("type") != "null"]
        if variants:
            rest = {name: each for name, each in schema.items() if name != key}
            return plain_variant({**rest, **variants[0]})
    return schema


def kind_of(name: str) -> str:
    """The kind of value that a parameter's name speaks of.

    >>> kind_of("departureCity"), kind_of("patient_id"), kind_of("movie_title")
    ('city', 'id', 'title')
    """
    words = name_words(name)
    for word in [*reversed(words)]:
        if word in _KIND_OF and word != "name":
            return _KIND_OF[word]
    return "person" if words == ["name"] else "topic"


def words_of(name: str) -> str:
    return " ".join(name_words(name))


def singular(name: str) -> str:
    return name[:-1] if name.endswith("s") and not name.endswith("ss") else name


def _ordinal(day: int) -> str:
    return f"{day}{'th' if 11 <= day <= 13 else {1: 'st', 2: 'nd', 3: 'rd'}.get(day % 10, 'th')}"


def listing(parts: Sequence[str], last: str = " and ") -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + last + parts[-1] if parts else ""
