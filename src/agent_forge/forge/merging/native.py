"""The compiled kernel: the same numbers as `compute`, in one or two passes over the inputs and next to no memory.

`prepare_job` makes the passes that need the whole tensor (thresholds, norms, inner products). The `TensorJob` that it
returns then computes any stretch of the output.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from agent_forge.errors import MergeError
from agent_forge.forge.merging import coefficients
from agent_forge.forge.merging.binding import INPUTS, Input, KeepRule, library
from agent_forge.forge.merging.layout import Output
from agent_forge.forge.merging.rng import digits_of, key_of
from agent_forge.forge.merging.settings import METHODS
from agent_forge.forge.merging.sources import FLOATS
from agent_forge.forge.merging.thresholds import Threshold

STRETCH = 1 << 18  # elements that are computed, then written: they stay in the cache in between
CODES = {"F64": 0, "F32": 1, "F16": 2, "BF16": 3}
ALL, NONE, TOP, BAND, BYTES, BITS = range(6)  # the kinds of a KeepRule
Stored = tuple[Any, str]  # an input: a numpy array over its elements, and safetensors' name of their type
_local = threading.local()


def supports(output: Output) -> bool:
    """Whether the kernel computes this output. Row-wise variants and odd shapes are left to torch."""
    if output.method not in METHODS or output.spec.dtype not in FLOATS or library() is None:
        return False
    if output.method == "nuslerp":
        return bool(output.values["nuslerp_flatten"])
    if output.method == "model_stock":
        return not output.values["filter_wise"]
    return METHODS[output.method].sparsify != "ranked" or len(output.spec.shape) <= 2


@dataclass
class _Operands:
    """The inputs of an output as C sees them; `buffers` are what their addresses point to."""

    output: Output
    base: Any  # a pointer to an Input, or None
    others: Any  # an array of Input: every input but the base
    places: list[int]  # which pieces of the output these are
    buffers: list[Any] = field(default_factory=list)

    @classmethod
    def of(cls, output: Output, stored: Sequence[Stored]) -> _Operands:
        inputs = [Input(array.ctypes.data, CODES[dtype]) for array, dtype in stored]
        places = [place for place in range(len(inputs)) if place != output.base]
        others = (Input * max(1, len(places)))(*(inputs[place] for place in places))
        base = None if output.base is None else ctypes.pointer(inputs[output.base])
        return cls(output, base, others, places, [array for array, _ in stored])

    @property
    def count(self) -> int:
        return len(self.places)

    @property
    def elements(self) -> int:
        return self.output.spec.elements

    def one(self, number: int) -> Any:
        return ctypes.pointer(self.others[number])

    def own(self, number: int) -> Any:
        """The parameters of one of the others."""
        return self.output.pieces[self.places[number]].values


@dataclass
class TensorJob:
    """An output tensor that is ready to be computed, in stretches that start at multiples of `step`.

    It is a linear combination (`coefficients`) or a sum of task vectors (`rules`).
    """

    operands: _Operands
    inputs: Any
    count: int
    base: Any = None
    coefficients: Any = None
    rules: Any = None
    elect: bool = False
    normalize: bool = False
    total: float = 0.0
    scale: float = 1.0
    late: Any = None  # weights that count only after the election (SCE)
    step: int = STRETCH
    by_row: tuple[int, ...] = ()  # task vectors whose masks are drawn stretch by stretch

    def fill(self, at: int, count: int, address: int) -> None:
        """Computes `count` elements from `at` on into memory."""
        if self.by_row:
            _with_row_masks(self, at, count).fill(at, count, address)
            return
        dtype = CODES[self.operands.output.spec.dtype]
        if self.rules is None:
            linear = self.base, self.inputs, self.coefficients, self.count, self.total
            _check(library().combination(*linear, at, count, dtype, address))
        else:
            options = self.count, self.elect, self.normalize, self.total, self.scale, self.late
            _check(library().task_vectors(self.base, self.inputs, self.rules, *options, at, count, dtype, address))

    def to_file(self, room: int, descriptor: int, at: int) -> None:
        """Computes and writes all stretches, in C: `room` is the address of space for one of them."""
        options = self.count, self.elect, self.normalize, self.total, self.scale, self.late
        size = self.operands.elements, CODES[self.operands.output.spec.dtype], STRETCH
        code = library().to_file(
            self.base, self.inputs, self.rules, self.coefficients, *options, *size, room, descriptor, at
        )
        if code > 0:
            raise OSError(code, os.strerror(code))
        _check(code)


def _check(code: int) -> None:
    if code:
        raise MergeError("the kernel ran out of memory")


def prepare_job(output: Output, stored: Sequence[Stored], thresholds: Sequence[Threshold | None] = ()) -> TensorJob:
    """Makes the passes over the whole tensor. `thresholds` are given where TIES trims the whole model."""
    operands = _Operands.of(output, stored)
    if output.method in _PREPARE:
        return _PREPARE[output.method](operands)
    if not operands.count:
        return _combination(operands, [1.0], only_base=True)
    return _task_vectors(operands, thresholds)


# --- linear combinations ---------------------------------------------------------------------------------------------


def _combination(
    operands: _Operands, numbers: Sequence[float], divide: float = 0.0, base: Any = None, only_base: bool = False
) -> TensorJob:
    """sum_i c_i x_i; with a base, base + sum_i c_i (x_i - base). `divide` 0 means no division."""
    array = (ctypes.c_double * len(numbers))(*numbers)
    inputs = ctypes.cast(operands.base, INPUTS) if only_base else operands.others
    divide = 0.0 if divide == 1.0 else divide
    return TensorJob(operands, inputs, len(numbers), base, coefficients=array, total=divide)


def _gram(operands: _Operands, base: Any = None, mask: Any = None, inputs: Any = None, count: int | None = None) -> Any:
    """All inner products of the inputs, less the base where it is given."""
    count = operands.count if count is None else count
    lower = (ctypes.c_double * (count * count))()
    inputs = operands.others if inputs is None else inputs
    _check(library().gram(base, inputs, count, mask, operands.elements, lower))
    products = [[0.0] * count for _ in range(count)]
    for i in range(count):
        for j in range(i + 1):
            products[i][j] = products[j][i] = lower[i * count + j]
    return products


def _weights(operands: _Operands) -> list[float]:
    return [operands.own(i)["weight"] for i in range(operands.count)]


def _linear(operands: _Operands) -> TensorJob:
    weights = _weights(operands)
    return _combination(operands, weights, coefficients.total(weights) if operands.output.values["normalize"] else 0.0)


def _passthrough(operands: _Operands) -> TensorJob:
    scale = operands.own(0)["scale"]
    return _combination(operands, [1.0 if scale is None else scale])


def _slerp(operands: _Operands) -> TensorJob:
    both = (Input * 2)(operands.base.contents, operands.others[0])
    operands = replace(operands, base=None, others=both, places=[0, 1])
    return _combination(operands, coefficients.slerp_coefficients(_gram(operands), operands.output.values["t"]))


def _nuslerp(operands: _Operands) -> TensorJob:
    t = coefficients.nuslerp_t(_weights(operands))
    numbers = coefficients.nuslerp_coefficients(_gram(operands, operands.base), t)
    return _combination(operands, numbers, base=operands.base)


def _multislerp(operands: _Operands) -> TensorJob:
    if operands.count == 1:
        return _combination(operands, [1.0])
    values, products = operands.output.values, _gram(operands, operands.base)
    normalize, eps = values["normalize_weights"], values["eps"]
    numbers = coefficients.multislerp_coefficients(products, _weights(operands), normalize, eps)
    return _combination(operands, numbers, base=operands.base)


def _model_stock(operands: _Operands) -> TensorJob:
    numbers = coefficients.stock_coefficients(_gram(operands, operands.base))
    inputs = (Input * (operands.count + 1))(*operands.others[: operands.count], operands.base.contents)
    return _combination(replace(operands, others=inputs), numbers)


# --- task vectors ----------------------------------------------------------------------------------------------------


def _sce(operands: _Operands) -> TensorJob:
    if not operands.count:
        return _combination(operands, [1.0], only_base=True)
    mask = _sce_mask(operands)
    squares = [
        _gram(operands, operands.base, mask, operands.one(i), 1)[0][0] / max(operands.elements, 1)
        for i in range(operands.count)
    ]
    late = (ctypes.c_double * operands.count)(*coefficients.sce_weights(squares))
    rules = (KeepRule * operands.count)()
    for rule in rules:
        rule.kind, rule.factor, rule.weight = (ALL if mask is None else BYTES), 1.0, 1.0
        rule.mask = None if mask is None else ctypes.addressof(mask)
    operands.buffers.append(mask)
    options: dict[str, Any] = {"elect": True, "normalize": True, "total": 1.0, "late": late}
    return TensorJob(operands, operands.others, operands.count, operands.base, rules=rules, **options)


def _sce_mask(operands: _Operands) -> Any:
    """The elements with the largest variance over the models; None for all of them."""
    kernel, n, share = library(), operands.elements, operands.output.values["select_topk"]
    if share >= 1:
        return None
    inputs = operands.base, operands.others, operands.count, n
    count = int(kernel.nonzero(*inputs) * share) if operands.count > 1 else 0
    mask = (ctypes.c_uint8 * max(n, 1))()
    if count > 0:
        low, last = _select(operands, operands.others, operands.count, count)
        _check(kernel.mask_above(*inputs, low, last, mask))
    return mask


def _select(operands: _Operands, inputs: Any, m: int, k: int, from_below: bool = False) -> tuple[float, int]:
    """The k-th largest key (|x - base|, or the variance of several) and its position."""
    value, position = ctypes.c_double(), ctypes.c_int64()
    addresses = ctypes.addressof(value), ctypes.addressof(position)
    _check(library().select_key(operands.base, inputs, m, operands.elements, k, from_below, *addresses))
    return value.value, position.value


def _task_vectors(operands: _Operands, thresholds: Sequence[Threshold | None]) -> TensorJob:
    values, method = operands.output.values, METHODS[operands.output.method]
    rules = (KeepRule * operands.count)()
    for i, rule in enumerate(rules):
        rule.factor, rule.weight = 1.0, operands.own(i)["weight"]
        _set_rule(operands, i, rule, thresholds[operands.places[i]] if thresholds else None)
    _set_factors(operands, rules)
    weight = coefficients.total(_weights(operands))
    job = TensorJob(
        operands,
        operands.others,
        operands.count,
        operands.base,
        rules=rules,
        elect=method.elect,
        normalize=values["normalize"],
        total=1.0 if abs(weight) < 1e-8 else weight,
        scale=values["lambda"],
    )
    if method.sparsify == "ranked" and _divides(operands):
        _, length = _rows(operands.output)
        job.step = length * max(1, STRETCH // length)
        job.by_row = tuple(i for i in range(operands.count) if 0 < operands.own(i)["density"] < 1)
    return job


def _divides(operands: _Operands) -> bool:
    """Whether survivors are divided by their probability, as the papers of DARE and DELLA do."""
    values = operands.output.values
    return bool(values["rescale"] and values["rescale_by"] == "probability")


def _set_rule(operands: _Operands, i: int, rule: Any, threshold: Threshold | None) -> None:
    """Which elements of task vector i stay."""
    own, kind = operands.own(i), METHODS[operands.output.method].sparsify
    density = own["density"]
    if kind is None or density >= 1 or not operands.elements:
        rule.kind = ALL
    elif density <= 0:
        rule.kind = NONE
    elif kind == "magnitude":
        _keep_top(operands, i, rule, density, threshold)
    elif kind == "band":
        _keep_band(operands, i, rule, density, own["gamma"])
    elif kind == "random":
        _keep_random(operands, i, rule, density)
    elif not _divides(operands):
        _keep_ranked(operands, i, rule, density, own["epsilon"])


def _set_factors(operands: _Operands, rules: Any) -> None:
    """mergekit's rescaling, of all task vectors in one pass. (DELLA's factor comes with its mask.)"""
    kind = METHODS[operands.output.method].sparsify
    if kind in (None, "ranked") or not operands.output.values["rescale"] or (kind == "random" and _divides(operands)):
        return
    norms = (ctypes.c_double * (2 * operands.count))()
    _check(library().norms(operands.base, operands.others, rules, operands.count, operands.elements, norms))
    for i in range(operands.count):
        if 0 < operands.own(i)["density"] < 1:
            rules[i].factor = coefficients.rescale_factor(norms[2 * i], norms[2 * i + 1])


def _key(operands: _Operands, i: int) -> int:
    """The key of the random numbers for task vector i, as 64 bits."""
    low, high = key_of(operands.output.values["seed"], operands.output.name, operands.places[i])
    return low | high << 32


def _mask_space(operands: _Operands, i: int) -> int:
    """The address of space for a mask of task vector i, one bit per element."""
    buffer = _thread_buffer(operands.elements // 8 + 1024, f"mask {i}")
    operands.buffers.append(buffer)
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def _keep_top(operands: _Operands, i: int, rule: Any, density: float, threshold: Threshold | None) -> None:
    rule.kind = TOP
    if threshold is None:
        count = coefficients.top_count(operands.elements, density)
        rule.low, rule.low_at = _select(operands, operands.one(i), 1, count)
        return
    rule.low, rule.low_at = threshold[0], -1
    if threshold[1]:  # so many of the equals stay, from the first on
        inputs = operands.base, operands.one(i), 1, operands.elements
        rule.low_at = library().occurrence(*inputs, rule.low, threshold[1] - 1)


def _keep_band(operands: _Operands, i: int, rule: Any, density: float, gamma: float) -> None:
    n = operands.elements
    low, high = coefficients.band_ends(n, density, gamma)
    rule.kind, rule.low, rule.high, rule.high_at = BAND, -1.0, float("inf"), 0
    if high <= low:
        rule.kind = NONE
        return
    if low > 0:
        rule.low, rule.low_at = _select(operands, operands.one(i), 1, n - low, from_below=True)
    if high < n:
        rule.high, rule.high_at = _select(operands, operands.one(i), 1, n - high, from_below=True)


def _keep_random(operands: _Operands, i: int, rule: Any, density: float) -> None:
    value, digits = digits_of(density)
    rule.kind = BITS if digits else ALL if value else NONE
    rule.divide = density if _divides(operands) else 0.0
    if digits:
        rule.mask = _mask_space(operands, i)
        library().random_bits(_key(operands, i), value, digits, operands.elements, rule.mask)


def _rows(output: Output) -> tuple[int, int]:
    """The number of rows and their length, as DELLA ranks them."""
    shape = output.spec.shape
    return (1, output.spec.elements) if len(shape) < 2 else (shape[0], shape[1])


def _keep_ranked(operands: _Operands, i: int, rule: Any, density: float, epsilon: float) -> None:
    rows, length = _rows(operands.output)
    bits, norms = _mask_space(operands, i), (ctypes.c_double * 2)()
    rescale = operands.output.values["rescale"]
    inputs = operands.base, operands.one(i), 0, rows, length, density, epsilon, _key(operands, i)
    _check(library().magprune(*inputs, None, None, bits, norms if rescale else None))
    rule.kind, rule.mask = BITS, bits
    if rescale:
        rule.factor = coefficients.rescale_factor(norms[0], norms[1])


def _with_row_masks(job: TensorJob, at: int, count: int) -> TensorJob:
    """DELLA in the paper's form: every survivor is divided by its own probability, computed some rows at a time."""
    operands = job.operands
    _, length = _rows(operands.output)
    rules = (KeepRule * operands.count)(*job.rules)
    buffers = list(operands.buffers)
    for i in job.by_row:
        keep, chance = (ctypes.c_uint8 * count)(), (ctypes.c_double * count)()
        buffers += [keep, chance]
        own = operands.own(i)
        rows = at // length, count // length, length
        inputs = operands.base, operands.one(i), *rows, own["density"], own["epsilon"], _key(operands, i)
        _check(library().magprune(*inputs, keep, chance, None, None))
        rules[i].kind, rules[i].mask_at = BYTES, at
        rules[i].mask, rules[i].probability = ctypes.addressof(keep), ctypes.addressof(chance)
    return replace(job, operands=replace(operands, buffers=buffers), rules=rules, by_row=())


_PREPARE: dict[str, Callable[[_Operands], TensorJob]] = {
    "linear": _linear,
    "passthrough": _passthrough,
    "slerp": _slerp,
    "nuslerp": _nuslerp,
    "multislerp": _multislerp,
    "model_stock": _model_stock,
    "sce": _sce,
}


# --- running a job ---------------------------------------------------------------------------------------------------


def histogram(output: Output, stored: Sequence[Stored], place: int, shift: int, prefix: int) -> Any:
    """Counts of the 16 bits of |x_i - x_0| from `shift` on, where the bits above are `prefix`: [65536]."""
    operands = _Operands.of(output, stored)
    counts: Any = np.zeros(1 << 16, np.int64)
    one = operands.one(operands.places.index(place))
    _check(library().histogram(operands.base, one, 1, operands.elements, shift, prefix, counts.ctypes.data))
    return counts


def compute_bytes(job: TensorJob) -> memoryview:
    """The output tensor in memory, as it is stored."""
    data: Any = np.empty(job.operands.output.spec.bytes, np.uint8)
    if job.operands.elements:
        job.fill(0, job.operands.elements, data.ctypes.data)
    return memoryview(data)


def write(job: TensorJob, descriptor: int, at: int) -> None:
    """Writes the output tensor to its place in a file, a stretch at a time."""
    n, spec = job.operands.elements, job.operands.output.spec
    if not n:
        return
    width = spec.bytes // n
    buffer = _thread_buffer(min(n, job.step) * width, "stretch")
    room = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    if not job.by_row:
        job.to_file(room, descriptor, at)
        return
    for start in range(0, n, job.step):
        count = min(job.step, n - start)
        job.fill(start, count, room)
        write_at(descriptor, memoryview(buffer)[: count * width], at + start * width)


def _thread_buffer(size: int, use: str) -> bytearray:
    """A buffer of this thread for one use, reused from tensor to tensor."""
    buffers: dict[str, bytearray] = _local.__dict__.setdefault("buffers", {})
    if len(buffers.get(use, b"")) < size:
        buffers[use] = bytearray(size)
    return buffers[use]


def write_at(descriptor: int, data: memoryview, at: int) -> None:
    """Writes all of `data` at a position of a file."""
    while data:
        written = os.pwrite(descriptor, data[: 1 << 26], at)
        data, at = data[written:], at + written
