"""Which language a text is written in: by its script, else by the small words that no text can do without."""

from __future__ import annotations

import re
from collections import Counter

_SCRIPTS = {
    "ja": re.compile("[\u3040-\u30ff]"),
    "ko": re.compile("[\uac00-\ud7af]"),
    "zh": re.compile("[\u4e00-\u9fff]"),
    "ru": re.compile("[\u0400-\u04ff]"),
    "ar": re.compile("[\u0600-\u06ff]"),
    "hi": re.compile("[\u0900-\u097f]"),
    "el": re.compile("[\u0370-\u03ff]"),
    "he": re.compile("[\u0590-\u05ff]"),
    "th": re.compile("[\u0e00-\u0e7f]"),
}
_SMALL_WORDS = {
    language: frozenset(words.split())
    for language, words in {
        "en": "the of and to in is that it for was on are as with his they at be this have from or by what how you we",
        "de": "der die das und ist nicht ein eine zu den mit von auf für im sich auch dem des wie wir sie ich es",
        "fr": "le la les des et est une un du en que qui dans pour pas sur avec au par il elle nous vous je ce",
        "es": "el la los las de y que en un una es por con para no se del al lo como su más pero",
        "it": "il lo la gli le di e che un una è per con non si del della sono nel come più ma anche",
        "pt": "o a os as de e que em um uma é por com para não se do da no na como mais mas",
        "nl": "de het een en van is dat niet op te zijn met voor aan er maar om ook als bij",
    }.items()
}
_WORD = re.compile(r"[^\W\d_]+")
_LANGUAGES_OF = {
    word: tuple(language for language, small in _SMALL_WORDS.items() if word in small)
    for word in frozenset().union(*_SMALL_WORDS.values())
}
_HEAD = 2000


def language_of(text: str) -> str:
    """An ISO 639-1 code, or "und" for a short text or another language.

    >>> language_of("How many apples are in the basket?"), language_of("12 + 5")
    ('en', 'und')
    """
    head = text[:_HEAD]
    if not head.isascii():
        letters = sum(map(str.isalpha, head))
        for language, script in _SCRIPTS.items():
            if letters and len(script.findall(head)) > 0.2 * letters:
                return language
    words = _WORD.findall(head.lower())
    hits: Counter[str] = Counter()
    for word in words:
        hits.update(_LANGUAGES_OF.get(word, ()))
    best = max(_SMALL_WORDS, key=lambda language: hits[language])
    return best if hits[best] >= 2 and hits[best] >= 0.08 * len(words) else "und"
