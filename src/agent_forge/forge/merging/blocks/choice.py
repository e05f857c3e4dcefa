"""TIES of two bfloat16 models as a choice among their own numbers, for where there is no compiled kernel.

Let two task vectors have one weight, a power of two, let the sum be divided by the weights of those that agree, and
lambda be 1. An element of the merge is then the base's (nothing stays), one model's (the other does not stay, or points
the other way and is smaller), or the mean of both. Which of them it is depends on signs and on which difference is
larger; that can be told from differences rounded to bfloat16, since rounding keeps the order, except where they become
equal. So all but the differences and the mean are operations on 16-bit integers, the cheapest there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agent_forge.forge.merging.blocks.cuts import SIZE, SIZE_BITS, Trim, bits_of
from agent_forge.forge.merging.layout import Output

SIGN = np.int16(15)  # the shift that makes a mask of a sign
APART = 40 << 7  # binary orders of magnitude, up to which float64 loses nothing
TINY = 0x0200  # below this a mean may be subnormal


def can_choose(output: Output) -> bool:
    """Whether an output of TIES, with inputs in bfloat16, is such a choice."""
    weights = [p.values["weight"] for place, p in enumerate(output.pieces) if place != output.base]
    if len(weights) != 2 or weights[0] != weights[1] or math.frexp(weights[0])[0] != 0.5:
        return False
    usual = output.values["normalize"] and output.values["lambda"] == 1 and output.spec.dtype == "BF16"
    return bool(usual) and 2.0**-20 < weights[0] < 2.0**20


class Choice:
    """Fills blocks of the merge of `base`, `x` and `y`."""

    def __init__(self, base: Tensor, x: Tensor, y: Tensor, trims: Sequence[Trim]) -> None:
        tensors = base, x, y
        self.blocks = list(zip(*(tensor.split(SIZE) for tensor in tensors), strict=True))
        self.bits = [bits_of(tensor) for tensor in tensors]
        self.floats = [torch.empty(SIZE, dtype=torch.bfloat16) for _ in range(3)]
        self.float_bits = [bits_of(buffer) for buffer in self.floats]
        self.room: list[Any] = [np.empty(SIZE, np.int16) for _ in range(3)]
        self.marks: list[Any] = [np.empty(SIZE, np.bool_) for _ in range(2)]
        self.tops = [np.int16(trim.top) for trim in trims]
        self.places = [_by_block(trim.places, len(self.blocks)) for trim in trims]
        self.trims = trims
        self.least = max(max(trim.most for trim in trims) - APART, TINY)

    def fill(self, start: int, end: int, out: Tensor) -> Any:
        """Fills a block of the output; gives the places in it that have to be done otherwise."""
        n = end - start
        if n < SIZE:  # the last one
            self.floats = [buffer[:n] for buffer in self.floats]
            self.float_bits, self.room, self.marks = (
                [buffer[:n] for buffer in buffers] for buffers in (self.float_bits, self.room, self.marks)
            )
        base, x, y = self.blocks[start // SIZE]
        torch.sub(x, base, out=self.floats[0])
        torch.sub(y, base, out=self.floats[1])
        torch.lerp(x, y, 0.5, out=self.floats[2])  # exact in float32, or far from where rounding twice could matter
        made = bits_of(out)
        self._choose(start, end, made)
        return self._lost(start, end, made)

    def _choose(self, start: int, end: int, out: Any) -> None:
        """Chooses; marks the places where two opposite differences may be equal."""
        base, x, y = (bits[start:end] for bits in self.bits)
        v, w, mean = self.float_bits
        v_stays, w_stays, spare = self.room
        np.bitwise_xor(v, w, out=spare)  # the sign: whether they are opposite
        for number, (size, stays) in enumerate(((v, v_stays), (w, w_stays))):
            np.bitwise_and(size, SIZE_BITS, out=size)
            np.subtract(self.tops[number], size, out=stays)
            np.right_shift(stays, SIGN, out=stays)
            stays[self.places[number][start // SIZE]] = -1
            np.bitwise_and(size, stays, out=size)
        _select(v_stays, x, base, out)
        agree, opposite = v_stays, w_stays
        np.bitwise_and(v_stays, w_stays, out=agree)
        np.bitwise_and(agree, spare, out=opposite)
        np.bitwise_xor(agree, opposite, out=agree)
        np.subtract(v, w, out=v)
        equal, marks = self.marks
        np.bitwise_and(np.equal(v, 0, out=equal), np.less(opposite, 0, out=marks), out=equal)
        np.right_shift(v, SIGN, out=v)
        _select(v, y, out, out, spare)
        np.right_shift(agree, SIGN, out=agree)
        _select(agree, mean, out, out, spare)

    def _lost(self, start: int, end: int, out: Any) -> Any:
        """Takes their sign from zeros; gives what is marked, and where float64 may have lost something because the
        result or the base is so much smaller than the differences."""
        base = self.bits[0][start:end]
        lost = self.marks[0]
        if _smallest(out) < self.least:
            out[out == np.int16(-0x8000)] = 0
            lost |= ((out & SIZE_BITS) < self.least) & (((out | base) & SIZE_BITS) != 0)
        if _smallest(base) < self.least:
            lost |= ((base & SIZE_BITS) - np.int16(1)).view(np.uint16) < self.least - 1  # zero is no trouble
        return lost.nonzero()[0]

    def exactly(self, places: Any, base: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Some elements in float64: the definition, in few steps."""
        b = base.double().numpy()
        v, w = (_kept(other.double().numpy() - b, places, t) for other, t in zip((x, y), self.trims, strict=True))
        plus = v + w >= 0
        v, w = (np.where(plus, np.maximum(part, 0.0), np.minimum(part, 0.0)) for part in (v, w))
        shares = np.where((v != 0) & (w != 0), 0.5, 1.0)
        return torch.from_numpy(b + ((v + w) * shares + 0.0))


def _kept(vector: Any, places: Any, trim: Trim) -> Any:
    size = np.abs(vector)
    return vector * ((size > trim.low) | ((size == trim.low) & (places <= trim.last)))


def _smallest(bits: Any) -> int:
    """The smallest size of bfloat16 numbers."""
    negative, positive = int(bits.min()), int(bits.view(np.uint16).min())
    return min(positive, negative + 0x8000) if negative < 0 else positive


def _by_block(places: Any, blocks: int) -> list[Any]:
    """Places in ascending order, block by block, from the block's own beginning."""
    ends = np.searchsorted(places, np.arange(1, blocks) * SIZE)
    return np.split(places % SIZE, ends)


def _select(mask: Any, yes: Any, no: Any, out: Any, spare: Any = None) -> None:
    """`yes` where all bits of the mask are set, `no` where none is."""
    spare = out if spare is None else spare
    np.bitwise_xor(yes, no, out=spare)
    np.bitwise_and(spare, mask, out=spare)
    np.bitwise_xor(spare, no, out=out)
