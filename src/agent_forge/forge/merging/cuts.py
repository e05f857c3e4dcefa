"""Which elements of a task vector TIES keeps, found without a compiled kernel and without sorting: by a value guessed
from a sample and proved by counting, or by bounds from it that hold few elements."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

SIZE = 1 << 16  # elements of a block: a multiple of the unit of a sum
SAMPLE = 1 << 14
TRIES = 4


@dataclass(frozen=True)
class Cut:
    """What stays: above `low`, and what equals it up to the place `last`."""

    low: float
    last: int


def _keys(x: Tensor, base: Tensor) -> Any:
    """|x - base| in float64; zero where that is not a number."""
    return (x.double() - base.double()).abs_().nan_to_num_(nan=0.0, posinf=math.inf).numpy()


def cut_of(x: Tensor, base: Tensor, count: int) -> Cut:
    """The cut that leaves the `count` largest |x - base|."""
    n = x.numel()
    step = n * 16 // SAMPLE  # runs of 16, from all over the tensor
    sample = _keys(*(y[: n // step * step].reshape(-1, step)[:, :16].reshape(-1) for y in (x, base)))
    share = 1 - count / n
    here = min(int(share * sample.size), sample.size - 1)
    margin = 4 * math.sqrt(sample.size * share * (1 - share)) + 16
    low, high = max(0, int(here - margin)), min(sample.size - 1, int(here + margin))
    sample.partition([low, here, high])
    if np.count_nonzero(sample == sample[here]) * 128 >= sample.size:
        found = _by_values(x, base, count, sample, float(sample[here]))
    else:
        ends = sample[low] if low else -1.0, sample[high] if high < sample.size - 1 else math.inf
        found = _between(x, base, count, *ends)
    return found or _sorted_cut(x, base, count)


def _by_values(x: Tensor, base: Tensor, count: int, sample: Any, value: float) -> Cut | None:
    """In 16-bit types many elements share a value, and the threshold is likely one of those: one pass proves it."""
    for _ in range(TRIES):
        greater, equal = _count(x, base, value)
        if greater < count <= greater + sum(equal):
            which = count - 1 - greater
            for block, many in enumerate(equal):
                if which < many:
                    start = block * SIZE
                    keys = _keys(x[start : start + SIZE], base[start : start + SIZE])
                    return Cut(value, start + int(np.flatnonzero(keys == value)[which]))
                which -= many
        others = sample[sample > value] if count <= greater else sample[sample < value]
        if not others.size:
            return None
        value = float(others.min() if count <= greater else others.max())
    return None


def _count(x: Tensor, base: Tensor, value: float) -> tuple[int, list[int]]:
    """How many keys are larger than a value, and, block by block, how many equal it."""
    floats = x.dtype == base.dtype == torch.bfloat16 and float(np.float32(value)) == value
    a, b, room = torch.empty(SIZE), torch.empty(SIZE), np.empty(SIZE, np.bool_)
    greater, equal = 0, []
    for start in range(0, x.numel(), SIZE):
        here, there = x[start : start + SIZE], base[start : start + SIZE]
        if floats:
            p, q = a[: here.numel()], b[: here.numel()]
            p.copy_(here)
            q.copy_(there)
            keys = p.sub_(q).abs_().numpy()
        else:
            keys = _keys(here, there)
        bound, same = (np.float32(value) if floats else value), room[: keys.size]
        greater += int(np.count_nonzero(np.greater(keys, bound, out=same)))
        np.equal(keys, bound, out=same)
        many = np.count_nonzero(same)
        if floats and many:  # equal to float32's precision: look at these more closely
            places = torch.from_numpy(np.flatnonzero(same))
            exact = _keys(here[places], there[places])
            greater += int(np.count_nonzero(exact > value))
            many = np.count_nonzero(exact == value)
        equal.append(int(many))
    return greater, equal


def _between(x: Tensor, base: Tensor, count: int, low: float, high: float) -> Cut | None:
    """The cut, if it lies between two bounds that hold few elements."""
    least, most = np.float32(low), np.float32(high)
    greater, places, keys = 0, [], []
    for start in range(0, x.numel(), SIZE):
        here, there = x[start : start + SIZE], base[start : start + SIZE]
        near = (here.float() - there.float()).abs_().numpy()  # rounding keeps the order
        greater += int(np.count_nonzero(near > most))
        found = np.flatnonzero((near >= least) & (near <= most))
        chosen = torch.from_numpy(found)
        keys.append(_keys(here[chosen], there[chosen]))
        places.append(found + start)
    inside, at = np.concatenate(keys), np.concatenate(places)
    if x.dtype == torch.float64 or not greater < count <= greater + inside.size:
        return None
    value = float(np.partition(inside, inside.size - (count - greater))[inside.size - (count - greater)])
    which = count - 1 - greater - int(np.count_nonzero(inside > value))
    return Cut(value, int(at[np.flatnonzero(inside == value)[which]]))


def _sorted_cut(x: Tensor, base: Tensor, count: int) -> Cut:
    keys = _keys(x, base)
    value = float(np.partition(keys, keys.size - count)[keys.size - count])
    return Cut(value, int(np.flatnonzero(keys == value)[count - 1 - int(np.count_nonzero(keys > value))]))
