"""The usual merges without a compiled kernel, block by block: the same numbers as `compute`, several times as fast.

What `compute` does on whole float64 tensors is bound by memory. Here every step works on a block that stays in the
cache, in buffers that are used again. Two bfloat16 task vectors with one weight, a power of two, are added in float32
where that is exact (the exponents of an element's inputs lie close together), and in float64 where it is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agent_forge.forge.merging.chance import key_of, random_mask
from agent_forge.forge.merging.counts import rescale_factor, slerp_coefficients, top_count, total
from agent_forge.forge.merging.cuts import SIZE, Cut, cut_of
from agent_forge.forge.merging.exact import BLOCK, rounded, tree_sum
from agent_forge.forge.merging.layout import Output
from agent_forge.forge.merging.methods.task_vectors import add_task_vectors, kept
from agent_forge.forge.merging.thresholds import trims_model

LEAST = 1 << 16  # smaller tensors are left to `compute`
Doubts = list[tuple[Any, Any]]  # places, and what is to be rounded there
Maker = Callable[[int, int, Tensor, Doubts], None]  # from, to, where the rounded block goes, what has to be done again


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
    make = _MAKERS[output.method](output, flat)
    doubts: Doubts = []
    made = torch.empty(output.spec.elements, dtype=torch_dtype(output.spec.dtype))
    for start in range(0, made.numel(), SIZE):
        end = min(start + SIZE, made.numel())
        make(start, end, made[start:end], doubts)
    if doubts:  # few elements, so all at once
        places, values = (np.concatenate(column) for column in zip(*doubts, strict=True))
        made[torch.from_numpy(places)] = rounded(torch.from_numpy(values), output.spec.dtype)
    return made.reshape(output.spec.shape)


def _doubles(count: int) -> list[Tensor]:
    return [torch.empty(SIZE, dtype=torch.float64) for _ in range(count)]


# --- rounding --------------------------------------------------------------------------------------------------------


def round_into(x: Tensor, out: Tensor, single: Tensor, start: int, doubts: Doubts) -> None:
    """A float64 block into the output's type. Rounding to bfloat16 by way of float32 goes wrong only where the first
    step, not exact, lands in the middle between two numbers: those few are noted, to be rounded again."""
    if out.dtype != torch.bfloat16:
        out.copy_(x)
        return
    near = single[: x.numel()]
    near.copy_(x)
    out.copy_(near)
    middle = near.numpy().view(np.uint16)[0::2] == 0x8000
    if np.count_nonzero(middle) > 256:  # most of them exact
        middle &= near.double().numpy() != x.numpy()
    places = np.flatnonzero(middle)
    if places.size:
        doubts.append((places + start, x.numpy()[places]))


# --- linear combinations ---------------------------------------------------------------------------------------------


def _combination(tensors: Sequence[Tensor], coefficients: Sequence[float], divide: float = 1.0) -> Maker:
    wide = _doubles(2)
    single = torch.empty(SIZE)

    def make(start: int, end: int, out: Tensor, doubts: Doubts) -> None:
        mixed, part = (buffer[: end - start] for buffer in wide)
        for number, (x, c) in enumerate(zip(tensors, coefficients, strict=True)):
            to = part if number else mixed
            to.copy_(x[start:end])
            to.mul_(c)
            if number:
                mixed.add_(part)
        if divide != 1.0:
            mixed.div_(divide)
        round_into(mixed, out, single, start, doubts)

    return make


def _linear(output: Output, tensors: Sequence[Tensor]) -> Maker:
    weights = [piece.values["weight"] for piece in output.pieces]
    return _combination(tensors, weights, total(weights) if output.values["normalize"] else 1.0)


def _slerp(output: Output, tensors: Sequence[Tensor]) -> Maker:
    assert output.base is not None
    pair = [tensors[output.base], tensors[1 - output.base]]
    return _combination(pair, slerp_coefficients(_gram(pair), output.values["t"]))


class _Sums:
    """Several sums of blocks at once, by halving, as `exact.tree_sum` takes one."""

    def __init__(self, count: int, elements: int) -> None:
        self.parts = torch.empty((count, SIZE), dtype=torch.float64)
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


def _gram(pair: Sequence[Tensor]) -> list[list[float]]:
    n = pair[0].numel()
    sums, wide = _Sums(3, n), _doubles(2)
    for start in range(0, n, SIZE):
        end = min(start + SIZE, n)
        a, b = (buffer[: end - start] for buffer in wide)
        a.copy_(pair[0][start:end])
        b.copy_(pair[1][start:end])
        for number, (p, q) in enumerate(((a, a), (b, a), (b, b))):
            torch.mul(p, q, out=sums.parts[number, : end - start])
        sums.add(end - start)
    aa, ab, bb = sums.end()
    return [[aa, ab], [ab, bb]]


# --- election --------------------------------------------------------------------------------------------------------


def _elected(vectors: list[Tensor], weights: Sequence[float], normalize: bool) -> Tensor:
    """The sum of the weighted elements that have the elected sign, divided by their weights. Works in its arguments."""
    whole = vectors[0] + vectors[1] if len(vectors) > 1 else vectors[0] + 0.0
    for vector in vectors[2:]:
        whole += vector
    sign = torch.copysign(torch.ones((), dtype=whole.dtype), whole.add_(0.0))  # a sum of zero elects plus
    for vector in vectors:
        vector.mul_(sign).relu_()
    if normalize:
        below = torch.sign(vectors[0]).mul_(weights[0])
        for vector, weight in zip(vectors[1:], weights[1:], strict=True):
            below += torch.sign(vector).mul_(weight)
        below.clamp_(min=torch.finfo(below.dtype).tiny)
    mixed = vectors[0]
    for vector in vectors[1:]:
        mixed += vector
    if normalize:
        mixed /= below
    return mixed.mul_(sign).add_(0.0)


def _task_maker(output: Output, tensors: Sequence[Tensor], keep: Callable[..., None], splits: Sequence[int]) -> Maker:
    """base + lambda * what is elected. `keep(number, start, vector)` thins a block of task vector `number`."""
    assert output.base is not None
    base, scale, normalize = tensors[output.base], output.values["lambda"], output.values["normalize"]
    others = [x for place, x in enumerate(tensors) if place != output.base]
    weights = [p.values["weight"] for place, p in enumerate(output.pieces) if place != output.base]
    single = torch.empty(SIZE)
    wide = _doubles(1 + len(others))

    def part(start: int, end: int, out: Tensor, doubts: Doubts) -> None:
        b, *vectors = (buffer[: end - start] for buffer in wide)
        b.copy_(base[start:end])
        for number, (vector, x, weight) in enumerate(zip(vectors, others, weights, strict=True)):
            vector.copy_(x[start:end])
            keep(number, start, vector.sub_(b))
            vector.mul_(weight)
        mixed = _elected(vectors, weights, normalize)
        if scale != 1:
            mixed.mul_(scale)
        made = mixed.add_(b)
        if math.isnan(float(made.max())):  # a sum with NaN in it elects minus, and NaN is not counted
            made = _with_nans(b, others, weights, scale, normalize, keep, start, end)
        round_into(made, out, single, start, doubts)

    return _split(part, splits)


def _with_nans(
    base: Tensor, others: Sequence[Tensor], weights: Sequence[float], scale: float, normalize: bool,
    keep: Callable[..., None], start: int, end: int,
) -> Tensor:  # fmt: skip
    vectors = []
    for number, x in enumerate(others):
        vector = x[start:end].double() - base
        keep(number, start, vector, careful=True)
        vectors.append(vector)
    return add_task_vectors(base, vectors, weights, True, normalize, scale)


def _ties(output: Output, tensors: Sequence[Tensor]) -> Maker:
    assert output.base is not None
    base = tensors[output.base]
    others = [place for place in range(len(tensors)) if place != output.base]
    cuts = [cut_of(tensors[i], base, top_count(base.numel(), output.pieces[i].values["density"])) for i in others]

    def keep(number: int, start: int, vector: Tensor, careful: bool = False) -> None:
        cut = cuts[number]
        low = cut.low if start > cut.last else max(0.0, math.nextafter(cut.low, -1.0))
        if careful:  # NaN does not stay
            vector.masked_fill_(vector.isnan(), 0.0)
        torch.hardshrink(vector, low, out=vector)

    fast = _float_ties(output, [base, *(tensors[i] for i in others)], cuts)
    return fast or _task_maker(output, tensors, keep, [cut.last + 1 for cut in cuts])


# --- two bfloat16 task vectors of one weight, in float32 --------------------------------------------------------------


def _float_ties(output: Output, tensors: list[Tensor], cuts: list[Cut]) -> Maker | None:
    """The kernel's `pair_exact`: see there for why it is exact where exponents lie within `spread` of each other."""
    weights = [p.values["weight"] for place, p in enumerate(output.pieces) if place != output.base]
    scale, normalize = output.values["lambda"], output.values["normalize"]
    if len(cuts) != 2 or weights[0] != weights[1] or any(x.dtype != torch.bfloat16 for x in tensors):
        return None
    if output.spec.dtype != "BF16" or math.frexp(weights[0])[0] != 0.5 or abs(math.frexp(scale)[0]) != 0.5:
        return None
    one, both = (scale, scale / 2) if normalize else (scale * weights[0], scale * weights[0])
    unit, most = min(abs(one), abs(both)), max(2 * abs(one), 4 * abs(both))
    if unit < 2.0**-6 or most > 64:
        return None
    spread = min(14, 16 - math.ceil(math.log2((1 + most) / min(unit, 1.0))))
    floats, apart = [torch.empty(SIZE) for _ in range(6)], _Apart()
    far: list[Any] = []

    def part(start: int, end: int, out: Tensor, doubts: Doubts) -> None:
        blocks = [x[start:end] for x in tensors]
        _add_floats(blocks, [_float_low(cut, start) for cut in cuts], (one, both), floats, out)
        far.append(apart.more_than(blocks, spread) + start)
        if end < tensors[0].numel():
            return
        places = np.concatenate(far)  # few elements, so all at once
        chosen = [x[torch.from_numpy(places)].double() for x in tensors]
        doubts.append((places, _exactly(chosen, cuts, places, weights, normalize, scale).numpy()))

    return _split(part, [cut.last + 1 for cut in cuts])


def _exactly(
    chosen: Sequence[Tensor], cuts: Sequence[Cut], places: Any, weights: Sequence[float], normalize: bool, scale: float
) -> Tensor:
    """Some elements in float64, by the definition."""
    base, vectors = chosen[0], []
    for x, cut in zip(chosen[1:], cuts, strict=True):
        vector = x - base
        size = vector.abs()
        stays = (size > cut.low) | ((size == cut.low) & torch.from_numpy(places <= cut.last))
        vectors.append(kept(vector, stays))
    return add_task_vectors(base, vectors, weights, True, normalize, scale)


def _split(part: Maker, splits: Sequence[int]) -> Maker:
    """Blocks that end where a rule does."""

    def make(start: int, end: int, out: Tensor, doubts: Doubts) -> None:
        ends = sorted({end, *(split for split in splits if start < split < end)})
        for first, last in zip([start, *ends], ends, strict=False):
            part(first, last, out[first - start : last - start], doubts)

    return make


def _float_low(cut: Cut, start: int) -> float:
    """The largest float32 that does not stay."""
    low = np.float32(cut.low)
    if start > cut.last:  # above
        return float(low if float(low) <= cut.low else np.nextafter(low, np.float32(-1)))
    low = low if float(low) >= cut.low else np.nextafter(low, np.float32(np.inf))
    return max(0.0, float(np.nextafter(low, np.float32(-1))))


class _Apart:
    """By how much the exponents of each element's inputs differ. Zeros do not count; what is not finite does."""

    def __init__(self) -> None:
        self.room = [np.empty(SIZE, np.uint16) for _ in range(3)]
        self.far = np.empty(SIZE, np.bool_)

    def more_than(self, blocks: Sequence[Tensor], spread: int) -> Any:
        """The places where they differ by more."""
        n = blocks[0].numel()
        size, most, least = (buffer[:n] for buffer in self.room)
        far = self.far[:n]
        for number, x in enumerate(blocks):
            np.bitwise_and(x.view(torch.int16).numpy().view(np.uint16), np.uint16(0x7FFF), out=size)
            np.maximum(most, size, out=most) if number else np.copyto(most, size)
            np.subtract(size, np.uint16(1), out=size)
            np.minimum(least, size, out=least) if number else np.copyto(least, size)
        np.add(least, np.uint16(1), out=least)  # all zeros: 0, and so is `most`
        np.right_shift(least, np.uint16(7), out=least)
        np.right_shift(most, np.uint16(7), out=size)
        np.subtract(size, least, out=size)
        np.greater(size, np.uint16(spread), out=far)
        if int(most.max(initial=0)) >= 0x7F80:
            far |= most >= 0x7F80
        return np.flatnonzero(far)


def _add_floats(
    blocks: Sequence[Tensor], lows: Sequence[float], times: tuple[float, float], room: Sequence[Tensor], out: Tensor
) -> None:
    b, v, w, s, t, u = (buffer[: out.numel()] for buffer in room)
    b.copy_(blocks[0])
    for x, vector, low in zip(blocks[1:], (v, w), lows, strict=True):
        vector.copy_(x)
        torch.hardshrink(vector.sub_(b), low, out=vector)
    torch.add(v, w, out=s)
    torch.mul(v, w, out=t).sign_()  # 1: both have the elected sign
    v.relu_().add_(w.relu_())  # what is positive; less the sum, what is negative
    torch.sub(v, s, out=u)
    torch.maximum(v, u, out=v)
    torch.copysign(v, s, out=v)
    if times[0] != times[1]:
        t.relu_().mul_(times[1] - times[0]).add_(times[0])
        v.mul_(t)
    elif times[0] != 1:
        v.mul_(times[0])
    out.copy_(v.add_(b))


# --- DARE ------------------------------------------------------------------------------------------------------------


def _dare(output: Output, tensors: Sequence[Tensor]) -> Maker:
    assert output.base is not None
    base = tensors[output.base]
    masks, factors, divides = [], [], []
    rescale, paper = output.values["rescale"], output.values["rescale_by"] == "probability"
    for place, piece in enumerate(output.pieces):
        if place == output.base:
            continue
        density = piece.values["density"]
        mask = random_mask(key_of(output.values["seed"], output.name, place), base.numel(), density)
        masks.append(mask)
        factors.append(1.0 if paper or not rescale else rescale_factor(*_norms(tensors[place], base, mask)))
        divides.append(density if paper and rescale else 1.0)

    def keep(number: int, start: int, vector: Tensor, careful: bool = False) -> None:
        x, mask = vector.numpy(), masks[number][start : start + vector.numel()]
        if careful:  # zero times infinity is not zero
            x[~mask] = 0.0
        with np.errstate(invalid="ignore"):
            np.multiply(x, mask, out=x)
        if divides[number] != 1.0:
            vector.div_(divides[number])
        elif factors[number] != 1.0:
            vector.mul_(factors[number])

    return _task_maker(output, tensors, keep, ())


def _norms(x: Tensor, base: Tensor, mask: Any) -> list[float]:
    """The L1 norms of a task vector, whole and under a mask."""
    n = x.numel()
    sums, (wide,) = _Sums(2, n), _doubles(1)
    for start in range(0, n, SIZE):
        end = min(start + SIZE, n)
        key = sums.parts[0, : end - start]
        key.copy_(x[start:end])
        b = wide[: end - start]
        b.copy_(base[start:end])
        key.sub_(b).abs_()
        with np.errstate(invalid="ignore"):
            np.multiply(key.numpy(), mask[start:end], out=sums.parts[1, : end - start].numpy())
        sums.add(end - start)
    found = sums.end()
    if math.isfinite(found[0]):
        return found
    key = (x.double() - base.double()).abs()
    return [tree_sum(key), tree_sum(kept(key, torch.from_numpy(mask)))]


_MAKERS: dict[str, Callable[[Output, Sequence[Tensor]], Maker]] = {
    "linear": _linear,
    "slerp": _slerp,
    "ties": _ties,
    "dare_ties": _dare,
}
