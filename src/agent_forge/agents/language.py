"""English, as far as planning needs it: words, sentences and the clauses of a request.

Everything works on words, never on substrings: "brand" and "understand" do not contain "and". Every function takes
time linear in its text, whatever the text: requests come from anywhere.

>>> [clause.text for clause in clauses("Find a brand I understand, then email it to Ann and Bob and archive the draft")]
['Find a brand I understand', 'email it to Ann and Bob', 'archive the draft']
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from agent_forge.tasks.words import WORD, word_set

_SENTENCE_END = re.compile(r"(?<=[.?!])[\"'”’)]*\s+(?=[\"'“(]?[A-Z0-9])|\n+")
_ABBREVIATION = re.compile(r"\b(?:[A-Z]|Mr|Mrs|Ms|Dr|St|Jr|Sr|vs|v|etc|e\.g|i\.e|No|Vol|Inc|Ltd|Co|U\.S|U\.K)\.$")
_QUOTATION = r"\"[^\"\n]*\"|“[^“”\n]*”|(?<!\w)'[^'\n]*'(?!\w)"
_QUOTED = re.compile(rf"{_QUOTATION}|\([^()\n]*\)|https?://\S+")
_BLANKS = re.compile(rf"({_QUOTATION})|\s+")
_RUN_OF_BLANKS = re.compile(r"\s\s|[^\S ]")


# Verbs that begin a step. Data, not grammar: such a word only counts where a clause may begin.
VERBS = word_set(
    """access activate add adjust adopt allocate alter analyse analyze announce append apply archive arrange ask
    assemble assess assign attach authenticate backup bake blend block boil book borrow broadcast browse build
    buy calculate call cancel capture change charge chat check choose clean clear click close collect combine
    compare compile compose compress compute conduct configure confirm connect contact convert cook copy correct
    count create crop cut deactivate decide decode decrypt define delete deliver deploy describe design detect
    determine develop display divide download draft draw drop edit email enable encode encrypt enhance enter
    erase estimate evaluate examine execute explain explore export extend extract fetch fill filter finalize
    find fix follow forward gather generate get give go grab group guide hash help highlight identify implement
    import improve increase inform initiate inquire insert inspect install invest investigate invite isolate
    issue join keep label launch learn let list load locate log look mail make manage map mark measure merge
    message mix modify monitor move multiply navigate notify obtain open optimize order organize outline overlay
    pack paint parse paste pay perform pick place plan play plot post predict prepare present preserve press
    print process produce provide publish purchase put query read rearrange rebook receive recharge recommend
    record recover reduce refund register reject release remind remove rename rent repair replace reply report
    reproduce request reschedule reserve reset resize restore retrieve return reverse review rotate run save
    scan schedule score search select sell send sequence set share ship shorten show sign simplify simulate
    solve sort specify split stabilize start stitch stop store submit subscribe subtract suggest sum summarise
    summarize switch synchronize take tell test text tile track train transcribe transfer transform translate
    trim troubleshoot turn understand unlock unsubscribe update upload use validate verify view visit visualize
    wait wash watch write"""
)
_POLITE = re.compile(
    r"^(?:(?:please|kindly|just|first(?:ly)?|second(?:ly)?|third(?:ly)?|next|lastly|finally|also|additionally|furthermore|"
    r"moreover|meanwhile|afterwards?|then|and|but|so|to|immediately|once (?:done|that is done)|after (?:that|this)|"
    r"(?:can|could|would|will) you(?: please)?(?: also)?(?: help me(?: to)?)?|help me(?: to)?|let(?:'s| us)|"
    r"i(?: would|'d)? (?:also )?(?:need|want|like|wish|would like)(?: you)? (?:help |assistance )?(?:to|with|in)|"
    r"i(?: would|'d)? (?:also )?(?:need|want|like) (?=\w+)|"
    r"i(?: am|'m) (?:also )?(?:interested in|looking for|looking to|trying to|planning to)|be sure to|"
    r"for (?:step|task) \d+)[\s,:]+)+",
    re.IGNORECASE,
)
_WISH = re.compile(r"^.{0,80}?\b(?:need|want|would like|['’]d like|wish|have)\s+(?:you\s+)?to\s+(?=\w)", re.IGNORECASE)
_ASKING = re.compile(
    r"[\s,]*(?:\w+,?\s+)?(?:please|kindly|(?:can|could|would|will) you|help me|let(?:'s| us)|"
    r"i(?:'d| would)?(?: also)? (?:need|want|like))\b",
    re.IGNORECASE,
)
_SEQUENCE = re.compile(
    r"\s*(?:;|[,]?\s*\b(?:and|but)?\s*"
    r"(?:(?:then|after (?:that|this)|afterwards?|finally|lastly|subsequently)\b|next,))[\s,]*\s",
    re.IGNORECASE,
)
_JOIN = re.compile(
    r"(?:,\s*(?:and|or|but)?|\s(?:and|as well as))\s+(?=(?:also\s+|please\s+|to\s+)*(\w+))", re.IGNORECASE
)
_ORDER = re.compile(r"then|after|subsequently", re.IGNORECASE)
_THEN = re.compile(r"\s*(?:and\s+)?(?:then|after (?:that|this)|afterwards?|subsequently)\b", re.IGNORECASE)
_MASK = "\x00"


@dataclass(frozen=True, slots=True)
class Clause:
    """One step as written, and how it is joined to the previous one: "", "and", "then" or "." (a new sentence)."""

    text: str
    joined_by: str = ""
    asks: bool = False  # it began with a request ("could you", "I need to"), which `text` no longer contains


def squeeze(text: str) -> str:
    """The text without blank lines, and with one space for every run of blanks outside quotation marks.

    >>> squeeze("Find \\t  'a  b'\\n \\n  and stop ")
    "Find 'a  b'\\nand stop"
    """
    if not _RUN_OF_BLANKS.search(text):
        return text.strip()
    lines = (_BLANKS.sub(lambda match: match[1] or " ", line).strip() for line in text.split("\n"))
    return "\n".join(line for line in lines if line)


def sentences(text: str) -> list[str]:
    """Sentences and lines; "Dr. No" and "3.5 km" stay whole.

    >>> sentences("Meet Dr. No at 3.5 km. Then call. Thanks!")
    ['Meet Dr. No at 3.5 km.', 'Then call.', 'Thanks!']
    """
    parts: list[list[str]] = []
    for part in _SENTENCE_END.split(squeeze(text)):
        if parts and _ABBREVIATION.search(parts[-1][-1][-6:]):  # no abbreviation is longer
            parts[-1].append(part)
        elif part.strip():
            parts.append([part.strip()])
    return [" ".join(pieces) for pieces in parts]


def plain(text: str) -> str:
    """A clause without its polite or sequencing beginning ("Then, could you please") and without its full stop."""
    text = text.strip().rstrip(" ,;.!")
    wish = _WISH.match(text)
    rest = text[wish.end() :] if wish else text
    polite = _POLITE.match(rest)
    return (rest[polite.end() :] if polite else rest).strip() or text


def clauses(text: str, verbs: Iterable[str] = ()) -> list[Clause]:
    """The steps of a request in the order written; text in quotes, brackets and URLs is never split.

    `verbs` are further words that may begin a step, such as the first words of the tools' names.
    """
    starters = VERBS | {verb.lower() for verb in verbs}
    steps: list[Clause] = []
    for sentence in sentences(text):
        for number, (part, marker) in enumerate(_split(sentence, starters)):
            step = plain(part)
            if not WORD.search(step):
                continue
            joined_by = marker if number else "."
            if _THEN.match(part):
                joined_by = "then"
            asks = bool(_ASKING.match(part) or _WISH.match(part))
            steps.append(Clause(step, joined_by if steps else "", asks))
    return steps


def _split(sentence: str, verbs: frozenset[str]) -> list[tuple[str, str]]:
    """(part, marker) of one sentence: cut at sequence words, and at joining words that are followed by a verb."""
    masked = _QUOTED.sub(lambda match: _MASK * len(match.group()), sentence)
    # "finally" and "next" continue a list; "then" and "after that" put it in order.
    cuts = [
        (m.start(), m.end(), "then" if _ORDER.search(m.group()) else "and")
        for m in _SEQUENCE.finditer(masked)
        if m.start() > 0
    ]
    # Before the first verb "and" joins nouns ("the order and search logs").
    first_verb = next((m.end() for m in WORD.finditer(masked) if m.group().lower() in verbs), len(masked))
    for match in _JOIN.finditer(masked, first_verb):
        if match.group(1).lower() in verbs:
            cuts.append((match.start(), match.end(), "and"))
    parts, position, marker = [], 0, ""
    for start, end, kind in sorted(cuts):
        if start >= position:
            parts.append((sentence[position:start], marker))
            position, marker = end, kind
    return [*parts, (sentence[position:], marker)]
