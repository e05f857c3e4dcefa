"""What all merges without a compiled kernel share: blocks, rounding, sums, and elements that have to be done again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agent_forge.forge.merging.blocks.cuts import WIDE
from agent_forge.forge.merging.blocks.near import Unsure
from agent_forge.forge.merging.exact import BLOCK, rounded
from agent_forge.forge.merging.layout import Output

FEW = 1 / 32  # the share of a block that is worth doing again element by element
MANY = 1 << 12  # places in doubt that are worth the calls, and still in a cache


@dataclass(frozen=True)
class Way:
    """How an output is made: `fill(start, end, out)` makes a block and gives the places in it (a numpy array) where it
    may be wrong; these are few, so `exactly(places, inputs)` makes them for many blocks at once, in float64."""

    fill: Callable[[int, int, Tensor], Any]
    exactly: Callable[[Any, Sequence[Tensor]], Tensor]
    error: Callable[[Any, Sequence[Tensor]], Tensor] | None = None  # what `exactly` is wrong by at most; None: nothing
    size: int = WIDE  # of a block


def all_bfloat16(output: Output, tensors: Sequence[Tensor]) -> bool:
    return output.spec.dtype == "BF16" and all(x.dtype == torch.bfloat16 for x in tensors)


def doubles(count: int) -> list[Tensor]:
    return [torch.empty(WIDE, dtype=torch.float64) for _ in range(count)]


def make(way: Way, flat: Sequence[Tensor], made: Tensor) -> None:
    doubts = _Doubts(flat)
    for start in range(0, made.numel(), way.size):
        end = min(start + way.size, made.numel())
        doubts.add(start, way.fill(start, end, made[start:end]))
        if doubts.count >= MANY or end == made.numel():
            doubts.settle(way, made)


class _Doubts:
    """Places that have to be made again, and the inputs there, taken while they are in the cache."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self.types = [x.dtype for x in inputs]
        self.inputs = [x.view(_SAME_SIZE[x.element_size()]).numpy() for x in inputs]
        self.found: list[tuple[Any, ...]] = []
        self.count = 0

    def add(self, start: int, places: Any) -> None:
        if places.size:
            self.found.append((places + start, *(x[start:][places] for x in self.inputs)))
            self.count += places.size

    def settle(self, way: Way, made: Tensor) -> None:
        if not self.found:
            return
        places, *inputs = (np.concatenate(column) for column in zip(*self.found, strict=True))
        typed = [torch.from_numpy(x).view(dtype) for x, dtype in zip(inputs, self.types, strict=True)]
        near = _rounded(way.exactly(places, typed), made.dtype, None if way.error is None else way.error(places, typed))
        made.view(_SAME_SIZE[made.element_size()]).numpy()[places] = near.view(_SAME_SIZE[near.element_size()]).numpy()
        self.found, self.count = [], 0


def _rounded(exact: Tensor, dtype: torch.dtype, error: Tensor | None) -> Tensor:
    """Float64 numbers, wrong by no more than `error`, in another type; raises Unsure if two results are possible."""
    away = exact.abs() * 2.0**-22
    if error is not None:
        away += error
    near = exact.to(dtype)
    doubtful = torch.nonzero(exact.sub(away).to(dtype) != exact.add(away).to(dtype))[:, 0]  # a second rounding, NaN
    few, code = exact[doubtful], _CODES[dtype]
    near[doubtful] = rounded(few, code)
    if error is not None:
        ends = [rounded(few + sign * error[doubtful], code) for sign in (-1, 1)]
        if not torch.equal(*ends):
            raise Unsure
    return near


_SAME_SIZE = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_CODES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16"}
_NOWHERE: Any = np.empty(0, np.int64)


class Rounding:
    """A float64 block into the output's type. Rounding to bfloat16 by way of float32 goes wrong only where the first
    step, not exact, lands in the middle between two numbers: those few places are given."""

    def __init__(self) -> None:
        self.near = torch.empty(WIDE)
        self.bits = np.empty(WIDE, np.int32)
        self.marks = np.empty(WIDE, np.bool_)

    def __call__(self, x: Tensor, out: Tensor) -> Any:
        if out.dtype != torch.bfloat16:
            out.copy_(x)
            return _NOWHERE
        n = x.numel()
        near, bits, middle = self.near[:n], self.bits[:n], self.marks[:n]
        near.copy_(x)
        out.copy_(near)
        np.left_shift(near.numpy().view(np.int32), np.int32(16), out=bits)
        np.equal(bits, np.int32(-1 << 31), out=middle)
        if np.count_nonzero(middle) > n // 256:  # most of them exact
            middle &= near.double().numpy() != x.numpy()
        return middle.nonzero()[0]


class Sums:
    """Several sums of blocks at once, by halving, as `exact.tree_sum` takes one."""

    def __init__(self, count: int, elements: int) -> None:
        self.parts = torch.empty((count, WIDE), dtype=torch.float64)
        self.rows = torch.empty((count, -(-elements // BLOCK), 16), dtype=torch.float64)
        self.used = 0

    def add(self, filled: int) -> None:
        """Takes in the first `filled` elements of each of `parts`."""
        rows = -(-filled // BLOCK)
        self.parts[:, filled : rows * BLOCK] = 0
        x = self.parts[:, : rows * BLOCK].reshape(-1, rows, BLOCK)
        half = BLOCK // 2
        while half >= 16:
            to = x[..., :half] if half > 16 else self.rows[:, self.used : self.used + rows]
            torch.add(x[..., :half], x[..., half : 2 * half], out=to)
            half //= 2
        self.used += rows

    def end(self) -> list[float]:
        x = self.rows
        while x.shape[-1] > 1:
            half = x.shape[-1] // 2
            x = x[..., :half] + x[..., half:]
        x = x[..., 0]
        x = torch.nn.functional.pad(x, (0, (1 << (x.shape[1] - 1).bit_length()) - x.shape[1]))
        while x.shape[1] > 1:
            half = x.shape[1] // 2
            x = x[:, :half] + x[:, half:]
        return [float(number) for number in x[:, 0]]
