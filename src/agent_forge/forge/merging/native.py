"""The compiled kernel: the same numbers as `compute`, in one or two passes over the inputs and next to no memory.

A `Job` is an output tensor made ready: what has to be known of the whole tensor (thresholds, norms, inner products) is
known, and `fill` computes any stretch of it.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_forge.errors import MergeError
from agent_forge.forge.merging.binding import ONE, Input, Rule, library
from agent_forge.forge.merging.chance import digits_of, key_of
from agent_forge.forge.merging.counts import band_ends, rescale_factor, top_count
from agent_forge.forge.merging.layout import Output
from agent_forge.forge.merging.settings import METHODS
from agent_forge.forge.merging.sources import FLOATS

if TYPE_CHECKING:
    from agent_forge.forge.merging.staging import Stage

STRETCH = 1 << 18  # elements that are computed, then written: they stay in the cache in between
CODES = {"F64": 0, "F32": 1, "F16": 2, "BF16": 3}
ALL, NONE, TOP, BAND, GIVEN, BITS = range(6)
_local = threading.local()


def can(output: Output) -> bool:
    """Whether the kernel computes this output; the rest (by rows, odd shapes) is left to torch."""
    if output.method not in METHODS or output.spec.dtype not in FLOATS or library() is None:
        return False
    if output.method == "nuslerp":
        return bool(output.values["nuslerp_flatten"])
    if output.method == "model_stock":
        return not output.values["filter_wise"]
    return METHODS[output.method].sparsify != "ranked" or len(output.spec.shape) <= 2


# --- what a job is given ---------------------------------------------------------------------------------------------


@dataclass
class _Given:
    """The inputs of an output, as addresses; and whatever must not be freed before the job is done."""

    output: Output
    base: Any  # an Input, or None
    others: Any  # an array of Input
    places: list[int]  # which pieces the others are
    count: int
    holds: list[Any] = field(default_factory=list)

    @property
    def elements(self) -> int:
        return self.output.spec.elements

    def one(self, number: int) -> Any:
        return ctypes.pointer(self.others[number])

    def own(self, number: int) -> Any:
        return self.output.pieces[self.places[number]].values


def _given(stage: Stage, output: Output) -> _Given:
    import numpy as np

    holds: list[Any] = []
    inputs = []
    if stage.token_map is not None and output.vocabulary:
        from agent_forge.forge.merging.tensors import mapped_tables

        for table in mapped_tables(stage, output):
            holds.append(table)
            inputs.append(Input(table.ctypes.data, CODES["F64" if table.itemsize == 8 else "F32"]))
    else:
        for piece in output.pieces:
            model = stage.models[piece.model]
            data = np.frombuffer(model.bytes_of(piece.tensor), np.uint8)
            holds.append(data)
            inputs.append(Input(data.ctypes.data, CODES[model.tensors[piece.tensor].dtype]))
    places = [place for place in range(len(inputs)) if place != output.base]
    others = (Input * max(1, len(places)))(*(inputs[place] for place in places))
    base = None if output.base is None else ctypes.pointer(inputs[output.base])
    return _Given(output, base, others, places, len(places), holds)


@dataclass
class Job:
    """An output tensor, ready to be computed in stretches that start at multiples of `step`."""

    given: _Given
    step: int
    call: Any  # call(at, count, address)
    to_file: Any = None  # to_file(room, file, at): all stretches at once, computed and written

    def fill(self, at: int, count: int, address: int) -> None:
        _checked(self.call(at, count, address))


def _checked(code: int) -> None:
    if code:
        raise MergeError("the kernel ran out of memory")


def _written(code: int) -> None:
    if code > 0:
        raise OSError(code, os.strerror(code))
    _checked(code)


def job_of(stage: Stage, output: Output) -> Job:
    """Makes an output ready: the passes that look at the whole tensor happen here."""
    given = _given(stage, output)
    if METHODS[output.method].sparsify is not None or output.method == "task_arithmetic":
        if not given.count:
            return _combination(given, [1.0], only_base=True)
        return _task_job(stage, given)
    return _JOBS[output.method](given)


# --- linear combinations ---------------------------------------------------------------------------------------------


def _combination(
    given: _Given, coefficients: Sequence[float], divide: float = 0.0, base: Any = None, only_base: bool = False
) -> Job:
    lib, numbers = library(), (ctypes.c_double * len(coefficients))(*coefficients)
    divide = 0.0 if divide == 1.0 else divide  # the same, and faster
    inputs = ctypes.cast(given.base, ONE) if only_base else given.others
    type_ = CODES[given.output.spec.dtype]
    given.holds.append(numbers)

    def call(at: int, count: int, address: int) -> int:
        made: int = lib.combination(base, inputs, numbers, len(coefficients), divide, at, count, type_, address)
        return made

    def to_file(room: int, file: int, at: int) -> None:
        what = base, inputs, None, numbers, len(coefficients), False, False, divide, 1.0, None, given.elements, type_
        _written(lib.to_file(*what, STRETCH, room, file, at))

    return Job(given, STRETCH, call, to_file)


def _gram(given: _Given, base: Any = None, mask: Any = None, inputs: Any = None, count: int | None = None) -> Any:
    count = given.count if count is None else count
    found = (ctypes.c_double * (count * count))()
    inputs = given.others if inputs is None else inputs
    _checked(library().gram(base, inputs, count, mask, given.elements, found))
    products = [[0.0] * count for _ in range(count)]
    for i in range(count):
        for j in range(i + 1):
            products[i][j] = products[j][i] = found[i * count + j]
    return products


def _linear(given: _Given) -> Job:
    weights = [given.own(i)["weight"] for i in range(given.count)]
    from agent_forge.forge.merging.counts import total

    return _combination(given, weights, total(weights) if given.output.values["normalize"] else 0.0)


def _passthrough(given: _Given) -> Job:
    scale = given.own(0)["scale"]
    return _combination(given, [1.0 if scale is None else scale])


def _slerp(given: _Given) -> Job:
    from agent_forge.forge.merging.counts import slerp_coefficients

    given.others = (Input * 2)(given.base.contents, given.others[0])
    given.base, given.count = None, 2
    return _combination(given, slerp_coefficients(_gram(given), given.output.values["t"]))


def _nuslerp(given: _Given) -> Job:
    from agent_forge.forge.merging.counts import nuslerp_coefficients, share

    t = share([given.own(i)["weight"] for i in range(2)])
    return _combination(given, nuslerp_coefficients(_gram(given, given.base), t), base=given.base)


def _multislerp(given: _Given) -> Job:
    from agent_forge.forge.merging.counts import multislerp_coefficients

    if given.count == 1:
        return _combination(given, [1.0])
    values, weights = given.output.values, [given.own(i)["weight"] for i in range(given.count)]
    found = multislerp_coefficients(_gram(given, given.base), weights, values["normalize_weights"], values["eps"])
    return _combination(given, found, base=given.base)


def _model_stock(given: _Given) -> Job:
    from agent_forge.forge.merging.counts import stock_coefficients

    coefficients = stock_coefficients(_gram(given, given.base))
    given.others = (Input * (given.count + 1))(*given.others[: given.count], given.base.contents)
    return _combination(given, coefficients)


# --- task vectors ----------------------------------------------------------------------------------------------------


def _sce(given: _Given) -> Job:
    from agent_forge.forge.merging.counts import sce_weights

    if not given.count:
        return _combination(given, [1.0], only_base=True)
    mask = _sce_mask(given)
    squares = [
        _gram(given, given.base, mask, given.one(i), 1)[0][0] / max(given.elements, 1) for i in range(given.count)
    ]
    late = (ctypes.c_double * given.count)(*sce_weights(squares))
    rules = (Rule * given.count)()
    for rule in rules:
        rule.kind, rule.factor, rule.weight = (ALL if mask is None else GIVEN), 1.0, 1.0
        rule.given = None if mask is None else ctypes.addressof(mask)
    given.holds += [late, rules, mask]
    return _task_call(given, rules, elect=True, normalize=True, total=1.0, scale=1.0, late=late)


def _sce_mask(given: _Given) -> Any:
    """The elements with the largest variance over the models; None for all of them."""
    lib, n, share = library(), given.elements, given.output.values["select_topk"]
    if share >= 1:
        return None
    count = int(lib.nonzero(given.base, given.others, given.count, n) * share) if given.count > 1 else 0
    mask = (ctypes.c_uint8 * max(n, 1))()
    if count > 0:
        low, last = _select(given, given.others, given.count, count)
        _checked(lib.mask_above(given.base, given.others, given.count, n, low, last, mask))
    return mask


def _select(given: _Given, inputs: Any, m: int, k: int, from_below: bool = False) -> tuple[float, int]:
    value, place = ctypes.c_double(), ctypes.c_int64()
    lib = library()
    _checked(
        lib.select_key(
            given.base, inputs, m, given.elements, k, from_below, ctypes.addressof(value), ctypes.addressof(place)
        )
    )
    return value.value, place.value


def _task_job(stage: Stage, given: _Given) -> Job:
    from agent_forge.forge.merging.counts import total
    from agent_forge.forge.merging.thresholds import thresholds_of

    values = given.output.values
    thresholds = thresholds_of(stage, given.output)
    rules = (Rule * given.count)()
    for i in range(given.count):
        rules[i].factor, rules[i].weight = 1.0, given.own(i)["weight"]
        _set_rule(given, i, rules[i], thresholds[given.places[i]] if thresholds else None)
    _set_factors(given, rules)
    given.holds.append(rules)
    weight = total([given.own(i)["weight"] for i in range(given.count)])
    options = {
        "elect": METHODS[given.output.method].elect,
        "normalize": values["normalize"],
        "total": 1.0 if abs(weight) < 1e-8 else weight,
        "scale": values["lambda"],
    }
    if METHODS[given.output.method].sparsify == "ranked" and _divides(given):
        return _by_rows(given, rules, options)
    return _task_call(given, rules, **options)


def _task_call(
    given: _Given, rules: Any, elect: bool, normalize: bool, total: float, scale: float, late: Any = None
) -> Job:
    lib, type_ = library(), CODES[given.output.spec.dtype]

    def call(at: int, count: int, address: int) -> int:
        what = given.base, given.others, rules, given.count, elect, normalize, total, scale, late
        made: int = lib.task_vectors(*what, at, count, type_, address)
        return made

    def to_file(room: int, file: int, at: int) -> None:
        what = given.base, given.others, rules, None, given.count, elect, normalize, total, scale, late
        _written(lib.to_file(*what, given.elements, type_, STRETCH, room, file, at))

    return Job(given, STRETCH, call, to_file)


def _divides(given: _Given) -> bool:
    values = given.output.values
    return bool(values["rescale"] and values["rescale_by"] == "probability")


def _set_rule(given: _Given, i: int, rule: Any, threshold: tuple[float, int] | None) -> None:
    """Which elements of task vector i stay."""
    own, kind, n = given.own(i), METHODS[given.output.method].sparsify, given.elements
    density = own["density"]
    if kind is None or density >= 1 or not n:
        rule.kind = ALL
        return
    if density <= 0:
        rule.kind = NONE
        return
    if kind == "magnitude":
        _set_top(given, i, rule, density, threshold)
    elif kind == "band":
        _set_band(given, i, rule, density, own["gamma"])
    elif kind == "random":
        _set_random(given, i, rule, density)
    elif not _divides(given):
        _set_ranked(given, i, rule, density, own["epsilon"])


def _set_factors(given: _Given, rules: Any) -> None:
    """mergekit's rescaling, of all task vectors in one pass (DELLA's has been found along with its masks)."""
    kind = METHODS[given.output.method].sparsify
    if kind in (None, "ranked") or not given.output.values["rescale"] or (kind == "random" and _divides(given)):
        return
    both = (ctypes.c_double * (2 * given.count))()
    _checked(library().norms(given.base, given.others, rules, given.count, given.elements, both))
    for i in range(given.count):
        if 0 < given.own(i)["density"] < 1:
            rules[i].factor = rescale_factor(both[2 * i], both[2 * i + 1])


def _key(given: _Given, i: int) -> int:
    """The key of the random numbers for task vector i, as 64 bits."""
    low, high = key_of(given.output.values["seed"], given.output.name, given.places[i])
    return low | high << 32


def _set_random(given: _Given, i: int, rule: Any, density: float) -> None:
    value, digits = digits_of(density)
    rule.kind = BITS if digits else ALL if value else NONE
    rule.divide = density if _divides(given) else 0.0
    if digits:
        rule.given = _bits(given, i)
        library().random_bits(_key(given, i), value, digits, given.elements, rule.given)


def _bits(given: _Given, i: int) -> int:
    """The address of room for a mask of task vector i, one bit an element."""
    size = given.elements // 8 + 1024
    buffer = _buffer(size, f"mask {i}")
    given.holds.append(buffer)
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def _set_top(given: _Given, i: int, rule: Any, density: float, threshold: tuple[float, int] | None) -> None:
    rule.kind = TOP
    if threshold is None:
        rule.low, rule.low_at = _select(given, given.one(i), 1, top_count(given.elements, density))
        return
    rule.low, rule.low_at = threshold[0], -1
    if threshold[1]:
        rule.low_at = library().occurrence(given.base, given.one(i), 1, given.elements, rule.low, threshold[1] - 1)


def _set_band(given: _Given, i: int, rule: Any, density: float, gamma: float) -> None:
    n = given.elements
    low, high = band_ends(n, density, gamma)
    rule.kind, rule.low, rule.high, rule.high_at = BAND, -1.0, float("inf"), 0
    if high <= low:
        rule.kind = NONE
        return
    if low > 0:
        rule.low, rule.low_at = _select(given, given.one(i), 1, n - low, from_below=True)
    if high < n:
        rule.high, rule.high_at = _select(given, given.one(i), 1, n - high, from_below=True)


def _rows_of(output: Output) -> tuple[int, int]:
    """The number of rows and their length, as DELLA ranks them."""
    shape = output.spec.shape
    return (1, output.spec.elements) if len(shape) < 2 else (shape[0], shape[1])


def _set_ranked(given: _Given, i: int, rule: Any, density: float, epsilon: float) -> None:
    rows, length = _rows_of(given.output)
    bits, both = _bits(given, i), (ctypes.c_double * 2)()
    rescale = given.output.values["rescale"]
    _checked(
        library().magprune(
            given.base, given.one(i), 0, rows, length, density, epsilon, _key(given, i), None, None, bits,
            both if rescale else None,
        )
    )  # fmt: skip
    rule.kind, rule.given = BITS, bits
    if rescale:
        rule.factor = rescale_factor(both[0], both[1])


def _by_rows(given: _Given, rules: Any, options: dict[str, Any]) -> Job:
    """DELLA in the paper's form: every survivor is divided by its own probability, found some rows at a time."""
    _, length = _rows_of(given.output)
    whole = _task_call(given, rules, **options)
    step = length * max(1, STRETCH // length)
    thinned = [i for i in range(given.count) if 0 < given.own(i)["density"] < 1]

    def call(at: int, count: int, address: int) -> int:
        own = (Rule * given.count)(*rules)
        holds = []
        for i in thinned:
            keep, chance = (ctypes.c_uint8 * count)(), (ctypes.c_double * count)()
            holds += [keep, chance]
            density, epsilon = given.own(i)["density"], given.own(i)["epsilon"]
            fault = library().magprune(
                given.base, given.one(i), at // length, count // length, length, density, epsilon,
                _key(given, i), keep, chance, None, None,
            )  # fmt: skip
            if fault:
                return 1
            own[i].kind, own[i].given_at = GIVEN, at
            own[i].given, own[i].probability = ctypes.addressof(keep), ctypes.addressof(chance)
        made: int = _task_call(given, own, **options).call(at, count, address)
        return made

    return Job(whole.given, step, call)


_JOBS = {
    "linear": _linear,
    "passthrough": _passthrough,
    "slerp": _slerp,
    "nuslerp": _nuslerp,
    "multislerp": _multislerp,
    "model_stock": _model_stock,
    "sce": _sce,
}


def histogram(stage: Stage, output: Output, place: int, shift: int, prefix: int) -> Any:
    """16 bits of |x_i - x_0| counted, as `thresholds.histogram` says."""
    import numpy as np

    given = _given(stage, output)
    counts: Any = np.zeros(1 << 16, np.int64)
    one = given.one(given.places.index(place))
    _checked(library().histogram(given.base, one, 1, given.elements, shift, prefix, counts.ctypes.data))
    return counts


# --- carrying a job out ----------------------------------------------------------------------------------------------


def whole(stage: Stage, output: Output) -> memoryview:
    """The output tensor in memory, as it is stored."""
    import numpy as np

    job, n = job_of(stage, output), output.spec.elements
    data: Any = np.empty(output.spec.bytes, np.uint8)
    if n:
        job.fill(0, n, data.ctypes.data)
    return memoryview(data)


def write(stage: Stage, output: Output, descriptor: int, at: int) -> None:
    """The output tensor to its place in a file, a stretch at a time."""
    width = output.spec.bytes // max(output.spec.elements, 1)
    if _is_copy(stage, output):
        piece = output.pieces[0]
        _write(descriptor, stage.models[piece.model].bytes_of(piece.tensor), at)
        return
    job, n = job_of(stage, output), output.spec.elements
    buffer = _buffer(min(n, job.step) * width, "stretch")
    room = ctypes.addressof(ctypes.c_char.from_buffer(buffer)) if n else 0
    if job.to_file is not None:
        job.to_file(room, descriptor, at)
        return
    for start in range(0, n, job.step):
        count = min(job.step, n - start)
        job.fill(start, count, room)
        _write(descriptor, memoryview(buffer)[: count * width], at + start * width)


def _is_copy(stage: Stage, output: Output) -> bool:
    if output.method != "passthrough" or output.pieces[0].values.get("scale") is not None:
        return False
    piece = output.pieces[0]
    mapped = stage.token_map is not None and output.vocabulary
    return not mapped and stage.models[piece.model].tensors[piece.tensor].dtype == output.spec.dtype


def _buffer(size: int, use: str) -> bytearray:
    """This thread's own for a use, kept from tensor to tensor."""
    found: dict[str, bytearray] = _local.__dict__.setdefault("buffers", {})
    if len(found.get(use, b"")) < size:
        found[use] = bytearray(size)
    return found[use]


def _write(descriptor: int, data: memoryview, at: int) -> None:
    while data:
        written = os.pwrite(descriptor, data[: 1 << 26], at)
        data, at = data[written:], at + written
