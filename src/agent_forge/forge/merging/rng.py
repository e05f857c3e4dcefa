"""The random numbers of DARE and DELLA: the same bits from numpy and from the C kernel, at the speed of C in both.

The numbers for one input of one tensor come in pages, so that a long tensor can be started anywhere. A page has eight
SFC64 generators (Doty-Humphrey; numpy has them) that step together: eight 64-bit words, or 512 bits, per step.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

Key = tuple[int, int]
PAGE = 1 << 18  # elements
LANES = 8
STEP = 64 * LANES  # bits per step
WARM_UP = 12  # words that a generator discards first, as numpy does
DIGITS = 16
LOW64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def key_of(seed: int, tensor: str, place: int) -> Key:
    """The key of the random numbers for one input of one tensor: two 32-bit words."""
    digest = hashlib.sha256(f"{seed}\0{tensor}\0{place}".encode()).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


def digits_of(probability: float) -> tuple[int, int]:
    """A probability as value / 2^digits, rounded to 16 significant bits: (value, digits).

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
    """A numpy array of `count` booleans, each true with `probability` (as `digits_of` rounds it).

    An element is true if a random binary fraction is below the probability. 512 elements are compared at once, from the
    last digit to the first, so an element takes as many random bits as the probability has digits: one for 0.5.
    """
    value, digits = digits_of(probability)
    if digits == 0:
        return np.full(count, bool(value))
    bits: Any = np.empty(-(-count // STEP) * STEP // 8, np.uint8)  # eight elements per byte, the first the lowest bit
    generator = np.random.SFC64(0)
    for page in range(-(-count // PAGE)):
        steps = -(-min(PAGE, count - page * PAGE) // STEP)
        words = _words(key, page, digits * steps, generator).reshape(-1, digits, LANES)
        below = words[:, 0].copy() if digits > 1 else words
        for digit in range(1, digits):
            (np.bitwise_or if value >> digit & 1 else np.bitwise_and)(below, words[:, digit], out=below)
        part = below.reshape(-1).astype("<u8", copy=False).view(np.uint8)
        bits[page * PAGE // 8 : page * PAGE // 8 + part.size] = part
    return np.unpackbits(bits, bitorder="little", count=count).view(np.bool_)


def random_words(key: Key, start: int, count: int, device: object = None) -> Tensor:
    """`count` random 16-bit words from element `start` on, as int32; any stretch can be drawn on its own."""
    import torch

    parts, end = [np.empty(0, np.int32)], start + count
    while start < end:
        page, first = divmod(start, PAGE)
        last = min(PAGE, end - page * PAGE)
        words = _words(key, page, -(-last * 16 // STEP)).reshape(-1)
        parts.append(words.astype("<u8", copy=False).view("<u2")[first:last].astype(np.int32))
        start = (page + 1) * PAGE
    drawn: Tensor = torch.from_numpy(np.concatenate(parts))
    return drawn if device is None else drawn.to(device)  # type: ignore[call-overload]


def _words(key: Key, page: int, steps: int, generator: Any = None) -> Any:
    """The first steps of a page: 64-bit words [steps, lanes]."""
    words: Any = np.empty((steps, LANES), np.uint64)
    generator = np.random.SFC64(0) if generator is None else generator  # its state is set below
    for lane in range(LANES):
        start = (key[0] | key[1] << 32) + 3 * (page * LANES + lane) * GOLDEN
        seeds = [_splitmix64((start + i * GOLDEN) & LOW64) for i in (1, 2, 3)]
        state = {"state": np.array([*seeds, 1], np.uint64)}
        generator.state = {"bit_generator": "SFC64", "state": state, "has_uint32": 0, "uinteger": 0}
        words[:, lane] = generator.random_raw(WARM_UP + steps)[WARM_UP:]
    return words


def _splitmix64(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & LOW64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & LOW64
    return x ^ x >> 31
