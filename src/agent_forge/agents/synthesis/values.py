"""Values in text: dates, numbers, names, places, and countries by name or adjective."""

from __future__ import annotations

import math
import re
import unicodedata

_NAMES = "january february march april may june july august september october november december"
MONTHS = {name: number for number, name in enumerate(_NAMES.split(), 1)}
_MONTH = "|".join(MONTHS)
YEAR = r"\d{3,4}(?:\s*(?:BC|BCE|AD|CE))?"
DATE = (
    rf"(?i:\d{{1,2}}(?:st|nd|rd|th)?\s+(?:{_MONTH})\s*,?\s*{YEAR}|(?:{_MONTH})\s+\d{{1,2}}(?:st|nd|rd|th)?\s*,\s*{YEAR}|"
    rf"(?:{_MONTH})\s+{YEAR}|{YEAR})"
)
_DAY_FIRST = re.compile(rf"^(?P<d>\d{{1,2}})(?:st|nd|rd|th)?\s+(?P<m>{_MONTH})\s*,?\s*(?P<y>.+)$", re.IGNORECASE)
_MONTH_FIRST = re.compile(rf"^(?P<m>{_MONTH})\s+(?P<d>\d{{1,2}})(?:st|nd|rd|th)?\s*,\s*(?P<y>.+)$", re.IGNORECASE)
_MONTH_YEAR = re.compile(rf"^(?P<m>{_MONTH})\s+(?P<y>\d.*)$", re.IGNORECASE)
_YEAR = re.compile(r"^(?P<y>\d{1,4})\s*(?P<era>BC|BCE|AD|CE)?$", re.IGNORECASE)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_SCALE = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}

# A capitalised name of at most 16 words, with its small joining words, initials and suffixes.
_CAPITAL = r"[^\W\d_a-zß-öø-ÿ]"
_INITIAL = rf"(?:{_CAPITAL}|Jr|Sr|St|Dr|Mr|Mrs|Ste|Mt|Ft|Wm|Chas|Geo)\."
_WORD = rf"(?:{_INITIAL}|{_CAPITAL}[\w'’]{{0,40}}(?:-[\w'’]{{1,40}}){{0,5}})"
_SMALL = r"(?:de|di|da|du|des|dos|van|von|der|den|la|le|del|della|dei|al|el|bin|ibn|bint|of|the|y|zu|af|mac|ap|e)"
NAME = rf"{_WORD}(?:(?:\s+{_SMALL}){{0,3}}\s*(?<=[\s.]){_WORD}){{0,15}}"
PLACE = rf"{NAME}(?:,\s*{NAME}){{0,5}}"

_DEMONYMS = """
United States: american u.s us usa united-states | United Kingdom: british english scottish welsh united-kingdom
england scotland wales uk | France: french | Germany: german | Italy: italian | Spain: spanish catalan | Portugal:
portuguese | Ireland: irish | Netherlands: dutch | Belgium: belgian | Switzerland: swiss | Austria: austrian |
Poland: polish | Russia: russian | Soviet Union: soviet | Ukraine: ukrainian | Czech Republic: czech |
Czechoslovakia: czechoslovak czechoslovakian | Slovakia: slovak | Hungary: hungarian | Romania: romanian | Bulgaria:
bulgarian | Greece: greek | Turkey: turkish | Ottoman Empire: ottoman | Serbia: serbian | Croatia: croatian |
Slovenia: slovenian slovene | Yugoslavia: yugoslav yugoslavian | Bosnia and Herzegovina: bosnian | North Macedonia:
macedonian | Albania: albanian | Denmark: danish | Sweden: swedish | Norway: norwegian | Finland: finnish | Iceland:
icelandic | Estonia: estonian | Latvia: latvian | Lithuania: lithuanian | India: indian hindi tamil telugu malayalam
kannada bengali marathi punjabi bollywood | Pakistan: pakistani | Bangladesh: bangladeshi | Sri Lanka: sri-lankan
sinhala sinhalese | Nepal: nepalese nepali | China: chinese | Hong Kong: hong-kong | Taiwan: taiwanese | Japan:
japanese | South Korea: south-korean korean | North Korea: north-korean | Vietnam: vietnamese | Thailand: thai |
Philippines: filipino philippine | Indonesia: indonesian | Malaysia: malaysian | Singapore: singaporean | Myanmar:
burmese | Cambodia: cambodian | Mongolia: mongolian | Kazakhstan: kazakhstani kazakh | Uzbekistan: uzbek uzbekistani
| Iran: iranian persian | Iraq: iraqi | Israel: israeli | Lebanon: lebanese | Syria: syrian | Jordan: jordanian |
Egypt: egyptian | Saudi Arabia: saudi | Kuwait: kuwaiti | Palestine: palestinian | Yemen: yemeni | Afghanistan:
afghan | Armenia: armenian | Azerbaijan: azerbaijani | Georgia: georgian | Australia: australian | New Zealand:
new-zealand | Canada: canadian | Mexico: mexican | Cuba: cuban | Jamaica: jamaican | Haiti: haitian | Puerto Rico:
puerto-rican | Dominican Republic: dominican | Guatemala: guatemalan | Costa Rica: costa-rican | Panama: panamanian
| Colombia: colombian | Venezuela: venezuelan | Peru: peruvian | Ecuador: ecuadorian | Bolivia: bolivian | Chile:
chilean | Argentina: argentine argentinian | Uruguay: uruguayan | Paraguay: paraguayan | Brazil: brazilian |
Nigeria: nigerian | Ghana: ghanaian | Kenya: kenyan | Uganda: ugandan | Tanzania: tanzanian | Ethiopia: ethiopian |
Somalia: somali | South Africa: south-african | Zimbabwe: zimbabwean | Zambia: zambian | Senegal: senegalese | Mali:
malian | Cameroon: cameroonian | Ivory Coast: ivorian | Morocco: moroccan | Algeria: algerian | Tunisia: tunisian |
Libya: libyan | Sudan: sudanese | Luxembourg: luxembourgish luxembourgian | Malta: maltese | Cyprus: cypriot |
Belarus: belarusian | Moldova: moldovan
"""


def _countries() -> dict[str, str]:
    table: dict[str, str] = {}
    for entry in _DEMONYMS.replace("\n", " ").split("|"):
        country, words = (part.strip() for part in entry.split(":"))
        for word in [country.lower(), *(word.replace("-", " ") for word in words.split())]:
            table[word] = country
    return table


COUNTRY_OF = _countries()
_COUNTRY = re.compile(
    r"\b(" + "|".join(sorted(map(re.escape, COUNTRY_OF), key=len, reverse=True)) + r")\b", re.IGNORECASE
)


def plain(text: str) -> str:
    """Lower case without accents and punctuation, to compare names.

    >>> plain("Sylvie et le Fantôme")
    'sylvie et le fantome'
    """
    folded = unicodedata.normalize("NFKD", text)
    letters = "".join(char for char in folded if not unicodedata.combining(char)).casefold()
    return " ".join(re.sub(r"[^\w\s]", " ", letters.replace("'", "")).split())


def parse_date(text: str) -> tuple[int, int, int] | None:
    """(year, month, day), 0 for what is missing; years BC are negative.

    >>> parse_date("15 March 1632"), parse_date("May 24, 1946"), parse_date("1929")
    ((1632, 3, 15), (1946, 5, 24), (1929, 0, 0))
    """
    text = text.strip()
    match = _DAY_FIRST.match(text) or _MONTH_FIRST.match(text) or _MONTH_YEAR.match(text)
    parts = match.groupdict() if match else {"y": text}
    year = _YEAR.match(parts["y"].strip())
    if not year:
        return None
    number = int(year["y"]) * (-1 if (year["era"] or "").upper().startswith("BC") else 1)
    return number, MONTHS[parts["m"].lower()] if "m" in parts else 0, int(parts.get("d") or 0)


def parse_number(text: str) -> float | None:
    """The first number in a text, with its scale.

    >>> parse_number("about 1,467 rooms"), parse_number("2.5 million")
    (1467.0, 2500000.0)
    """
    number = _NUMBER.search(text)
    if not number:
        return None
    scale = re.match(r"\s*(thousand|million|billion|trillion)\b", text[number.end() :], re.IGNORECASE)
    value = float(number.group().replace(",", "")) * (_SCALE[scale.group(1).lower()] if scale else 1)
    return value if math.isfinite(value) else None


def country_in(text: str) -> str | None:
    """The first country in a text, by name or adjective.

    >>> country_in("a 1966 American sex comedy film"), country_in("a thing")
    ('United States', None)
    """
    match = _COUNTRY.search(text)
    return COUNTRY_OF[match.group(1).lower()] if match else None
