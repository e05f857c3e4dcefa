"""Which elements of a task vector TIES keeps, found without a compiled kernel and without sorting: by bounds from a
sample that hold few elements, and a count of what lies above."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

SIZE = 1 << 17  # elements of a block of 16-bit integers. Smaller ones cost more calls, larger ones leave the cache
WIDE = 1 << 18  # of floats: there the calls cost more than the cache
SAMPLES = 1 << 14, 1 << 16  # elements of a sample: one in 48, but not fewer nor more than these
SIZE_BITS = np.int16(0x7FFF)  # a bfloat16 number without its sign
INFINITE = 0x7F80


@dataclass(frozen=True)
class Cut:
    """What stays: above `low`, and what equals it up to the place `last`."""

    low: float
    last: int


@dataclass(frozen=True)
class Trim(Cut):
    """The same for a bfloat16 task vector, in terms of |x - base| rounded to bfloat16, as an integer: what is larger
    than `top` stays, and so do the elements at `places`, in ascending order. None is larger than `most`."""

    top: int
    places: Any
    most: int

    def among(self, x: Tensor, base: Tensor) -> Callable[[int, int], Any]:
        """Which elements stay, from one place to another."""
        room, marks = torch.empty(WIDE, dtype=torch.bfloat16), np.empty(WIDE, np.bool_)

        def mask(start: int, end: int) -> Any:
            keys = bits_of(torch.sub(x[start:end], base[start:end], out=room[: end - start]))
            np.bitwise_and(keys, SIZE_BITS, out=keys)
            stays = np.greater(keys, np.int16(self.top), out=marks[: end - start])
            first, last = np.searchsorted(self.places, (start, end))
            stays[self.places[first:last] - start] = True
            return stays

        return mask


def cut_of(x: Tensor, base: Tensor, count: int) -> Cut:
    """The cut that leaves the `count` largest |x - base|."""
    if x.dtype == base.dtype == torch.bfloat16:
        found = trims([x], base, [count])
        if found is not None:
            return found[0]
    n = x.numel()
    sample = _keys(*(_sampled(y) for y in (x, base)))
    share = 1 - count / n
    here = min(int(share * sample.size), sample.size - 1)
    margin = 4 * math.sqrt(sample.size * share * (1 - share)) + 16
    low, high = max(0, int(here - margin)), min(sample.size - 1, int(here + margin))
    sample.partition([low, here, high])
    ends = sample[low] if low else -1.0, sample[high] if high < sample.size - 1 else math.inf
    return _between(x, base, count, *ends) or _sorted_cut(x, base, count)


def _sampled(x: Tensor) -> Tensor:
    """Runs of 16, from all over a tensor."""
    least, most = SAMPLES
    step = x.numel() * 16 // min(max(x.numel() // 48, least), most)
    return x[: x.numel() // step * step].reshape(-1, step)[:, :16].reshape(-1)


def _keys(x: Tensor, base: Tensor) -> Any:
    """|x - base| in float64; zero where that is not a number."""
    return (x.double() - base.double()).abs_().nan_to_num_(nan=0.0, posinf=math.inf).numpy()


# --- bfloat16: rounding keeps the order, so only what shares the threshold's rounded value has to be looked at closely


def bits_of(x: Tensor) -> Any:
    """A bfloat16 tensor as 16-bit integers, the same memory."""
    return x.view(torch.int16).numpy()


def trims(vectors: Sequence[Tensor], base: Tensor, counts: Sequence[int]) -> list[Trim] | None:
    """What leaves the `counts` largest |x - base| of some bfloat16 vectors. None if they are not all finite."""
    bands = [_Band(x, base, count) for x, count in zip(vectors, counts, strict=True)]
    found: list[Trim | None] = [None] * len(bands)
    for margin in (2.2, 9.0, math.inf):
        waiting = [number for number, trim in enumerate(found) if trim is None]
        if waiting and not _look([bands[number].opened(margin) for number in waiting], base):
            return None
        for number in waiting:
            found[number] = bands[number].trim()
    return [trim for trim in found if trim is not None]


def _look(bands: Sequence[_Band], base: Tensor) -> bool:
    """Every band sees all blocks. False if something is not finite."""
    difference = torch.empty(SIZE, dtype=torch.bfloat16)
    spare, inside = np.empty(SIZE, np.uint16), np.empty(SIZE, np.bool_)
    for start in range(0, base.numel(), SIZE):
        here = base[start : start + SIZE]
        n = here.numel()
        for band in bands:
            keys = bits_of(torch.sub(band.x[start : start + SIZE], here, out=difference[:n]))
            np.bitwise_and(keys, SIZE_BITS, out=keys)
            band.most = max(band.most, int(keys.max()))
            if band.most >= INFINITE:
                return False
            band.see(start, keys, spare[:n], inside[:n])
    return True


@dataclass
class _Band:
    """The elements of a task vector whose keys, |x - base| rounded to bfloat16, lie between two bounds."""

    x: Tensor
    base: Tensor
    count: int
    up: Any = None  # how many keys of a sample are not larger than an integer
    low: int = 0
    high: int = 0
    greater: int = 0
    most: int = 0
    found: list[tuple[Any, ...]] = field(default_factory=list)  # places, keys, x, base

    def __post_init__(self) -> None:
        self.bits = bits_of(self.x), bits_of(self.base)

    def opened(self, margin: float) -> _Band:
        """With bounds that are `margin` standard errors of a sample's quantile away from it."""
        if self.up is None:
            sample = bits_of(torch.sub(_sampled(self.x), _sampled(self.base)))
            self.up = np.cumsum(np.bincount(sample & SIZE_BITS, minlength=INFINITE))
        size, share = int(self.up[-1]), 1 - self.count / self.x.numel()
        away = margin * math.sqrt(size * share * (1 - share)) + 2 if margin < math.inf else size
        ends = max(share * size - away, 0), min(share * size + away, size)
        low, high = (max(int(place), 1) for place in np.searchsorted(self.up, ends))
        self.low = low if ends[0] else 1
        self.high = high if ends[1] < size else INFINITE
        self.greater, self.found = 0, []
        return self

    def see(self, start: int, keys: Any, spare: Any, inside: Any) -> None:
        """Takes in a block."""
        self.greater += int(np.count_nonzero(np.greater(keys, np.int16(self.high), out=inside)))
        np.subtract(keys.view(np.uint16), np.uint16(self.low), out=spare)
        found = np.less_equal(spare, np.uint16(self.high - self.low), out=inside).nonzero()[0]
        x, base = (bits[start : start + SIZE][found] for bits in self.bits)  # now, while they are in the cache
        self.found.append((found + start, keys[found], x, base))

    def trim(self) -> Trim | None:
        """What stays, if the threshold lies between the bounds."""
        need = self.count - self.greater
        places, keys, x, base = (np.concatenate(column) for column in zip(*self.found, strict=True))
        if need > keys.size and self.low == 1:  # all that is not zero stays; whether zeros do makes no difference
            return Trim(0.0, -1, self.high, places, self.most)
        if not 0 < need <= keys.size:
            return None
        above = np.cumsum(np.bincount(keys - self.low)[::-1])
        step = int(np.searchsorted(above, need))
        key = above.size - 1 - step + self.low
        equal = np.flatnonzero(keys == key)
        stays = keys > key
        pair = (torch.from_numpy(bits[equal]).view(torch.bfloat16) for bits in (x, base))
        left = need - (int(above[step - 1]) if step else 0)
        middle = float(np.array(key << 16, np.int32).view(np.float32))  # most differences need no rounding
        cut, chosen = _within(_keys(*pair), places[equal], left, middle)
        stays[equal[chosen]] = True
        return Trim(cut.low, cut.last, self.high, places[stays], self.most)


def _within(keys: Any, places: Any, count: int, guess: float = -1.0) -> tuple[Cut, Any]:
    """The cut that leaves the `count` largest keys, and which of them these are. `guess` may be its value."""
    value, stays = guess, keys > guess
    if not np.count_nonzero(stays) < count <= np.count_nonzero(keys >= guess):
        value = float(np.sort(keys)[keys.size - count])  # many are equal, which makes `np.partition` ten times as slow
        stays = keys > value
    equal = np.flatnonzero(keys == value)[: count - int(np.count_nonzero(stays))]
    stays[equal] = True
    return Cut(value, int(places[equal[-1]])), stays


# --- other types ------------------------------------------------------------------------------------------------------


def _between(x: Tensor, base: Tensor, count: int, low: float, high: float) -> Cut | None:
    """The cut, if it lies between two bounds that hold few elements."""
    least, most = np.float32(low), np.float32(high)
    greater, places = 0, []
    for start in range(0, x.numel(), SIZE):
        near = (x[start : start + SIZE].float() - base[start : start + SIZE].float()).abs_().numpy()  # keeps the order
        greater += int(np.count_nonzero(near > most))
        places.append(np.flatnonzero((near >= least) & (near <= most)) + start)
    inside = np.concatenate(places)
    if x.dtype == torch.float64 or not greater < count <= greater + inside.size:
        return None
    at = torch.from_numpy(inside)
    return _within(_keys(x[at], base[at]), inside, count - greater)[0]


def _sorted_cut(x: Tensor, base: Tensor, count: int) -> Cut:
    return _within(_keys(x, base), np.arange(x.numel()), count)[0]
