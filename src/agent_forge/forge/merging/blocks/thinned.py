"""TIES and DARE without a compiled kernel: task vectors thinned out, elected, and added to their base."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from agent_forge.forge.merging.blocks.choice import Choice, can_choose
from agent_forge.forge.merging.blocks.cuts import SIZE, WIDE, Cut, cut_of, trims
from agent_forge.forge.merging.blocks.near import SUMS, Mask, Pair, Unsure, norms
from agent_forge.forge.merging.blocks.ways import FEW, Rounding, Sums, Way, all_bfloat16, doubles
from agent_forge.forge.merging.chance import key_of, random_bits
from agent_forge.forge.merging.counts import rescale_factor, top_count
from agent_forge.forge.merging.exact import tree_sum
from agent_forge.forge.merging.layout import Output
from agent_forge.forge.merging.methods.task_vectors import add_task_vectors, kept


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
    wide, rounding = doubles(1 + len(others)), Rounding()

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


def ties(output: Output, tensors: Sequence[Tensor], sure: bool) -> Way:
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
        order, choice = [output.base, *others], Choice(base, vectors[0], vectors[1], found)
        return Way(choice.fill, lambda places, inputs: choice.exactly(places, *(inputs[i] for i in order)), size=SIZE)
    masks = [trim.among(x, base) for trim, x in zip(found, vectors, strict=True)]
    return _pair_way(output, tensors, rules, masks, 0.0)


def dare(output: Output, tensors: Sequence[Tensor], sure: bool) -> Way:
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
    return alike and all_bfloat16(output, tensors)


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
    sums, (wide,) = Sums(2, n), doubles(1)
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
