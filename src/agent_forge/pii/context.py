"""The words beside a number that tell a telephone from an order number."""

from __future__ import annotations

import re
from collections import deque

_PHONE_WORDS = (
    r"phones?|telephone|telefone?|tel[ée]fonos?|t[ée]l[ée]phone|telefon\w*|mobiles?|mobil(?:nummer)?|m[óo]vil|celular|"
    r"cellphone|cellular|handy(?:nummer)?|fax|dial(?:led|ed|ing)?|sms|whatsapp|wa\.me|viber|telegram|hotline|"
    r"helpline|landline|"
    r"voicemail|desk|pager|phone\s?number|(?:contact|my|his|her|hers|our|your|new|callback|call-back|"
    r"emergency) (?:number|num)|"
    r"numéro|numero|nums?|callers?(?: id)?|callees?|emergency contacts?|"
    r"rufnummer|cellulare|gsm|switchboard|toll.free|телефон\w*"
)
# What these name can only be a telephone number: anything may stand between, up to the end of the sentence.
_PHONE_NUMBERS = r"(?:phone|telephone|mobile|cell|fax|contact|whatsapp)\s?(?:phone\s)?(?:numbers?|no\b\.?|nr\b\.?)"
# Their full stop ends no sentence.
_PHONE_ABBREVIATIONS = r"(?:tel|t[ée]l|tlf|mob|cell|cel|ph|тел|моб)(?:(?![\w])\.?)|[☎☏✆📞📱📲]"
# Scripts that part no words with spaces.
_UNSPACED_PHONE_WORDS = r"电话|電話|手机|手機|携帯|전화|휴대폰|핸드폰|هاتف"
# Verbs label a number only when it is their object: "call me at …", not "they call it the 1048576 problem".
_PHONE_VERBS = r"call(?:s|ed|ing)?|ring|rang|contact(?:ed)?|my registered"
# These have other objects ("the answer is 5040", "reach 300000 users"): only a preposition makes it a telephone.
_REACHING_VERBS = r"text(?:ed|ing)?|reach(?:ed)?|answer(?:ing|ed)?|messages?"
_OBJECT = re.compile(
    r"(?:\W{0,3}(?:(?:me|us|him|her|them|you|back|now|here|please|directly|someone|today|anytime|tonight|"
    r"support)\W{1,3}){0,3}|"
    r"[^.!?;,\n]{0,36}\b(?:at|on|to|is|via|using|number|no|nr)\W{0,3})\Z"
)
_AT = re.compile(r"(?<=text) \Z|[^.!?;\n]{0,36}\b(?:at|on|to|via|using|number)\W{0,3}\Z")
# What may stand between a noun and its number: not "mobile games made 50000000", but "phone, for Jo Ann: 50000000".
_LABELLED = re.compile(
    r"(?:[\W_]{0,6}|\W{0,2}\([^()]{1,20}\)\W{0,3}| (?:of|for)(?: [^\W\d]{1,12}){1,3}\W{1,3}|"
    r"[^.!?;\n]{0,36}(?:[:=#/|]| [–\-] |['’]s|\b(?:at|on|to|as|via|using|numbers?|no|nr|recipient|me|us|now|"
    r"(?:is|are|was)(?: still| now)?|est|ist|es|lautet|le|al|au|il|unter))[\W_]{0,4})\Z|"
    r"[号番は是]{1,4}[\W_]{0,3}\Z|번호\w?[\W_]{0,3}\Z"
)
_OTHER_WORDS = (
    r"orders?|invoices?|tickets?|tracking|track|isbn|issn|serial|part|sku|refs?|reference|accounts?|acct|cases?|po|"
    r"timestamp|epoch|unix|time|date|dated|version|build|id|ids|uuid|guid|hash|commit|zip|postcode|postal|price|total|"
    r"amount|usd|eur|transaction|txn|barcode|ean|upc|model|batch|lot|rows?|bytes|flight|parcel|shipment|receipt|claim|"
    r"policy|member|membership|customer|employee|student|confirmation|booking|reservation|order\s?number|item|product|"
    r"section|page|pages|line|lines|port|pid|seed|score|population|salary|budget|vin|imei|doi|asin|license|licence|"
    r"passport|routing|iban|swift|ssn|vat|ein|tin"
)
_BEFORE = re.compile(
    rf"(?<![\w])(?:(?P<named>{_PHONE_NUMBERS})|(?P<phone>{_PHONE_WORDS})|(?P<verb>{_PHONE_VERBS})|"
    rf"(?P<reaching>{_REACHING_VERBS})|"
    rf"(?P<other>{_OTHER_WORDS}))(?![\w])|(?P<unspaced>{_UNSPACED_PHONE_WORDS})|"
    rf"(?<![\w])(?P<short>{_PHONE_ABBREVIATIONS})|[.!?;](?<!\bno\.)(?<!\bnr\.)(?=\s)(?P<stop>)"
)
# How a label of each kind may be joined to its number.
_JOINED = {
    "named": re.compile(r"[^.!?;\n]{0,30}\Z"),
    "phone": _LABELLED,
    "short": _LABELLED,
    "unspaced": _LABELLED,
    "verb": _OBJECT,
    "reaching": _AT,
}
_AFTER = re.compile(
    r"[\s\-,(\[/]{0,4}(?:office|fax|mobile|mob|cell|home|work|desk|tel|phone|direct|landline|whatsapp)(?![\w])"
)
_ADJACENT_OTHER = re.compile(rf"(?<![\w])(?:{_OTHER_WORDS})(?:\s?(?:no|nr|num|number|code|id)\b\.?)?\W{{0,3}}\Z")
# Goods and papers that are numbered in the form of a card or of a social security number.
_GOODS = re.compile(
    r"(?<![\w])(?:orders?|invoices?|tickets?|tracking|isbn|serial|part|sku|batch|lot|shipment|parcel|rma)"
    r"(?:\s?(?:no|nr|num|number|code|id)\b\.?)?(?:\s(?:is|was))?\W{0,3}\Z"
)
_DOI = re.compile(r"\b10\.\d{4,9}/")
_CARD = re.compile(
    r"card|visa|master|amex|american express|discover|diners|maestro|jcb|credit|debit|\bcc\b|pan\b|payment"
)
_SSN = re.compile(r"\bssn\b|\bss\s?#|social\s?sec")
_VERSION_WORDS = (
    r"(?:version|ver|release|build|firmware|revision|rev|section|chapter|clause|oid|upgrade[ds]?|driver|patch|tag|"
    r"v|changelog|§)"
)
_VERSION = re.compile(rf"{_VERSION_WORDS}\W{{0,4}}(?:\w{{1,12}}\W{{1,2}}){{0,2}}\Z")
_VERSION_NEXT = re.compile(rf"(?<![a-z]){_VERSION_WORDS}s?[\W_]{{0,7}}\Z")
_STATE = re.compile(r"\b[A-Z]{2}\s{1,2}\Z")
_ADDRESS = re.compile(
    r"\b(?:ips?|ipv4|address|addr|host|server|ping|subnet|gateway|dns|router|from|client|http|https|ssh)\b"
)

_BETWEEN = re.compile(r"[0-9\[{<]")
_IBAN = re.compile(r"\biban\b|account|transfer|bank")
_STREET_BEFORE = re.compile(r"\b(?:suite|ste|apt|apartment|unit|floor|room|box|flat|building|bldg|lot|no)\b\W{0,3}\Z")
_STREET_AFTER = re.compile(r" (?:[A-Z][a-zà-ÿ]+|\d+(?:st|nd|rd|th)\b)")
_STREET_NAME = re.compile(r" [A-Z][\w'’à-ÿ]+ [A-Z][a-zà-ÿ]")
_PLACEHOLDER = re.compile(r"\[?[a-z_0-9:]{0,40}\]")
WINDOW = 48


def before(text: str, start: int) -> str:
    """The words just before `start`, in lower case, without what is in brackets.

    The placeholders of an earlier scrub stand in brackets. `[PHONE]` must not label the number behind it, or scrubbing
    twice would change what scrubbing once left.
    """
    words = text[max(0, start - WINDOW) : start].lower()
    words = _PLACEHOLDER.sub("[]", words) if "]" in words else words
    return words.replace("_", " ")  # phone_number and mobile_no are words like others


def phone_context(text: str, start: int, end: int) -> bool:
    """A telephone word labels this number: the nearest label before it, or the word right behind it."""
    words = before(text, start)
    nearest = next(iter(deque(_BEFORE.finditer(words), maxlen=1)), None)
    if _STREET_NAME.match(text, end):
        return False  # "call a taxi to 14 3684 Court Street"
    if nearest is not None and not _BETWEEN.search(words, nearest.end()):
        joined = _JOINED.get(nearest.lastgroup or "")
        if joined is not None and joined.match(words, nearest.end()):
            return True
        if nearest.lastgroup == "other" and "\n" not in words[nearest.end() :]:
            return False
    return _AFTER.match(text[end : end + 16].lower()) is not None


# A line of a call log: what happened, and then somebody's number.
_CALL = re.compile(
    r"(?<![\w])(?:(?:in|out)(?:coming|going|bound)|missed|declined|unanswered|dropped|voicemails?|dial(?:l?ed|ing)|"
    r"(?:phone |voice |video |missed |incoming |outgoing )?calls?|called|calling|sms|texts?|texted|whatsapps?|"
    r"rang)(?![\w])"
    r"(?P<between>[^\n]{0,60}?)(?:\b(?:from|to|by|with|for|at|on)|[:,(<\-–→]|[a-z\u4e00-\u9fff.]) {0,2}[(<\[]?\Z"
)
_SENTENCE = re.compile(r"[!?;](?=\s)|(?<=[^\W\d_]{5})\.(?=\s)")  # titles and initials end in a point too
# A name in front of a number in brackets: two to four capitalised words, or two to four Chinese characters.
_NAME = re.compile(
    r"(?:(?<!\w)(?P<last>[^\W\d_a-z][\w'’.\-]{0,20})(?: [^\W\d_a-z][\w'’.\-]{0,20}){1,4}|"
    r"[\u3040-\u30ff\u4e00-\u9fff]{2,6}(?: [\u4e00-\u9fff]{1,4})?|"
    r"(?<!\w)(?:[Ss]peaker|[Cc]aller|[Cc]allee|[Aa]gent|[Cc]ustomer|[Uu]ser|[Cc]lient|[Gg]uest|[Cc]ontact|"
    r"[Pp]articipant)"
    r"(?: ?\d{1,3})?) ?[(<\[]\Z"
)
_CAPITALS = re.compile(r"[^\W\d_][\w'’.\-]*")


def in_call_log(text: str, start: int, end: int) -> bool:
    """A line that speaks of a call, and ends with this number of eight digits or more."""
    line = text[max(0, start - 90) : start].rpartition("\n")[2].lower()
    hit = None
    for hit in _CALL.finditer(_PLACEHOLDER.sub("[]", line) if "]" in line else line):
        if not _SENTENCE.search(hit["between"]) and not re.search(
            rf"(?<![\w])(?:{_OTHER_WORDS})(?![\w])", hit["between"]
        ):
            return sum(map(str.isdigit, text[start:end])) >= 8
    return False


def behind_name(text: str, start: int, end: int) -> bool:
    """The number stands alone in brackets behind somebody's name: `Chen Jianguo (13802135691)`."""
    if text[end : end + 1] not in (")", ">", "]") or sum(map(str.isdigit, text[start:end])) < 8:
        return False
    before_it = text[max(0, start - 60) : start]
    hit = _NAME.search(before_it)
    if hit is None:
        return False
    words = _CAPITALS.findall(hit.group())
    if hit["last"] is None:
        return True
    return all(word[0].isupper() for word in words) and not re.search(
        rf"(?<![\w])(?:{_OTHER_WORDS})(?![\w])", hit.group().lower()
    )


_NAMED_PHONE = re.compile(rf"(?<![\w])(?:{_PHONE_NUMBERS})\W{{0,4}}(?:is\W{{1,2}})?\Z")


_ASKED = re.compile(
    r"(?:phone|mobile|cell|contact|callback|whatsapp|telephone)\s?(?:number|"
    r"no\b\.?)[^.!?\d]{0,12}\?\W{0,3}[^.!?\d]{0,30}\Z"
)


def asked_for(text: str, start: int) -> bool:
    """The number answers a question: "Your callback number?" "Sure, …"."""
    return _ASKED.search(before(text, start)) is not None


def named_phone(text: str, start: int) -> bool:
    """The words right before say that this is a telephone number."""
    return _NAMED_PHONE.search(before(text, start)) is not None


def joins(char: str) -> bool:
    """Whether a letter or digit beside a number is part of the same word: not in scripts that write without spaces."""
    return char.isalnum() and char < "\u0e00"


def labelled_otherwise(text: str, start: int) -> bool:
    """The word directly before says that this is an order number, an ISBN or the like."""
    return _ADJACENT_OTHER.search(before(text, start)) is not None


def goods_label(text: str, start: int) -> bool:
    """The word directly before says that goods or papers are numbered here."""
    return _GOODS.search(before(text, start)) is not None


def state_before(text: str, start: int) -> bool:
    """Two capitals stand before, as in `Natick, MA 01760-2098`."""
    return _STATE.search(text, max(0, start - 5), start) is not None


def in_path(text: str, start: int) -> bool:
    """A part of the path of a URL or of a DOI begins here: `https://a.org/2020/09/02/1007938`."""
    if text[start - 1 : start] != "/":
        return False
    token = text[max(0, start - WINDOW) : start].rsplit(maxsplit=1)[-1]
    return "://" in token or "www." in token or _DOI.search(token) is not None


def address_around(text: str, start: int, end: int) -> bool:
    """House and flat numbers: a word such as suite before them, or the name of a street behind."""
    return _STREET_BEFORE.search(before(text, start)) is not None or _STREET_AFTER.match(text, end) is not None


def card_context(text: str, start: int) -> bool:
    return _CARD.search(before(text, start)) is not None


def ssn_context(text: str, start: int) -> bool:
    return _SSN.search(before(text, start)) is not None


def iban_context(text: str, start: int) -> bool:
    return _IBAN.search(before(text, start)) is not None


def version_context(text: str, start: int) -> bool:
    """A version label stands right before; or near, and nothing speaks of an address."""
    words = before(text, start)
    if _VERSION_NEXT.search(words):
        return True
    return _VERSION.search(words) is not None and _ADDRESS.search(words) is None
