"""Finds held-out documents in training text by their runs of words.

A word is a number of 64 bits, from its letters; a run of words is a sum of those numbers, each times a random factor of
its place. All are computed for a whole document at once: a Python loop over the words took most of a phase's reading.
Two runs that differ have the same number with a chance of about 2^-60.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import cache

import numpy as np

from agent_forge.curation.lines import UNSPACED

GRAM = 13  # words: the length that contamination checks commonly use (GPT-3, appendix C)
SHORTEST = 5  # words: a shorter text is no quotation
WORD = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+")  # in scripts without spaces, every letter
MARKS = re.compile(
    "[\u00ad\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u200b-\u200f\u202a-\u202e\u2060-\u2064\u3099\u309a\ufeff]"
)
CHARACTERS = 0x110000
NOTHING, LETTER, WHOLE = 0, 1, 2  # what a character is: between words, part of a word, a word by itself
BASE = 0x9E3779B97F4A7C15
INVERSE = pow(BASE, -1, 1 << 64)
FACTORS = np.random.default_rng(0).integers(1 << 64, size=GRAM, dtype=np.uint64) | np.uint64(1)
INDEX_BITS = 22


@cache
def _characters() -> tuple[np.ndarray, np.ndarray]:
    """What each character is, and its number."""
    kinds = np.full(CHARACTERS, NOTHING, np.uint8)
    everything = "".join(map(chr, range(CHARACTERS)))
    for found in WORD.finditer(everything):
        kinds[found.start() : found.end()] = LETTER
    for found in re.finditer(f"[{UNSPACED}]+", everything):
        kinds[found.start() : found.end()] = WHOLE
    return kinds, np.random.default_rng(1).integers(1 << 64, size=CHARACTERS, dtype=np.uint64)


def _words(text: str) -> np.ndarray:
    """The numbers of the words, without case, accents and invisible marks: re-encoded text gives the same."""
    if not text.isascii():
        text = MARKS.sub("", unicodedata.normalize("NFKD", text))
    codes = np.frombuffer(text.casefold().encode("utf-32-le", "surrogatepass"), np.uint32)
    of_kind, number_of = _characters()
    kinds = np.zeros(len(codes) + 2, np.uint8)  # NOTHING before and after
    kinds[1:-1] = of_kind[codes]
    letters, alone = kinds == LETTER, kinds[1:-1] == WHOLE
    first = np.flatnonzero(alone | (letters[1:-1] & ~letters[:-2]))
    last = np.flatnonzero(alone | (letters[1:-1] & ~letters[2:]))
    # a word's number is the sum of its letters' numbers times BASE^place in the word: a difference of running sums,
    # divided by BASE^place of the word; all modulo 2^64
    sums = np.zeros(len(codes) + 1, np.uint64)
    np.cumsum(number_of[codes] * _powers(BASE, len(codes)), out=sums[1:])
    return (sums[last + 1] - sums[first]) * _powers(INVERSE, len(codes))[first]


def _powers(base: int, count: int) -> np.ndarray:
    powers = np.full(count, base, np.uint64)
    powers[:1] = 1
    return np.cumprod(powers)


def _runs(words: np.ndarray, length: int) -> np.ndarray:
    """The numbers of all runs of so many words, or of the whole text where it is shorter."""
    length = min(length, len(words))
    count = len(words) - length + 1
    numbers = np.zeros(count, np.uint64)
    for place in range(length):
        numbers += words[place : place + count] * FACTORS[place]
    return numbers


class Leaks:
    """Finds copies, near copies and quotations of held-out documents by their 13-grams.

    A document leaks if more than a tenth of its 13-grams are held out, or if it contains half of those of one held-out
    document. Held-out texts of fewer than 13 words must match word for word; of fewer than 5, as a whole document.
    """

    def __init__(self, held_out: Iterable[str]) -> None:
        texts = [_words(text) for text in held_out]
        grams = [np.unique(_runs(words, GRAM)) for words in texts]
        self._sizes = np.array([len(of) for of in grams], np.int64)
        owners = np.repeat(np.arange(len(grams)), self._sizes)
        self._grams = Numbers(np.concatenate([*grams, np.zeros(0, np.uint64)]))
        self._owners = owners[self._grams.order]
        short = [words for words in texts if SHORTEST <= len(words) < GRAM]
        self._first = Numbers(np.array([words[0] for words in short], np.uint64))
        self._short = {
            length: Numbers(np.array([_runs(words, length)[0] for words in short if len(words) == length], np.uint64))
            for length in {len(words) for words in short}
        }

    def found_in(self, text: str, share: float = 0.1, part: float = 0.5) -> bool:
        """Whether the text leaks held-out documents."""
        words = _words(text)
        grams = _runs(words, GRAM)
        held = grams[self._grams.among(grams)]
        if len(held) > share * len(grams) or self._quotes_a_short_one(words):
            return True
        ends = (np.searchsorted(self._grams.sorted, np.unique(held), side) for side in ("left", "right"))
        quoted = [self._owners[first:last] for first, last in zip(*ends, strict=True)]
        if not quoted:
            return False
        return bool((np.bincount(np.concatenate(quoted), minlength=len(self._sizes)) >= part * self._sizes).any())

    def _quotes_a_short_one(self, words: np.ndarray) -> bool:
        starts = self._first.among(words)
        for length, texts in self._short.items():
            fitting = starts[starts <= len(words) - length]
            runs = words[fitting[:, None] + np.arange(length)]
            if len(texts.among((runs * FACTORS[:length]).sum(1))):
                return True
        return False


class Numbers:
    """Numbers to look up: a table by their first bits says of most others at once that they are not among them."""

    def __init__(self, numbers: np.ndarray) -> None:
        self.order = np.argsort(numbers, kind="stable")
        self.sorted = numbers[self.order]
        self._index = np.zeros(1 << INDEX_BITS if len(numbers) else 0, bool)
        self._index[numbers >> (64 - INDEX_BITS)] = True

    def among(self, numbers: np.ndarray) -> np.ndarray:
        """The places of those that are among these."""
        if not len(self.sorted):
            return np.zeros(0, np.int64)
        places = np.flatnonzero(self._index[numbers >> (64 - INDEX_BITS)])
        found = numbers[places]
        near = np.searchsorted(self.sorted, found).clip(max=len(self.sorted) - 1)
        return places[self.sorted[near] == found]
