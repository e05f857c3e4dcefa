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
from typing import Any

from agent_forge.agents.grounding import MONTHS, TENS, UNITS
from agent_forge.agents.planner.script import examples_in

_SPLIT = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[_\-./:\s]+")

BANKS: dict[str, list[str]] = {
    kind: words.split("|")
    for kind, words in {
        "city": "Oslo|Rome|New York|Paris|San Francisco|Berlin|Tokyo|Lagos|São Paulo|Kyoto|Boise|Leeds|Tromsø|Austin|Lima|Cairo|Denver|Perth|Ghent|Palo Alto|Santa Cruz|Kuala Lumpur|Milpitas|Portland|Nairobi|Seoul|Buenos Aires|Mumbai|Los Angeles|Chicago|London|Toronto|Sydney|Vancouver, BC|Boston, MA|Springfield, Illinois",
        "country": "Norway|Brazil|Japan|the United States|Kenya|France|India|South Korea|Mexico|Canada|New Zealand|Germany|Italy|Egypt|Peru|China|Vietnam|Spain|USA|UK|Poland|Ghana|Argentina|Thailand",
        "region": "Europe|Asia|California|Texas|Bavaria|the Midwest|Tuscany|Scandinavia|Punjab|Queensland|Ontario|the Amazon|South America|Florida|North Africa|the Alps|Provence|Illinois",
        "first": "Ada|Liam|Noor|Chen|Olga|Marcus|Priya|Sven|Amara|Luis|Yuki|Hannah|Omar|Ingrid|Paul|Sofia|Kwame|Elena|David|Aisha|Tom|Maria|Ravi|John|Sarah|Emily|Michael|Jane|Ahmed|Anna|Peter|Lucy",
        "last": "Okafor|Nguyen|Smith|Lindqvist|Garcia|Tanaka|Mbeki|Rossi|Novak|Haddad|Weber|Silva|Kowalski|Sato|Brown|Lee|Doe|Johnson|Petrov|Khan|Andersen|Costa|Wilson|Meyer|Ali|Jones|Dupont",
        "company": "Apple|Google|Tesla|Microsoft|Siemens|Toyota|Acme Corp|Globex|Initech|Nestlé|Samsung|Amazon|Netflix|Vandelay Industries|Umbrella Inc|Blue Fjord AS|Orion Logistics|Hooli|Northwind Traders|IBM|Intel|Coca-Cola|Nike",
        "language": "English|Spanish|French|German|Japanese|Mandarin|Arabic|Portuguese|Hindi|Italian|Korean|Norwegian|Russian|Swahili|Chinese|Dutch|Turkish",
        "currency": "USD|EUR|GBP|JPY|NOK|INR|CAD|AUD|CHF|CNY|BRL|SEK|MXN",
        "color": "red|blue|dark green|pastel pink|black|white|teal|orange|grey|gold|purple|navy blue|yellow",
        "animal": "cat|dog|horse|tiger|sea turtle|honey bee|blue whale|rabbit|cow|wolf|eagle|salmon|deer|parrot|elephant",
        "food": "pizza|grilled chicken|sushi|vegan brownies|lentil soup|spaghetti|apple pie|tofu curry|oat milk|Caesar salad|pad thai|rice|chocolate cake|beef tacos|cheddar cheese",
        "cuisine": "Italian|Thai|Mexican|Ethiopian|Punjabi|French|Vietnamese|Take-out|Japanese|Greek|Lebanese|Malaysian|vegetarian",
        "sport": "tennis|football|basketball|swimming|ice hockey|chess|cricket|volleyball|marathon|cycling|rugby|skiing|judo",
        "genre": "jazz|rock|classical|hip hop|science fiction|thriller|comedy|romance|ambient|action|drama|fantasy|country|reggae",
        "disease": "diabetes|asthma|influenza|hypertension|malaria|breast cancer|arthritis|migraine|Alzheimer's|COVID-19|anemia",
        "drug": "aspirin|Ibuprofen|Lisinopril|metformin|penicillin|insulin|Paracetamol|amoxicillin|warfarin|morphine",
        "material": "steel|oak|aluminum|concrete|copper|glass|carbon fiber|leather|cotton|marble|silicon|gold",
        "industry": "automotive|healthcare|retail|banking|renewable energy|tourism|agriculture|software|mining|education",
        "unit": "meters|kilometers|miles|Celsius|Fahrenheit|kg|pounds|liters|feet|mph|km/h|inches|metric|imperial|hours",
        "platform": "Facebook|YouTube|Twitter|Instagram|PlayStation|Windows 10|Android|iOS|Steam|Netflix|Spotify|LinkedIn|Xbox",
        "title": "The Nice Guys|Moonlight Sonata|War and Peace|Inception|The Great Gatsby|Piccoli Fuochi|1984|Hamlet|Bohemian Rhapsody|The Starry Night|Stranger Things|Abbey Road|Pride and Prejudice|The Scream|Titanic|To Kill a Mockingbird",
        "topic": "climate change|machine learning|solar power|gene editing|medieval history|supply chains|quantum computing|urban planning|data privacy|coral reefs|the Civil War|artificial intelligence|inflation|mental health|black holes|minimum wage|photosynthesis|cyber security|ancient Rome|remote work",
        "product": "iPhone 15|running shoes|coffee maker|wireless headphones|office chair|mountain bike|laptop|toothpaste|LED lamp|winter jacket|protein bars|smart watch|notebook|garden hose",
        "gender": "male|female|women|men|non-binary",
        "audience": "teenagers|young adults|seniors|millennials|parents|college students|small business owners|gamers|tourists",
        "period": "last month|the past 5 years|2019|last week|January 2020|the 19th century|monthly|weekly|the last 30 days|this year|2010-2020|the next quarter|daily|yearly|last year",
        "message": "Don't forget to feed the cat|The meeting moved to 3 pm|Happy birthday!|See you at the station|I will be ten minutes late|Please call me back|Dinner is ready|The server is down again|Thanks for your help|Can you send the slides?",
        "street": "Main Street|Oak Avenue|Redwood Highway|Storgata|Baker Street|Elm Road|King's Lane|5th Avenue",
        "level": "high|low|medium|beginner|advanced|expert|moderate|severe|basic|intermediate|easy|hard",
        "status": "active|pending|completed|cancelled|open|closed|ongoing|settled|unsatisfactory|approved",
        "job": "nurse|software engineer|teacher|electrician|pilot|accountant|chef|lawyer|doctor|graphic designer|dentist|plumber",
        "file": "report|sales|photo|data|notes|invoice|backup|slides|budget|image1|recording|draft|table",
        "ending": "csv|pdf|txt|jpg|json|xlsx|mp3|py|docx|png|wav",
        "site": "example|mysite|openweather|acme|newsroom|shop-online|fjordline|github|wikipedia",
        "syllable": "ka|lo|ren|mi|ta|vor|shi|dan|el|zu|quo|bri|no|fen|gar|os|ya|pel|tri|mon|ash|wick|ford|burg|ster|ville|ia|us|or",
    }.items()
}  # fmt: skip

# The first kind whose words share one with the parameter's name decides, most specific first.
KINDS: list[tuple[str, str]] = [
    ("email", "email mail recipient recipients cc bcc"), ("url", "url website link homepage uri webpage domain"),
    ("phone", "phone telephone mobile fax"), ("file", "file path filename filepath folder directory document image photo video audio"),
    ("id", "id ids identifier code uuid token key barcode isbn serial reference sku plate account username password handle"),
    ("date", "date day deadline birthday dob checkin checkout departure_date arrival_date timestamp when"), ("time", "time hour start_time end_time"),
    ("period", "period timeframe frame timespan interval range frequency timeline season"),
    ("language", "language lang locale"), ("currency", "currency currencies"), ("country", "country nation nationality countries"),
    ("region", "region state province continent area county zone territory habitat"),
    ("city", "city location place town origin destination from to departure arrival airport station venue geolocation where cities locations market"),
    ("address", "address street"), ("company", "company organization employer manufacturer brand business publisher organisation airline bank vendor provider store institution university school hospital library museum"),
    ("person", "person author artist player patient customer client employee user student teacher actor director name owner driver winner candidate composer celebrity"),
    ("title", "title book movie film song album show game track playlist artwork painting play series course project campaign event exhibition"),
    ("color", "color colour scheme"), ("animal", "animal species pet breed organism"), ("cuisine", "cuisine"), ("food", "food dish meal ingredient ingredients recipe crop fruit"),
    ("sport", "sport activity exercise"), ("genre", "genre style theme"), ("disease", "disease condition symptom symptoms diagnosis disorder"), ("drug", "drug medication medicine substance chemical"),
    ("material", "material metal fabric"), ("industry", "industry sector field"), ("unit", "unit units"), ("platform", "platform device system console"), ("gender", "gender sex"),
    ("audience", "audience group population demographic"), ("level", "level difficulty severity priority quality size"), ("status", "status condition result outcome"),
    ("job", "job occupation profession role position department specialty"), ("product", "product item model equipment vehicle car"), ("message", "message text content body sentence comment note notes description feedback review prompt question answer"),
    ("topic", "topic subject query keyword keywords search category theme issue word term concept"),
]  # fmt: skip
UNITS_OF = {
    "weight": "# kg|# pounds|# kilograms|# grams|# lbs", "mass": "# kg|# grams|# g", "height": "# meters|# cm|# feet|# m", "length": "# meters|# m|# cm|# miles", "distance": "# km|# miles|# kilometers|# m",
    "radius": "# cm|# meters|# miles|# km", "width": "# cm|# meters|# inches", "depth": "# m|# meters", "area": "# square meters|# square feet|# m²", "volume": "# liters|# m^3|# ml", "temperature": "# degrees|# degrees Celsius|#°C|# K", "temp": "# degrees|#°F",
    "speed": "# m/s|# km/h|# mph", "velocity": "# m/s|# meters per second", "acceleration": "# m/s^2|# m/s²", "age": "# years old|# years", "price": "$#|# dollars|# USD|#€", "amount": "$#|# dollars|#", "budget": "$#|# dollars", "cost": "$#|£#", "income": "$#", "salary": "$#",
    "investment": "$#|# dollars", "principal": "$#", "duration": "# minutes|# hours|# days|# weeks", "minutes": "# minutes|# min", "hours": "# hours|# h", "days": "# days", "years": "# years", "months": "# months", "weeks": "# weeks", "time": "# seconds|# minutes|# hours",
    "voltage": "# volts|#V", "current": "# amps", "power": "# watts|# kW", "pressure": "# pascals|# psi|# bar", "frequency": "# Hz", "force": "# newtons|#N", "energy": "# joules", "size": "# people|# MB", "people": "# people|# guests", "guests": "# guests|# people", "number_of": "#",
}  # fmt: skip
_KIND_OF = {word: kind for kind, words in reversed(KINDS) for word in words.split()}


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
            return Value({key: each.value for key, each in inner.items()}, _listing([f"{words_of(k)} {v.said}" for k, v in inner.items()]), "object")
        return self.text(name, schema)

    def several(self, name: str, schema: Mapping[str, Any]) -> Value:
        items = schema.get("items") or {"type": "string"}
        drawn = list({each.said: each for each in (self.draw(singular(name), items) for _ in range(self.rng.choice((1, 2, 2, 3, 3, 4))))}.values())
        if drawn[0].kind in ("number", "integer") and self.rng.random() < 0.3:
            said = f"[{', '.join(str(each.value) for each in drawn)}]"
        else:
            said = _listing([each.said for each in drawn], self.rng.choice((" and ", ", and ", " and ", ", ")))
        return Value([each.value for each in drawn], said, "array")

    def integer(self, name: str, schema: Mapping[str, Any]) -> Value:
        words = set(split_name(name))
        if "year" in words and "years" not in words:
            value = self.rng.randint(1850, 2026)
            return Value(value, str(value), "year")
        low = int(schema.get("minimum", self.rng.choice((0, 1, 1, 2, 10))))
        high = int(schema.get("maximum", max(low + 1, self.rng.choice((5, 9, 12, 60, 100, 500, 5000, 250_000)))))
        value = self.rng.randint(min(low, high), max(low, high))
        return Value(value, self.measured(name, self.say_number(value)), "integer")

    def number(self, name: str, schema: Mapping[str, Any]) -> Value:
        if re.search(r"rate|percent|ratio|probability|discount|interest", name.lower()) and self.rng.random() < 0.6:
            per_cent = self.rng.choice((1, 2, 3, 3.5, 4, 5, 7.25, 8, 10, 12.5, 15, 20))
            said = f"{per_cent}{self.rng.choice(('%', '%', ' percent'))}"
            return Value(round(per_cent / 100, 6) if self.rng.random() < 0.5 else per_cent, said, "number")
        value: float = round(self.rng.uniform(0, self.rng.choice((1, 10, 100, 1000, 50_000))), self.rng.choice((0, 1, 1, 2)))
        value = int(value) if value == int(value) else value
        return Value(value, self.measured(name, self.say_number(value)), "number")

    def measured(self, name: str, said: str) -> str:
        """A number with a unit, where the parameter's name calls for one."""
        unit = next((units for word, units in UNITS_OF.items() if word in name.lower()), None)
        if unit is None or self.rng.random() < 0.35:
            return said
        return self.rng.choice(unit.split("|")).replace("#", said)

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
            "time": lambda: rng.choice((f"{rng.randint(1, 12)}{rng.choice((':00', ':30', ':15', ''))} {rng.choice(('am', 'pm', 'PM'))}", f"{rng.randint(0, 23):02}:{rng.choice((0, 15, 30, 45)):02}")),
            "email": lambda: f"{rng.choice(BANKS['first']).lower()}{rng.choice(('.', '_', ''))}{self.plain('last').lower()}@{rng.choice(BANKS['site'])}.{rng.choice(('com', 'org', 'no', 'io'))}",
            "url": lambda: f"{rng.choice(('https://', 'www.', 'http://www.', ''))}{rng.choice(BANKS['site'])}.{rng.choice(('com', 'org', 'net'))}{rng.choice(('', '', '/about', '/data/3'))}",
            "phone": lambda: rng.choice((f"555-{rng.randint(100, 999)}-{rng.randint(1000, 9999)}", f"+{rng.randint(1, 99)} {rng.randint(10**7, 10**9)}")),
            "file": lambda: f"{rng.choice(('', '', 'data/', '/home/user/', 'reports/2024/'))}{rng.choice(BANKS['file'])}{rng.choice(('', '_final', '2', '-old'))}.{rng.choice(BANKS['ending'])}",
            "id": self.identifier,
            "person": lambda: f"{rng.choice(BANKS['first'])} {self.plain('last')}" if rng.random() < 0.75 else rng.choice(BANKS["first"]),
            "address": lambda: f"{rng.randint(1, 9999)} {rng.choice(BANKS['street'])}",
        }  # fmt: skip
        maker = makers.get(kind)
        said = maker() if maker else self.plain(kind)
        return Value(said, said, kind)

    def plain(self, kind: str) -> str:
        """One of the bank, or for names often one that nobody has seen."""
        if kind in ("city", "last", "title", "company", "region") and self.rng.random() < 0.35:
            return self.coined()
        if kind == "topic" and self.rng.random() < 0.3:
            return f"{self.rng.choice(BANKS['industry'])} {self.rng.choice(('trends', 'policy', 'history', 'prices', 'safety', 'news'))}"
        return self.rng.choice(BANKS.get(kind) or BANKS["topic"])

    def coined(self) -> str:
        parts = [self.rng.choice(BANKS["syllable"]) for _ in range(self.rng.choice((2, 2, 3)))]
        word = "".join(parts).capitalize()
        return f"{self.rng.choice(('New', 'Port', 'Saint', 'North', 'Old'))} {word}" if self.rng.random() < 0.2 else word

    def identifier(self) -> str:
        rng = self.rng
        letters = "".join(rng.choices(string.ascii_letters + string.digits, k=rng.randint(6, 11)))
        return rng.choice((letters, f"{rng.choice(string.ascii_uppercase)}{rng.randint(10, 99999)}", str(rng.randint(100, 999_999)), f"{rng.choice(('user', 'ORD', 'inv', 'P'))}{rng.choice(('-', '_', ''))}{rng.randint(1, 9999)}"))

    def date(self, iso: bool) -> Value:
        rng = self.rng
        year, month, day = rng.randint(1995, 2030), rng.randint(1, 12), rng.randint(1, 28)
        name, ordinal = MONTHS[month - 1].capitalize(), _ordinal(day)
        value = f"{year}-{month:02}-{day:02}"
        if iso:
            forms = (value, value, f"{name} {day}, {year}", f"{name} {ordinal}, {year}", f"{day} {name} {year}", f"{ordinal} of {name} {year}", f"{name[:3]} {day}, {year}")
            return Value(value, rng.choice(forms), "date")
        forms = (value, f"{name} {ordinal}", f"the {ordinal}", f"{name} {day}, {year}", "tomorrow", "next Monday", f"{day} {name}", f"the {ordinal} of this month", "today", f"{month:02}/{day:02}/{year}", "this weekend")
        said = rng.choice(forms)
        return Value(said, said, "date")


def kind_of(name: str) -> str:
    """The kind of value that a parameter's name speaks of.

    >>> kind_of("departureCity"), kind_of("patient_id"), kind_of("movie_title")
    ('city', 'id', 'title')
    """
    words = split_name(name)
    for word in [*reversed(words)]:
        if word in _KIND_OF and word != "name":
            return _KIND_OF[word]
    return "person" if words == ["name"] else "topic"


def split_name(name: str) -> list[str]:
    """
    >>> split_name("getWeather_forCity")
    ['get', 'weather', 'for', 'city']
    """
    return [word.lower() for word in _SPLIT.split(name) if word]


def words_of(name: str) -> str:
    return " ".join(split_name(name))


def singular(name: str) -> str:
    return name[:-1] if name.endswith("s") and not name.endswith("ss") else name


def _ordinal(day: int) -> str:
    return f"{day}{'th' if 11 <= day <= 13 else {1: 'st', 2: 'nd', 3: 'rd'}.get(day % 10, 'th')}"


def _listing(parts: Sequence[str], last: str = " and ") -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + last + parts[-1] if parts else ""
