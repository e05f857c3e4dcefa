"""API keys, passwords and private keys: published prefixes, and values that a word like `password` introduces.

Every rule has an anchor that a substring search finds; nothing else of the rule runs where the anchor is missing.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator

from agent_forge.pii.match import Match

# Prefixes without a separator.
FIXED = re.compile(
    r"A(?<![A-Za-z0-9]A)(?:(?:KIA|SIA)[A-Z0-9]{16}(?![A-Za-z0-9])|Iza[A-Za-z0-9_\-]{30,40}|TATT3[A-Za-z0-9_\-=]{60,300})"
)
# Prefixes that end in a separator: a search for a separator and a long tail serves them all, and the words in it that
# end at a separator are looked up. `pat` and fourteen letters are Airtable's.
TAIL = re.compile(r"[_.\-][A-Za-z0-9_\-]{16,}")
_HEAD = re.compile(r"(?<![A-Za-z0-9])[A-Za-z0-9]{2,18}(?=[_.\-])")
_HEADS = frozenset({
    "ghp", "gho", "ghu", "ghs", "ghr", "github", "glpat", "gldt", "glrt", "glptt", "xoxa", "xoxb", "xoxe", "xoxo",
    "xoxp", "xoxr", "xoxs", "xapp", "sk", "rk", "pk", "whsec", "hf", "npm", "pypi", "r8", "gsk", "xai", "ya29",
    "SG", "hvs", "hvb", "key", "shpat", "shpca", "shppa", "shpss", "dop", "doo", "dor", "sq0atp", "sq0csp", "lin",
    "figd", "glsa", "glc", "tskey", "NRAK", "sntrys", "sntryu", "rubygems", "nfp", "CFPAT", "secret", "dckr",
    "pplx", "tvly", "ntn", "PMAK", "AGE",
})  # fmt: skip
_LONGEST_PREFIX = 18
_LONGEST_SECRET = 4096
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"gh[pousr]_[A-Za-z0-9]{20,255}|github_pat_[A-Za-z0-9_]{22,255}|gl(?:pat|dt|rt|ptt)-[A-Za-z0-9_\-]{20,60}|"
    r"xox[abeoprs]-[A-Za-z0-9\-]{10,250}|xapp-[A-Za-z0-9\-]{20,250}|"
    r"sk-(?:ant-|proj-|or-v1-|svcacct-)?[A-Za-z0-9_\-]{20,250}|(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,250}|"
    r"whsec_[A-Za-z0-9]{24,64}|hf_[A-Za-z0-9]{20,60}|npm_[A-Za-z0-9]{30,60}|pypi-[A-Za-z0-9_\-]{50,250}|"
    r"r8_[A-Za-z0-9]{30,60}|gsk_[A-Za-z0-9]{30,80}|xai-[A-Za-z0-9]{40,120}|ya29\.[A-Za-z0-9_\-]{20,400}|"
    r"SG\.[A-Za-z0-9_\-]{16,64}\.[A-Za-z0-9_\-]{16,64}|hv[sb]\.[A-Za-z0-9_\-]{24,250}|key-[0-9a-f]{32}|"
    r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}|do[por]_v1_[0-9a-f]{64}|sq0(?:atp|csp)-[A-Za-z0-9_\-]{22,60}|"
    r"lin_api_[A-Za-z0-9]{32,64}|figd_[A-Za-z0-9_\-]{30,60}|glsa_[A-Za-z0-9_]{32,64}|glc_[A-Za-z0-9+/=]{32,250}|"
    r"tskey-[A-Za-z0-9\-]{20,80}|NRAK-[A-Z0-9]{27}|sntry[su]_[A-Za-z0-9+/=_]{40,250}|rubygems_[0-9a-f]{48}|dapi[0-9a-f]{32}(?:-\d)?|"
    r"nfp_[A-Za-z0-9]{36,40}|pat[A-Za-z0-9]{14}\.[0-9a-f]{64}|CFPAT-[A-Za-z0-9_\-]{40,50}|secret_[A-Za-z0-9]{40,60}|"
    r"dckr_pat_[A-Za-z0-9_\-]{20,60}|pplx-[A-Za-z0-9]{40,60}|tvly-[A-Za-z0-9\-]{20,60}|"
    r"ntn_[A-Za-z0-9]{40,60}|PMAK-[0-9a-f]{24}-[0-9a-f]{34}|AGE-SECRET-KEY-1[0-9A-Z]{40,80}"
    r")(?![A-Za-z0-9])"
)
_WEBHOOK = re.compile(r"hooks\.slack\.com/services/[A-Za-z0-9+/]{20,80}")
_JWT = re.compile(r"(?<![A-Za-z0-9])eyJ[A-Za-z0-9_\-]{8,2000}\.eyJ[A-Za-z0-9_\-]{8,4000}(?:\.[A-Za-z0-9_\-]{8,1000})?")
_LEAST_ENTROPY = 2.8
_WORDS = re.compile(r"[a-z]{1,14}(?:[\-_.][a-z]{1,14})*\Z")  # sk-learn-contrib-categorical-encoding

# A keyword, then what links it to its value. `key` counts only behind a word that says which key.
_KEY_OF = re.compile(r"(?:api|access|auth|secret|encryption|signing|account|private|client|master)[_\- ]?\Z")
_ASSIGNMENT = re.compile(
    r"(?:passw(?:or)?[dt]|passphrase|pwd|secret|token|key|bearer|credential|authorization)s?"
    r"(?:[_\- ](?:access|key|id|token|value|number)){0,2}(?: (?:for|of|on|to)(?: [\w.'\-]{1,20}){1,3}(?=:| is | was ))?"
    r"(?P<link>[\"']?\s{0,3}(?::=|=>|:|=|\b(?:is|was|are|were|to|as)\b)\s{0,3}(?:bearer\s|basic\s|token\s|digest\s)?|\s)"
    r"(?P<quote>\\?[\"'`]?)",
    re.IGNORECASE,
)
_VALUE, _PASSWORD = re.compile(r"[^\s\"'`,;<>(){}\[\]]{6,128}"), re.compile(r"[^\s\"'`]{6,128}")
_CALL = re.compile(r"[A-Za-z_]\(|\{\w")  # code, not a password with brackets in it
# Another value of the same kind follows: "passwords: A and B".
_NEXT = re.compile(r"[\"'`!?.]{0,2}(?:\s?[,;/&]\s?|\s)(?:and\s|or\s)?(?P<quote>[\"'`]?)")
# Words with digits that follow "password" in sentences about passwords.
_TECHNICAL = re.compile(
    r"(?:sha|md|utf|base|argon|scrypt|bcrypt|pbkdf|aes|rsa|oauth|ipv|tls|ssl|win|windows|python|http|version|step|level|"
    r"phase|part|chapter|section|figure|table|option|question|erc|bep|gpt|page|line|v)[\-_]?\d|\d+[\-]?(?:char|digit|bit|fa\b|"
    r"st\b|nd\b|rd\b|th\b|x\b|s\b|%)|[\d.,:/\-]+\Z",
    re.IGNORECASE,
)
_SHORTEST = 8  # of a secret that is no password
_PASSWORD_WORDS = ("passw", "pwd", "passphrase")
_MIXED = re.compile(r"(?=(?:\D*\d){3})|\d[A-Za-z]")  # three digits, or one inside
_MOST_LISTED = 8
_SPOKEN = ("", "is", "was", "are", "were", "to", "as")
_DIGIT = re.compile(r"[0-9]")
_PLACEHOLDER = re.compile(
    r"x{4,}|\*{3,}|\.{3}|your|example|change|placeholder|dummy|redacted|process\.env|os\.|environ|getenv|config\.|self\.|"
    r"settings\.|^\$|%\(|none\b|null\b|true\b|false\b|://|^\[|^<|^https?:|_token$|_key$|^/",
    re.IGNORECASE,
)
_KEY_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_BODY = re.compile(r"[A-Za-z0-9+/=\s\\:,\-]*")


def entropy(text: str) -> float:
    """Shannon entropy in bits per character.

    >>> entropy("aaaa"), entropy("abcd")
    (0.0, 2.0)
    """
    size = len(text)
    return abs(sum(n / size * math.log2(size / n) for n in Counter(text).values())) if size else 0.0


def find_private_keys(text: str) -> Iterator[Match]:
    """PEM blocks; one whose end is missing goes as far as its body does."""
    done, closed = 0, True
    for begin in _KEY_BEGIN.finditer(text):
        if begin.start() < done:
            continue
        end = _KEY_END.search(text, begin.end()) if closed else None
        closed = end is not None  # once no end follows, none follows later either: do not search again
        body = end or _KEY_BODY.match(text, begin.end())
        done = body.end() if body else begin.end()
        yield Match("PRIVATE_KEY", begin.start(), done, text[begin.start() : done])


def find_fixed(text: str) -> Iterator[Match]:
    """Keys whose prefix has no separator: Amazon's, Google's, Atlassian's."""
    return _strong(FIXED.finditer(text))


def find_jwt(text: str) -> Iterator[Match]:
    """JSON Web Tokens."""
    return _strong(_JWT.finditer(text))


def find_webhooks(text: str) -> Iterator[Match]:
    """Addresses of Slack's webhooks, which are keys themselves."""
    return _strong(_WEBHOOK.finditer(text))


def find_tokens(text: str) -> Iterator[Match]:
    """Keys that a published prefix gives away."""
    return _strong(_tokens(text))


def _tokens(text: str) -> Iterator[re.Match[str]]:
    done = 0
    for tail in TAIL.finditer(text):
        stop = min(tail.end() + 128, tail.start() + _LONGEST_SECRET)
        for head in _HEAD.finditer(text, max(done, tail.start() - _LONGEST_PREFIX), tail.end()):
            word = head.group()
            if word not in _HEADS and not (len(word) == 17 and word.startswith("pat")):
                continue
            if head.start() >= done and (token := _TOKEN.match(text, head.start(), stop)):
                done = token.end()
                yield token


def _strong(tokens: Iterator[re.Match[str]]) -> Iterator[Match]:
    """The tokens that are random enough; those from manuals are marked as reserved."""
    for token in tokens:
        written = token.group()
        if entropy(written[4:]) >= _LEAST_ENTROPY and not _WORDS.match(written):
            sample = "EXAMPLE" in written or "_test_" in written[:10]
            yield Match("SECRET", token.start(), token.end(), written, sample)


def find_assigned(text: str, word: str, at: int) -> Iterator[Match]:
    """The value that the keyword at `at` introduces: `password: hunter22`, `api_key="…"`."""
    if word == "key" and not _KEY_OF.search(text[max(0, at - 12) : at].lower()):
        return
    hit = _ASSIGNMENT.match(text, at)
    if hit is None:
        return
    link, password = hit["link"].strip().lower(), word in _PASSWORD_WORDS
    for _ in range(_MOST_LISTED):
        found = (_PASSWORD if password else _VALUE).match(text, hit.end())
        value = found.group().rstrip(".,;!?:\\") if found else ""
        if not _is_secret(word, link, bool(hit["quote"]), value) or (password and _CALL.search(value)):
            return
        yield Match("SECRET", hit.end(), hit.end() + len(value), value)
        hit = _NEXT.match(text, hit.end() + len(value))
        if hit is None:
            return


def _is_secret(word: str, link: str, quoted: bool, value: str) -> bool:
    if len(value) < 6 or not _DIGIT.search(value) or _PLACEHOLDER.search(value):
        return False
    if link in _SPOKEN and word != "bearer":
        return _is_spoken_secret(word, quoted or link not in ("", "to", "as"), value)
    kinds = any(map(str.islower, value)) + any(map(str.isupper, value)) + (not value.isalnum())
    if not kinds or (not quoted and word != "bearer" and "." in value[1:-1] and not value.startswith("eyJ")):
        return False  # a number, or an expression of code such as self.token1.value
    if word in _PASSWORD_WORDS:
        return True
    return len(value) >= 12 and entropy(value) >= 3.0


def _is_spoken_secret(word: str, pointed: bool, value: str) -> bool:
    """A value that a sentence mentions: "my password hunter22", "the token is …". Ordinary words with a digit are not.

    `pointed` values stand in quotation marks or behind a verb.
    """
    letters = sum(map(str.isalpha, value))
    if not letters or "\\" in value or (_TECHNICAL.match(value) and not (pointed and len(value) >= 12)):
        return False
    if word in _PASSWORD_WORDS:
        return True
    return len(value) >= _SHORTEST and entropy(value) >= 2.3 and _MIXED.search(value) is not None
