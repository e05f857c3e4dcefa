"""The words of an English text, and which of them carry its meaning."""

from __future__ import annotations

import re

WORD = re.compile(r"[^\W_]+(?:['’.\-][^\W_]+)*")


def word_set(text: str) -> frozenset[str]:
    """The words of a text as a set, for tables of words."""
    return frozenset(text.split())


STOP_WORDS = word_set(
    """a an the this that these those some any each every all both of in on at to for from by with as into about
    over between during and or but nor so than then also if is are was were be been being am do does did done
    has have had having can could will would shall should may might must not no it its he she him her his hers
    they them their theirs we us our you your i me my mine who whom whose which what where when why how there
    here please return same other another such one ones up out off own more most"""
)


def words(text: str) -> list[str]:
    """Lower-case words; apostrophes, hyphens and dots inside a word are kept.

    >>> words("Who's older: Ann or U.S. Grant?")
    ["who's", 'older', 'ann', 'or', 'u.s', 'grant']
    """
    return [word.lower() for word in WORD.findall(text)]


def stem(word: str) -> str:
    """A light stem: enough to let "films" meet "film" and "directed" meet "director"."""
    word = re.sub(r"['’]s?$", "", word)
    for suffix in ("ing", "ors", "ers", "ies", "ed", "or", "er", "es", "s", "e"):
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            return word[: -len(suffix)]
    return word


def content_words(text: str) -> list[str]:
    """Stems of the words that are not stop words, in order, with repeats."""
    return [stem(word) for word in words(text) if word not in STOP_WORDS]
