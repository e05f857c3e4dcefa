"""The usual merges without a compiled kernel, block by block: the same numbers as `compute`, several times as fast.

What `compute` does on whole float64 tensors is bound by memory. Here every step works on a block that stays in the
cache, in buffers that are used again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from agent_forge.forge.merging.chance import key_of, random_bits
from agent_forge.forge.merging.choice import Choice, can_choose
from agent_forge.forge.merging.counts import rescale_factor, slerp_coefficients, top_count, total
from agent_forge.forge.merging.cuts import SIZE, WIDE, Cut, bits_of, cut_of, trims
from agent_forge.forge.merging.exact import BLOCK, rounded, tree_sum
from agent_forge.forge.merging.layout import Output
from agent_forge.forge.merging.methods.task_vectors import add_task_vectors, kept
from agent_forge.forge.merging.near import (
    ROUNDING,
    SIZES,
    SUMS,
    Interval,
    Mask,
    Pair,
    Unsure,
    largest,
    norms,
    products,
)
from agent_forge.forge.merging.thresholds import trims_model

LEAST = 1 << 16  # smaller tensors are left to `compute`
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
        _make(_WAYS[output.method](output, flat, False), flat, made)
    except Unsure:
        _make(_WAYS[output.method](output, flat, True), flat, made)
    return made.reshape(output.spec.shape)


def _make(way: Way, flat: Sequence[Tensor], made: Tensor) -> None:
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


def _doubles(count: int) -> list[Tensor]:
    return [torch.empty(WIDE, dtype=torch.float64) for _ in range(count)]


# --- rounding --------------------------------------------------------------------------------------------------------


class _Rounding:
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


# --- linear combinations ---------------------------------------------------------------------------------------------


def _combination(
    tensors: Sequence[Tensor], coefficients: Sequence[float], divide: float = 1.0, errors: Sequence[float] = ()
) -> Way:
    """sum_i c_i x_i / divide, with what the coefficients are wrong by at most."""
    wide, rounding = _doubles(2), _Rounding()

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


def _all_bfloat16(output: Output, tensors: Sequence[Tensor]) -> bool:
    return output.spec.dtype == "BF16" and all(x.dtype == torch.bfloat16 for x in tensors)


def _linear(output: Output, tensors: Sequence[Tensor], sure: bool) -> Way:
    weights = [piece.values["weight"] for piece in output.pieces]
    return _combination(tensors, weights, total(weights) if output.values["normalize"] else 1.0)


def _slerp(output: Output, tensors: Sequence[Tensor], sure: bool) -> Way:
    assert output.base is not None
    first, second, t = tensors[output.base], tensors[1 - output.base], output.values["t"]
    if sure or not _all_bfloat16(output, tensors):
        found, errors = slerp_coefficients(_gram([first, second]), t), []
    else:
        near = products(first, second)
        found, away = slerp_coefficients(near, t), 3 * SUMS * math.sqrt(near[0][0] * near[1][1])
        ends = [slerp_coefficients([[near[0][0], near[0][1] + e], near[1]], t) for e in (away, -away)]
        errors = [max(abs(end[i] - found[i]) for end in ends) for i in (0, 1)]
    order = [0, 1] if output.base == 0 else [1, 0]  # a sum of two is the same in either order
    way = _near_combination if _all_bfloat16(output, tensors) else _combination
    return way(tensors, [found[i] for i in order], errors=[errors[i] for i in order] if any(errors) else ())


class _Sums:
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


def _gram(pair: Sequence[Tensor]) -> list[list[float]]:
    n = pair[0].numel()
    sums, wide = _Sums(3, n), _doubles(2)
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


def _task_way(output: Output, tensors: Sequence[Tensor], rules: Sequence[Rule]) -> Way:
    """base + lambda * what is elected; a rule for each task vector says what of it stays."""
    assert output.base is not None
    at = output.base
    base, scale, normalize = tensors[at], output.values["lambda"], output.values["normalize"]
    others = [x for place, x in enumerate(tensors) if place != output.base]
    weights = [p.values["weight"] for place, p in enumerate(output.pieces) if place != output.base]
    wide, rounding = _doubles(1 + len(others)), _Rounding()

    def fill(start: int, end: int, out: Tensor) -> Any:
        b, *vectors = (buffer[: end - start] for buffer in wide)
        b.copy_(base[start:end])
        for vector, x, weight, rule in zip(vectors, others, weights, rules, strict=True):
            vector.copy_(x[start:end])
            rule.thin(start, vector.sub_(b))
            vector.mul_(weight)
        mixed = _elected(vectors, weights, normalize)
        if scale != 1:
            mixed.mul_(scale)
        made = mixed.add_(b)
        if math.isnan(float(made.max())):  # a sum with NaN in it elects minus, and NaN is not counted
            made = exactly(np.arange(start, end), [x[start:end] for x in tensors])
        return rounding(made, out)

    def exactly(places: Any, inputs: Sequence[Tensor]) -> Tensor:
        b = inputs[at].double()
        parts = [x for place, x in enumerate(inputs) if place != at]
        vectors = [rule.kept(places, x.double() - b) for x, rule in zip(parts, rules, strict=True)]
        return add_task_vectors(b, vectors, weights, True, normalize, scale)

    return Way(fill, exactly)


# --- TIES and DARE ---------------------------------------------------------------------------------------------------


class Rule(Protocol):
    """What stays of a task vector, times a factor or divided."""

    factor: float
    divide: float

    def thin(self, start: int, vector: Tensor) -> None:
        """Thins out a block of it, in place; NaN may stay or come up."""

    def kept(self, places: Any, vector: Tensor) -> Tensor:
        """What is left of some of its elements."""


@dataclass
class _Trimmed:
    cut: Cut
    factor: float = 1.0
    divide: float = 1.0

    def thin(self, start: int, vector: Tensor) -> None:
        equals = min(max(self.cut.last + 1 - start, 0), vector.numel())  # of equals, the first ones stay
        torch.hardshrink(vector[:equals], max(0.0, math.nextafter(self.cut.low, -1.0)), out=vector[:equals])
        torch.hardshrink(vector[equals:], self.cut.low, out=vector[equals:])

    def kept(self, places: Any, vector: Tensor) -> Tensor:
        size = vector.abs()
        return kept(
            vector, (size > self.cut.low) | ((size == self.cut.low) & torch.from_numpy(places <= self.cut.last))
        )


@dataclass
class _Dropped:
    bits: Any  # one for each element
    factor: float = 1.0
    divide: float = 1.0

    def among(self, start: int, end: int) -> Any:
        """Which elements stay, from a multiple of eight on."""
        return np.unpackbits(self.bits[start // 8 :][: -(-end // 8)], bitorder="little", count=end - start).view(
            np.bool_
        )

    def thin(self, start: int, vector: Tensor) -> None:
        with np.errstate(invalid="ignore"):  # infinity times zero; it is noticed later
            np.multiply(vector.numpy(), self.among(start, start + vector.numel()), out=vector.numpy())
        self._rescale(vector)

    def kept(self, places: Any, vector: Tensor) -> Tensor:
        return self._rescale(
            kept(vector, torch.from_numpy((self.bits[places >> 3] >> (places & 7) & 1).astype(np.bool_)))
        )

    def _rescale(self, vector: Tensor) -> Tensor:
        if self.divide != 1.0:
            return vector.div_(self.divide)
        return vector.mul_(self.factor) if self.factor != 1.0 else vector


def _ties(output: Output, tensors: Sequence[Tensor], sure: bool) -> Way:
    assert output.base is not None
    base = tensors[output.base]
    others = [place for place in range(len(tensors)) if place != output.base]
    counts = [top_count(base.numel(), output.pieces[i].values["density"]) for i in others]
    vectors = [tensors[i] for i in others]
    found = trims(vectors, base, counts) if all(x.dtype == torch.bfloat16 for x in tensors) else None
    if found is None:
        cuts = [cut_of(x, base, count) for x, count in zip(vectors, counts, strict=True)]
        return _task_way(output, tensors, [_Trimmed(cut) for cut in cuts])
    rules = [_Trimmed(trim) for trim in found]
    if not _two_alike(output, tensors):
        return _task_way(output, tensors, rules)
    if can_choose(output):
        exactly = _task_way(output, tensors, rules).exactly
        return Way(Choice(base, vectors[0], vectors[1], found).fill, exactly, size=SIZE)
    masks = [trim.among(x, base) for trim, x in zip(found, vectors, strict=True)]
    return _pair_way(output, tensors, rules, masks, 0.0)


def _dare(output: Output, tensors: Sequence[Tensor], sure: bool) -> Way:
    assert output.base is not None
    base, others = tensors[output.base], [place for place in range(len(tensors)) if place != output.base]
    seed, density = output.values["seed"], [output.pieces[place].values["density"] for place in others]
    rules = [
        _Dropped(random_bits(key_of(seed, output.name, place), base.numel(), share))
        for place, share in zip(others, density, strict=True)
    ]
    by_norm = output.values["rescale"] and output.values["rescale_by"] != "probability"
    floats = _two_alike(output, tensors)
    if by_norm:
        sums = norms if floats and not sure else _norms
        found = sums([tensors[place] for place in others], base, [rule.among for rule in rules])
        for rule, (before, after) in zip(rules, found, strict=True):
            rule.factor = rescale_factor(before, after)
    elif output.values["rescale"]:
        for rule, share in zip(rules, density, strict=True):
            rule.divide = share
    if not floats:
        return _task_way(output, tensors, rules)
    return _pair_way(output, tensors, rules, [rule.among for rule in rules], SUMS if by_norm and not sure else 0.0)


def _two_alike(output: Output, tensors: Sequence[Tensor]) -> bool:
    """Whether `Pair` can do it: two bfloat16 task vectors, and one share where both count."""
    weights = [piece.values["weight"] for place, piece in enumerate(output.pieces) if place != output.base]
    alike = len(weights) == 2 and (weights[0] == weights[1] or not output.values["normalize"])
    return alike and _all_bfloat16(output, tensors)


def _pair_way(
    output: Output, tensors: Sequence[Tensor], rules: Sequence[Rule], masks: Sequence[Mask], wrong: float
) -> Way:
    """Two task vectors in float32. Factors may be quotients of sums that are wrong by the share `wrong`."""
    way = _task_way(output, tensors, rules)
    assert output.base is not None
    order = [output.base, *(place for place in range(3) if place != output.base)]
    weights = [output.pieces[place].values["weight"] for place in order[1:]]
    scale, normalize = output.values["lambda"], output.values["normalize"]
    counts = [scale if normalize else scale * weight for weight in weights]
    gains = [rule.factor / rule.divide * count for rule, count in zip(rules, counts, strict=True)]
    pair = Pair([tensors[place] for place in order], masks, gains, 0.5 if normalize else 1.0)

    def fill(start: int, end: int, out: Tensor) -> Any:
        marks = pair.fill(start, end, out)
        if marks is not None and np.count_nonzero(marks) < FEW * (end - start):
            return marks.nonzero()[0]
        if wrong:
            raise Unsure
        return way.fill(start, end, out)

    def error(places: Any, inputs: Sequence[Tensor]) -> Tensor:
        b, *others = (inputs[place].double() for place in order)
        parts = [rule.kept(places, x - b) for x, rule in zip(others, rules, strict=True)]
        v, w = (part.abs_() * abs(count) for part, count in zip(parts, counts, strict=True))
        away = (v + w) * (2.1 * wrong + 2.0**-49)
        return away.masked_fill_((v - w).abs_() < 4 * away, math.inf)  # they may cancel

    return Way(fill, way.exactly, error if wrong else None)


def _norms(vectors: Sequence[Tensor], base: Tensor, masks: Sequence[Mask]) -> list[tuple[float, float]]:
    """The L1 norms of task vectors, whole and under their masks, summed up as is defined."""
    return [_norms_of(x, base, mask) for x, mask in zip(vectors, masks, strict=True)]


def _norms_of(x: Tensor, base: Tensor, mask: Mask) -> tuple[float, float]:
    n = x.numel()
    sums, (wide,) = _Sums(2, n), _doubles(1)
    for start in range(0, n, WIDE):
        end = min(start + WIDE, n)
        key = sums.parts[0, : end - start]
        key.copy_(x[start:end])
        b = wide[: end - start]
        b.copy_(base[start:end])
        key.sub_(b).abs_()
        with np.errstate(invalid="ignore"):
            np.multiply(key.numpy(), mask(start, end), out=sums.parts[1, : end - start].numpy())
        sums.add(end - start)
    before, after = sums.end()
    if math.isfinite(before):
        return before, after
    key = (x.double() - base.double()).abs()
    return tree_sum(key), tree_sum(kept(key, torch.from_numpy(mask(0, n))))


_WAYS: dict[str, Callable[[Output, Sequence[Tensor], bool], Way]] = {
    "linear": _linear,
    "slerp": _slerp,
    "ties": _ties,
    "dare_ties": _dare,
}
