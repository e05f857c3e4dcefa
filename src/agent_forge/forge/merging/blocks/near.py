"""Float32 with a bound on its error, for where there is no compiled kernel and float64's results are wanted.

A number that is wrong by no more than e rounds to bfloat16 as the true one does if both ends of the interval [x - e,
x + e] round alike. That holds for all but a few in a thousand elements, and those are done again in float64. Sums over
a tensor need not be taken in the defined order either: what they are wrong by is carried along in the same way. Where
it leaves a doubt even in float64, about once in a model, the tensor is done again with the defined sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agent_forge.forge.merging.blocks.cuts import WIDE, bits_of

Mask = Callable[[int, int], Any]  # which elements of a task vector stay, from one place to another
LEAST = 2.0**-126
ROUNDING = 2.0**-24  # of float32, to nearest
CHUNKS = 64  # a block is summed up in so many parts; in any order that is wrong by less than SUMS of the sum of sizes
SUMS = WIDE / CHUNKS * 2.0**-53
SIZES = 2.0**-100, 2.0**12  # of the largest number in a block: no underflow that counts, no overflow


class Unsure(ArithmeticError):
    """Not even float64 tells how an element rounds: what was summed up in another order has to be known exactly."""


def largest(blocks: Sequence[Any]) -> float:
    """The largest size of a number in some blocks of bfloat16 bits."""
    bits = max(max(int(block.max()), int(block.view(np.uint16).max()) & 0x7FFF) for block in blocks)
    return float(np.array(bits << 16, np.int32).view(np.float32))


class Interval:
    """Rounds float32 blocks to bfloat16."""

    def __init__(self) -> None:
        self.low = torch.empty(WIDE, dtype=torch.bfloat16)
        self.bits = bits_of(self.low)
        self.marks = np.empty(WIDE, np.bool_)

    def round(self, x: Tensor, error: float, out: Tensor) -> Any:
        """Rounds x, which is wrong by no more than `error`, and spoils it; marks and gives the places where two results
        are possible."""
        n, near = x.numel(), x.numpy()
        np.subtract(near, np.float32(error), out=near)
        self.low[:n].copy_(x)
        np.add(near, np.float32(2 * error), out=near)
        out.copy_(x)
        return np.not_equal(self.bits[:n], bits_of(out), out=self.marks[:n])


def products(x: Tensor, y: Tensor) -> list[list[float]]:
    """The inner products of two tensors with themselves and each other, each wrong by less than SUMS of the sum of the
    sizes that were added."""
    wide = [torch.zeros(WIDE, dtype=torch.float64) for _ in range(2)]
    rows = [buffer.numpy().reshape(CHUNKS, 1, -1) for buffer in wide]
    columns = [buffer.numpy().reshape(CHUNKS, -1, 1) for buffer in wide]
    sums: list[list[Any]] = [[], [], []]
    for start in range(0, x.numel(), WIDE):
        for buffer, tensor in zip(wide, (x, y), strict=True):
            block = tensor[start : start + WIDE]
            buffer[: block.numel()].copy_(block)
            buffer[block.numel() :] = 0
        for found, (i, j) in zip(sums, ((0, 0), (0, 1), (1, 1)), strict=True):
            with np.errstate(invalid="ignore"):
                found.append(np.matmul(rows[i], columns[j]))
    xx, xy, yy = (math.fsum(np.concatenate(found).reshape(-1)) for found in sums)
    return [[xx, xy], [xy, yy]]


def norms(vectors: Sequence[Tensor], base: Tensor, masks: Sequence[Mask]) -> list[tuple[float, float]]:
    """The L1 norms of each x - base, whole and under its mask, each wrong by less than SUMS of itself."""
    b, key = (torch.zeros(WIDE, dtype=torch.float64) for _ in range(2))
    kept = np.zeros(WIDE)
    row, column = key.numpy().reshape(CHUNKS, 1, -1), kept.reshape(CHUNKS, -1, 1)
    sums: list[Any] = [([], []) for _ in vectors]
    for start in range(0, base.numel(), WIDE):
        end = min(start + WIDE, base.numel())
        b[: end - start].copy_(base[start:end])
        for x, mask, (before, after) in zip(vectors, masks, sums, strict=True):
            key[: end - start].copy_(x[start:end])
            key[end - start :] = b[end - start :]
            key.sub_(b).abs_()
            np.copyto(kept[: end - start], mask(start, end))
            before.append(key.view(CHUNKS, -1).sum(1).numpy())
            with np.errstate(invalid="ignore"):
                after.append(np.matmul(row, column).reshape(-1))
    return [(math.fsum(np.concatenate(before)), math.fsum(np.concatenate(after))) for before, after in sums]


class Pair:
    """Two task vectors of bfloat16 models, thinned out, elected and added to their base.

    V and W are what the vectors count alone. Where their signs differ, or one is zero, the one counts that is larger:
    (s + d) / 2, with s = V + W and d = |V - W| with the sign of s. Where their signs agree, `share` times s counts.
    """

    CANCEL = 2.0**40  # the sign of s is not certain if V W < 0 and s^2 times this is smaller than -V W

    def __init__(self, tensors: Sequence[Tensor], masks: Sequence[Mask], gains: Sequence[float], share: float) -> None:
        self.tensors, self.masks, self.gains, self.share = tensors, masks, gains, share
        self.base = bits_of(tensors[0])
        self.room = [torch.empty(WIDE) for _ in range(6)]
        self.interval = Interval()

    def fill(self, start: int, end: int, out: Tensor) -> Any:
        """Makes a block; marks where it may be wrong. None if float32 does not do for it."""
        size = largest([self.base[start:end]])
        if not SIZES[0] < size < SIZES[1]:
            return None
        unit = 2.0 ** (40 - math.frexp(size)[1])  # products do not underflow unless they do not count
        b, v, w, s, *_ = room = [buffer[: end - start] for buffer in self.room]
        for buffer, x in zip(room, self.tensors, strict=False):
            buffer.copy_(x[start:end])
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):  # what is not finite is noticed
            for vector, mask, gain in zip((v, w), self.masks, self.gains, strict=True):
                part = vector.numpy()
                np.subtract(part, b.numpy(), out=part)
                np.multiply(part, mask(start, end), out=part)
                np.multiply(part, np.float32(gain * unit), out=part)
            cancel = self._elect(*room[1:])
        most = max(float(s.numpy().max()), -float(s.numpy().min())) / unit
        if not math.isfinite(most):
            return None
        marks = self.interval.round(b.add_(s, alpha=0.5 / unit), ROUNDING * (4 * size + 7 * most), out)
        return marks if cancel is None else np.logical_or(marks, cancel, out=marks)

    def _elect(self, v: Tensor, w: Tensor, s: Tensor, t: Tensor, z: Tensor) -> Any:
        """Puts twice what is elected into s, and gives where the sum's sign is not certain. Rounding leaves that wrong
        by less than ten times ROUNDING of the larger of V and W."""
        np.add(v.numpy(), w.numpy(), out=s.numpy())
        np.multiply(v.numpy(), w.numpy(), out=t.numpy())
        torch.addcmul(t, s, s, value=self.CANCEL, out=z)
        cancel = z.numpy() < 0 if float(z.numpy().min()) < 0 else None
        np.subtract(v.numpy(), w.numpy(), out=v.numpy())
        torch.copysign(v, s, out=v)
        v.addcmul_(t.clamp_(0.0, LEAST), v if self.share == 0.5 else v.sub(s), value=-1 / LEAST)
        np.add(s.numpy(), v.numpy(), out=s.numpy())
        return cancel
