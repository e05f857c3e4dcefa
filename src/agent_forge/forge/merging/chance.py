"""The random numbers of DARE and DELLA: the same bits from numpy and from the C kernel, at the speed of C in both.

The numbers of one input of one tensor come in pages, so that a long tensor can be begun anywhere. A page has eight
generators of the kind SFC64 (Doty-Humphrey; numpy has it), which step together: eight 64-bit words, or 512 bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

Key = tuple[int, int]
PAGE = 1 << 18  # elements
LANES = 8
STEP = 64 * LANES  # the bits of one step
DISCARDED = 12  # the first words of a generator, as numpy does
DIGITS = 16
LOW64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def key_of(seed: int, tensor: str, place: int) -> Key:
    """The key of the random numbers for one input of one tensor: two 32-bit words."""
    digest = hashlib.sha256(f"{seed}\0{tensor}\0{place}".encode()).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


def digits_of(probability: float) -> tuple[int, int]:
    """A probability as an integer and a number of binary digits, value / 2^digits: rounded to 16 significant bits.

    >>> digits_of(0.5), digits_of(0.75), digits_of(0.3)
    ((1, 1), (3, 2), (19661, 16))
    """
    digits = DIGITS
    while digits < 60 and 0 < probability * (1 << digits) < 1 << (DIGITS - 1):
        digits += 1
    value = min(round(probability * (1 << digits)), 1 << digits)
    while digits and value % 2 == 0:
        value, digits = value // 2, digits - 1
    return value, digits


def random_mask(key: Key, count: int, probability: float) -> Any:
    """`count` booleans that are true with `probability` (as `digits_of` rounds it): a numpy array."""
    bits = random_bits(key, count, probability)
    return np.unpackbits(bits, bitorder="little", count=count).view(np.bool_)


def random_bits(key: Key, count: int, probability: float) -> Any:
    """The same as bytes, eight elements in each, the first one the lowest bit.

    Each is the comparison of a random number, digit by digit, with the probability. 512 are compared at once, from the
    last digit to the first, so it takes as many bits an element as the probability has digits: one for 0.5.
    """
    value, digits = digits_of(probability)
    size = -(-count // STEP) * STEP // 8
    if digits == 0:
        return np.full(size, 255 if value else 0, np.uint8)
    bits: Any = np.empty(size, np.uint8)
    generator = np.random.SFC64(0)
    for page in range(-(-count // PAGE)):
        steps = -(-min(PAGE, count - page * PAGE) // STEP)
        words = _words(key, page, digits * steps, generator).reshape(-1, digits, LANES)
        below = words[:, 0].copy() if digits > 1 else words
        for digit in range(1, digits):
            (np.bitwise_or if value >> digit & 1 else np.bitwise_and)(below, words[:, digit], out=below)
        found = below.reshape(-1).astype("<u8", copy=False).view(np.uint8)
        bits[page * PAGE // 8 : page * PAGE // 8 + found.size] = found
    return bits


def random_words(key: Key, start: int, count: int, device: object = None) -> Tensor:
    """`count` random 16-bit words from element `start` on, as int32; any part can be made on its own."""
    import torch

    parts = [part.astype(np.int32) for part in _word_parts(key, start, count)]
    found: Tensor = torch.from_numpy(np.concatenate(parts) if parts else np.empty(0, np.int32))
    return found if device is None else found.to(device)  # type: ignore[call-overload]


def _word_parts(key: Key, start: int, count: int) -> Iterator[Any]:
    end = start + count
    while start < end:
        page, first = divmod(start, PAGE)
        last = min(PAGE, end - page * PAGE)
        words = _words(key, page, -(-last * 16 // STEP)).reshape(-1)
        yield words.astype("<u8", copy=False).view("<u2")[first:last]
        start = (page + 1) * PAGE


def _words(key: Key, page: int, steps: int, generator: Any = None) -> Any:
    """The first steps of a page: 64-bit words by step and lane."""
    words: Any = np.empty((steps, LANES), np.uint64)
    generator = np.random.SFC64(0) if generator is None else generator  # only its method counts, not its state
    for lane in range(LANES):
        state = np.array([*_seeds(key, page * LANES + lane), 1], np.uint64)
        generator.state = {"bit_generator": "SFC64", "state": {"state": state}, "has_uint32": 0, "uinteger": 0}
        words[:, lane] = generator.random_raw(DISCARDED + steps)[DISCARDED:]
    return words


def _seeds(key: Key, lane: int) -> list[int]:
    """Three words of splitmix64, from where the lane's own begin."""
    start = key[0] | key[1] << 32
    return [_mixed((start + (3 * lane + i) * GOLDEN) & LOW64) for i in (1, 2, 3)]


def _mixed(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & LOW64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & LOW64
    return x ^ x >> 31
