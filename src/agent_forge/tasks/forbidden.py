"""What no judgement of an applicant may mention: age, gender, nationality, religion, family, looks and health."""

from __future__ import annotations

import re
from collections.abc import Iterable

_DECADES = "(?:twen|thir|for|fif|six|seven)t(?:y|ies)"
_PATTERNS = {
    "age": rf"age|aged|ageing|years? old|\d+[- ]year[- ]old|born|birth\w*|young\w*|youth\w*|older|elderly|middle-aged"
    rf"|(?:19|20)?\d0s|{_DECADES}[- ]?(?:something|one|two|three|four|five|six|seven|eight|nine)"
    rf"|(?:over|under|past|in (?:his|her|their)(?: early| mid| late)?) {_DECADES}"
    r"|millennials?|boomers?|generation [xyz]|retire\w*|digital natives?",
    "gender": r"he|she|him|his|her|hers|himself|herself|(?-i:Mr|Mrs|Ms|Miss)|male|female|man|men|woman|women|gender\w*"
    r"|lady|ladies|gentlem[ae]n|guy|girl|boy|non-binary|transgender",
    "family": r"marital|married|unmarried|divorced|widow\w*|spouse|husband|wife|child|children|kids?|son|sons"
    r"|daughters?|pregnan\w*|mother\w*|mum|mom|father\w*|dad|parent\w*|maternity|paternity"
    r"|single (?:parent|mother|father)|is single",
    "nationality": r"national(?:ity|s)?|citizen\w*|passport|foreign\w*|immigrant\w*|migrant\w*|native (?:of|speaker)"
    r"|ethnic\w*|racial\w*|african|american|arab\w*|asian|brazilian|british|canadian|chinese|dutch|egyptian|european"
    r"|finnish|french|german|greek|indian|irish|italian|japanese|korean|mexican|nigerian|norwegian|pakistani|polish"
    r"|portuguese|russian|spanish|swedish|syrian|turkish|ukrainian|vietnamese",
    "religion": r"religio\w*|faith|christian\w*|catholic\w*|protestant\w*|orthodox|muslims?|islam\w*|jew|jews|jewish"
    r"|hindus?|buddhis[mt]\w*|sikhs?|atheis[mt]\w*|church\w*|mosque|synagogue|parish|prayers?|ramadan",
    "looks": r"photo\w*|headshot|portrait|good-looking|handsome|beautiful|attractive|pretty|skin|looks (?:good|well)",
    "health": r"disab\w*|handicap\w*|wheelchair|chronic\w*|illness\w*|sick\w*|blind|deaf",
}
_ATTRIBUTES = {
    name: re.compile(rf"(?<![\w-])(?:{pattern})(?![\w-])", re.IGNORECASE) for name, pattern in _PATTERNS.items()
}


def forbidden_attributes(text: str, private: Iterable[str] = ()) -> list[str]:
    """What a text says about such attributes, also paraphrased; `private` are further words it must not contain.

    >>> forbidden_attributes("In her forties and a mother of two, she knows SQL.")
    ["age: 'In her forties'", "gender: 'her'", "family: 'mother'"]
    >>> forbidden_attributes("Six years of Python; can start on 1 May.")
    []
    """
    hits = [f"{name}: {match[0]!r}" for name, pattern in _ATTRIBUTES.items() if (match := pattern.search(text))]
    for word in private:
        if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE):
            hits.append(f"private: {word!r}")
    return hits
