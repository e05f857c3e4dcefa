"""The usual merges without a compiled kernel, block by block: the same numbers as `compute`, several times as fast.

What `compute` does on whole float64 tensors is bound by memory. Here every step works on a block that stays in the
cache, in buffers that are used again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agent_forge.forge.merging.blocks.cuts import WIDE, bits_of
from agent_forge.forge.merging.blocks.near import ROUNDING, SIZES, SUMS, Interval, Unsure, largest, products
from agent_forge.forge.merging.blocks.thinned import dare, ties
from agent_forge.forge.merging.blocks.ways import FEW, Rounding, Sums, Way, all_bfloat16, doubles, make
from agent_forge.forge.merging.counts import slerp_coefficients, total
from agent_forge.forge.merging.layout import Output
from agent_forge.forge.merging.thresholds import trims_model

LEAST = 1 << 16  # smaller tensors are left to `compute`


def can(output: Output, tensors: Sequence[Tensor]) -> bool:
    """Whether an output is one of the usual cases."""
    if output.spec.elements < LEAST or any(x.device.type != "cpu" or not x.is_contiguous() for x in tensors):
        return False
    if not all(x.is_floating_point() for x in tensors) or output.spec.dtype == "F16":
        return False
    if output.method in ("linear", "slerp"):
        return True
    if output.method not in ("ties", "dare_ties") or trims_model(output) or len(tensors) < 2:
        return False
    own = [piece.values for place, piece in enumerate(output.pieces) if place != output.base]
    usual = all(piece["weight"] > 0 and 0 < piece["density"] < 1 for piece in own)
    return usual and (output.method == "dare_ties" or not output.values["rescale"])


def compute_blocks(output: Output, tensors: Sequence[Tensor]) -> Tensor:
    """The output tensor, as `compute` gives it."""
    from agent_forge.forge.merging.compute import torch_dtype

    flat = [x.detach().reshape(-1) for x in tensors]
    made = torch.empty(output.spec.elements, dtype=torch_dtype(output.spec.dtype))
    try:
        make(_WAYS[output.method](output, flat, False), flat, made)
    except Unsure:
        make(_WAYS[output.method](output, flat, True), flat, made)
    return made.reshape(output.spec.shape)


def _combination(
    tensors: Sequence[Tensor], coefficients: Sequence[float], divide: float = 1.0, errors: Sequence[float] = ()
) -> Way:
    """sum_i c_i x_i / divide, with what the coefficients are wrong by at most."""
    wide, rounding = doubles(2), Rounding()

    def mix(parts: Sequence[Tensor], mixed: Tensor, part: Tensor) -> Tensor:
        for number, (x, c) in enumerate(zip(parts, coefficients, strict=True)):
            to = part if number else mixed
            to.copy_(x)
            to.mul_(c)
            if number:
                mixed.add_(part)
        return mixed.div_(divide) if divide != 1.0 else mixed

    def fill(start: int, end: int, out: Tensor) -> Any:
        return rounding(mix([x[start:end] for x in tensors], *(buffer[: end - start] for buffer in wide)), out)

    def exactly(places: Any, inputs: Sequence[Tensor]) -> Tensor:
        return mix(inputs, *(torch.empty(places.size, dtype=torch.float64) for _ in wide))

    def error(places: Any, inputs: Sequence[Tensor]) -> Tensor:
        parts = zip(inputs, coefficients, errors, strict=True)
        return torch.stack([x.double().abs_() * (e + abs(c) * 2.0**-50) for x, c, e in parts]).sum(0)

    return Way(fill, exactly, error if errors else None)


def _near_combination(
    tensors: Sequence[Tensor], coefficients: Sequence[float], divide: float = 1.0, errors: Sequence[float] = ()
) -> Way:
    """The same in float32, of bfloat16 tensors; in float64 where that leaves many doubts."""
    way = _combination(tensors, coefficients, divide, errors)
    bits, interval, room = [bits_of(x) for x in tensors], Interval(), [torch.empty(WIDE) for _ in range(2)]
    factors = [c / divide for c in coefficients]
    share = (len(factors) + 3.25) * ROUNDING * total([abs(c) for c in factors])

    def fill(start: int, end: int, out: Tensor) -> Any:
        size = largest([x[start:end] for x in bits])
        mixed, part = (buffer[: end - start] for buffer in room)
        mixed.copy_(tensors[0][start:end])
        mixed.mul_(factors[0])
        for x, c in zip(tensors[1:], factors[1:], strict=True):
            part.copy_(x[start:end])
            mixed.add_(part, alpha=c)
        marks = interval.round(mixed, share * size, out)
        if SIZES[0] < size < SIZES[1] and np.count_nonzero(marks) < FEW * (end - start):
            return marks.nonzero()[0]
        if errors:
            raise Unsure
        return way.fill(start, end, out)

    return Way(fill, way.exactly, way.error)


def _linear(output: Output, tensors: Sequence[Tensor], sure: bool) -> Way:
    weights = [piece.values["weight"] for piece in output.pieces]
    return _combination(tensors, weights, total(weights) if output.values["normalize"] else 1.0)


def _slerp(output: Output, tensors: Sequence[Tensor], sure: bool) -> Way:
    assert output.base is not None
    first, second, t = tensors[output.base], tensors[1 - output.base], output.values["t"]
    if sure or not all_bfloat16(output, tensors):
        found, errors = slerp_coefficients(_gram([first, second]), t), []
    else:
        near = products(first, second)
        found, away = slerp_coefficients(near, t), 3 * SUMS * math.sqrt(near[0][0] * near[1][1])
        ends = [slerp_coefficients([[near[0][0], near[0][1] + e], near[1]], t) for e in (away, -away)]
        errors = [max(abs(end[i] - found[i]) for end in ends) for i in (0, 1)]
    order = [0, 1] if output.base == 0 else [1, 0]  # a sum of two is the same in either order
    way = _near_combination if all_bfloat16(output, tensors) else _combination
    return way(tensors, [found[i] for i in order], errors=[errors[i] for i in order] if any(errors) else ())


def _gram(pair: Sequence[Tensor]) -> list[list[float]]:
    n = pair[0].numel()
    sums, wide = Sums(3, n), doubles(2)
    for start in range(0, n, WIDE):
        end = min(start + WIDE, n)
        a, b = (buffer[: end - start] for buffer in wide)
        a.copy_(pair[0][start:end])
        b.copy_(pair[1][start:end])
        for number, (p, q) in enumerate(((a, a), (b, a), (b, b))):
            torch.mul(p, q, out=sums.parts[number, : end - start])
        sums.add(end - start)
    aa, ab, bb = sums.end()
    return [[aa, ab], [ab, bb]]


_WAYS: dict[str, Callable[[Output, Sequence[Tensor], bool], Way]] = {
    "linear": _linear,
    "slerp": _slerp,
    "ties": ties,
    "dare_ties": dare,
}
