"""Postal addresses: a number and the name of a street, and the flat, town and code that follow it.

Most names of streets end in a word that is nothing else (Street, Avenue). Others are also courts, squares and ways:
they need a flat, a town or a code behind them, or a word such as "lives at" before them. So do numbers that can be
years.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from agent_forge.pii.match import Match

_SURE = (
    r"Street|St|Avenue|Ave|Av|Road|Rd|Boulevard|Blvd|Lane|Ln|Drive|Dr|Parkway|Pkwy|Highway|Hwy|Terrace|Ter|"
    r"Crescent|Cres|"
    r"Mews|Turnpike|Expressway|Freeway|Trafficway|Throughway|Causeway"
)
_UNSURE = (
    r"Courts?|Ct|Place|Pl|Ways?|Squares?|Sq|Circles?|Cir|Trail|Trl|Close|Row|Hills?|Parks?|Gardens?|Groves?|"
    r"Walks?|Plaza|Loop|"
    r"Alley|Path|Points?|Pt|Ridges?|Rise|Views?|Greens?|Manors?|Meadows?|Pass|Run|Crossing|Landing|Islands?|Isle|"
    r"Valleys?|"
    r"Lakes?|Rivers?|Bypass|Centers?|Corners?|Coves?|Creek|Estates?|Falls|Ferry|Fields?|Flats?|Forest|Forges?|"
    r"Forks?|Glens?|"
    r"Harbors?|Haven|Heights|Hollow|Inlet|Junctions?|Keys?|Knolls?|Lights?|Locks|Lodge|Mall|Mills?|Mission|Mount|"
    r"Mountains?|"
    r"Neck|Orchard|Oval|Passage|Pike|Pines?|Ports?|Prairie|Ranch|Rapids?|Shoals?|Shores?|Springs?|Spurs?|Station|"
    r"Stream|"
    r"Summit|Trace|Track|Tunnel|Unions?|Viaduct|Villages?|Ville|Vista|Walks|Wells?|Bend|Bluffs?|Branch|Bridge|"
    r"Brooks?|Burgs?|"
    r"Camp|Canyon|Cape|Cliffs?|Common|Course|Crest|Crossroad|Curve|Dale|Dam|Divide|Drives|Extensions?|Fort|"
    r"Gateway|Motorway|"
    r"Parade|Quay|Ramp|Reach|Rest|Roads|Skyway|Stravenue|Streets|Wall|Wharf|Yard|Esplanade"
)
_CAPITAL = (
    r"[A-ZÀ-Þ][\w'’.]{0,24}(?:-[\w'’.]{1,24})?"  # every repetition is bounded, and one character decides each step
)
_WORD = rf"(?:{_CAPITAL}|\d{{1,3}}(?:st|nd|rd|th)|of|the|de|la)"
_UNIT = r",? (?:Apt|Apartment|Suite|Ste|Unit|Flat|Floor|Room|Bldg|Building|Level|#)\.? ?#?\w{1,6}"
_TOWN = rf"(?:, (?![A-Z]{{2}}\b){_CAPITAL}(?: (?![A-Z]{{1,2}}\d){_CAPITAL}){{0,3}}){{1,2}}"
_CODE = (
    r",? (?:[A-Z]{2,3},? )?\d{4,6}(?:-\d{3,4})?(?!\d)|,? (?:[A-Z]{2} )?[A-Z]\d[A-Z] ?\d[A-Z]\d(?!\w)|"
    r",? [A-Z]{1,2}\d[A-Z\d]? ?\d[A-Z]{2}(?!\w)|,? [A-Z]{2}(?!\w)"
)
_SIDE = r"(?:[NSEW]|North|South|East|West|[NS][EW])"
_STREET = re.compile(
    rf"[0-9]{{1,5}}(?:[A-Za-z](?![A-Za-z])|[-/][0-9]{{1,4}})?,? (?:{_SIDE}\.? )?(?:{_WORD} ){{1,4}}?"
    rf"(?:(?P<sure>{_SURE})|{_UNSURE})\b(?:\.(?=[\s,]))?(?: {_SIDE}\b)?"
    rf"(?P<unit>{_UNIT})?(?P<town>{_TOWN})?(?P<code>{_CODE})?"
)
_FLAT_FIRST = re.compile(r"(?:Flat|Apt|Apartment|Unit|Suite|Studio)\.? ?\w{1,5},? \Z")
_BEFORE = re.compile(
    r"\b(?:address\w{0,4}|liv(?:es?|ed|ing)|resid\w{1,6}|located|ship\w{0,4}|deliver\w{0,4}|mail(?:ed)?|sent?d?|"
    r"moved?|home|house|"
    r"office|at|to|stay\w{0,4}|from|pick.?up|drop.?off|visit|billing|delivery)\b[^.!?;\n\d]{0,24}\Z",
    re.IGNORECASE,
)
PO_BOX = re.compile(r"P\.? ?O\.? Box \d{1,6}", re.IGNORECASE)
# German and Dutch: the kind of street ends the name.
COMPOUND = re.compile(
    r"(?:stra(?:ß|ss)e|str\.|weg|platz|allee|gasse|damm|ufer|straat|laan|plein|gracht|kade|singel|steeg) "
    r"\d{1,4}(?:[/ ]?[a-z])?(?!\w)(?:,? (?:[A-Z]{1,2}-)?\d{4,5}(?: [A-Z]{2})?(?: [A-ZÄÖÜ][\w.\-]{1,24}){1,3})?"
)
_COMPOUND_HEAD = re.compile(r"(?<!\w)(?:[A-ZÄÖÜ][\w.]{0,20}[ \-]){0,3}[A-ZÄÖÜ][a-zäöüß]{1,24}\Z")
_COMPOUND_ENDS = (
    "straße ", "strasse ", "str. ", "weg ", "platz ", "allee ", "gasse ", "damm ", "ufer ", "straat ", "laan ",
    "plein ", "gracht ", "kade ", "singel ", "steeg ",
)  # fmt: skip
# The Romance languages and Polish: the kind of street stands first, in French behind the number.
FRENCH = re.compile(
    r"[0-9]{1,4}(?: ?(?:bis|ter|[A-Za-z]))?,? (?:[Rr]ue|[Aa]venue|[Bb]oulevard|[Pp]lace|[Cc]hemin|[Ii]mpasse|"
    r"[Qq]uai|[Aa]ll[ée]e) "
)
KIND_FIRST = re.compile(
    r"(?:Rue|Calle|Avenida|Av\.|Plaza|Paseo|Via|Viale|Piazza|Corso|Vicolo|Rua|Travessa|Aleja|Plac|Pasadizo|Camino|"
    r"Cuesta|Ronda|"
    r"Glorieta|Urbanizaci[óo]n|Pasaje|Callej[óo]n|Ca[ñn]ada|Strada|Borgo|Contrada|Rotonda|Stretto|Incrocio|Canale|"
    r"Rodovia|"
    r"Alameda|Estrada|Viela|Pra[çc]a|Aeroporto|Campo|Ch[áa]cara|Col[ôo]nia|Condom[íi]nio|Conjunto|Distrito|"
    r"Esplanada|Favela|"
    r"Fazenda|Feira|Jardim|Ladeira|Lagoa|Largo|Loteamento|Morro|N[úu]cleo|Parque|Passarela|P[áa]tio|Quadra|"
    r"Recanto|Residencial|"
    r"S[íi]tio|Trecho|Trevo|Vale|Vereda|Viaduto|Vila|ul\.|al\.) "
)
_NAME_BEHIND = re.compile(
    rf"(?:(?:de|du|des|del|della|dei|da|do|dos|la|le|las|los) |[ld]['’]){{0,3}}{_CAPITAL}(?: (?:{_CAPITAL}|de|la|"
    rf"da|do|das|dos|del|di)){{0,5}}"
    rf"(?P<number>,? (?:n[ºo°]\.? ?)?\d{{1,4}}(?:/\d{{1,4}})?(?!\w))?"
    rf"(?P<rest>(?:,? [^\W\d_][\w'’.º\-]{{0,24}}){{0,6}}?,? \d{{4,5}}(?:-\d{{3}})?(?!\w)(?: {_CAPITAL}){{0,4}})?"
)
CHINESE = re.compile(
    r"[\u4e00-\u9fff](?:[\u4e00-\u9fff]{1,20})?(?:路|街|道|巷|"
    r"胡同)[\u4e00-\u9fff]{0,4}\d{1,5}号(?:[\u4e00-\u9fff\d\-]{0,20}[室楼座])?"
)
_YEAR = re.compile(r"(?:1[5-9]|20)\d\d(?!\d)")
STREET_NUMBER = re.compile(r"[0-9][A-Za-z]?,? [A-ZÀ-Þ0-9]")


def find_streets(text: str) -> Iterator[Match]:
    """`221B Baker Street, London NW1 6XE`."""
    done = 0
    for anchor in STREET_NUMBER.finditer(text):
        start = anchor.start()
        while start > done and anchor.start() - start < 9 and text[start - 1] in "0123456789-/":
            start -= 1
        if start < done or (start and (text[start - 1].isalnum() or text[start - 1] in "-/.$€£#,")):
            continue
        hit = _STREET.match(text, start)
        if hit is None or not _is_address(text, hit):
            continue
        done = start + len(hit.group().rstrip(" ,."))
        first = _FLAT_FIRST.search(text, max(0, start - 24), start)
        start = first.start() if first else start
        yield Match("ADDRESS", start, done, text[start:done])


def _is_address(text: str, hit: re.Match[str]) -> bool:
    if hit["sure"] and not _YEAR.match(hit.group()):
        return True
    code = hit["code"] or ""
    if hit["unit"] or (code and (hit["town"] or any(map(str.isdigit, code)))):
        return True
    return _BEFORE.search(text, max(0, hit.start() - 40), hit.start()) is not None


def find_boxes(text: str) -> Iterator[Match]:
    """`PO Box 1234`."""
    for hit in PO_BOX.finditer(text):
        if not hit.start() or not text[hit.start() - 1].isalnum():
            yield Match("ADDRESS", hit.start(), hit.end(), hit.group())


def find_compound(text: str) -> Iterator[Match]:
    """`Musterstraße 12, 10115 Berlin`."""
    for hit in COMPOUND.finditer(text):
        head = _COMPOUND_HEAD.search(text, max(0, hit.start() - 80), hit.start())
        if head is not None and head.group()[:1].isupper():
            yield Match("ADDRESS", head.start(), hit.end(), text[head.start() : hit.end()])


def has_compound(text: str) -> bool:
    return any(end in text for end in _COMPOUND_ENDS)


def find_french(text: str) -> Iterator[Match]:
    """`12 rue de la Paix, 75002 Paris`."""
    return _named_streets(text, FRENCH, numbered=True)


def find_kind_first(text: str) -> Iterator[Match]:
    """`Calle Mayor 5`, `Via Roma, 10`."""
    return _named_streets(text, KIND_FIRST, numbered=False)


def _named_streets(text: str, kinds: re.Pattern[str], *, numbered: bool) -> Iterator[Match]:
    for kind in kinds.finditer(text):
        name = _NAME_BEHIND.match(text, kind.end())
        begins = not kind.start() or not text[kind.start() - 1].isalnum()
        if name is not None and begins and (numbered or name["number"]):
            yield Match("ADDRESS", kind.start(), name.end(), text[kind.start() : name.end()])


def find_chinese(text: str) -> Iterator[Match]:
    """`北京市朝阳区建国路88号`."""
    for hit in CHINESE.finditer(text):
        yield Match("ADDRESS", hit.start(), hit.end(), hit.group())
