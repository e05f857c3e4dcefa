"""Float32 with a bound on its error, for where there is no compiled kernel and float64's results are wanted.

A number that is wrong by no more than e rounds to bfloat16 as the true one does if both ends of the interval [x - e,
x + e] round alike. That holds for all but a few in a thousand elements, and those are done again in float64. Sums over
a tensor need not be taken in the defined order either: what they are wrong by is carried along in the same way. Where
it leaves a doubt even in float64, about once in a model, the tensor is done again with the defined sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agent_forge.forge.merging.cuts import SIZE, bits_of

ROUNDING = 2.0**-24  # of float32, to nearest
CHUNKS = 8  # sums of a block's eighths; any order of 8,192 additions is wrong by less than SUMS of the sum of sizes
SUMS = SIZE / CHUNKS * 2.0**-53
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
        self.low = torch.empty(SIZE, dtype=torch.bfloat16)
        self.marks = np.empty(SIZE, np.bool_)

    def round(self, x: Tensor, error: float, out: Tensor) -> Any:
        """Rounds x, which is wrong by no more than `error`, and spoils it; marks and gives the places where two results
        are possible."""
        low, marks = self.low[: x.numel()], self.marks[: x.numel()]
        low.copy_(x.sub_(error))
        out.copy_(x.add_(2 * error))
        return np.not_equal(bits_of(low), bits_of(out), out=marks)


def products(x: Tensor, y: Tensor) -> list[list[float]]:
    """The inner products of two tensors with themselves and each other, each wrong by less than SUMS of the sum of the
    sizes that were added."""
    wide = [torch.zeros(SIZE, dtype=torch.float64) for _ in range(2)]
    rows = [buffer.numpy().reshape(CHUNKS, 1, -1) for buffer in wide]
    columns = [buffer.numpy().reshape(CHUNKS, -1, 1) for buffer in wide]
    sums: list[list[Any]] = [[], [], []]
    for start in range(0, x.numel(), SIZE):
        for buffer, tensor in zip(wide, (x, y), strict=True):
            block = tensor[start : start + SIZE]
            buffer[: block.numel()].copy_(block)
            buffer[block.numel() :] = 0
        for found, (i, j) in zip(sums, ((0, 0), (0, 1), (1, 1)), strict=True):
            found.append(np.matmul(rows[i], columns[j]))
    xx, xy, yy = (math.fsum(np.concatenate(found).reshape(-1)) for found in sums)
    return [[xx, xy], [xy, yy]]
