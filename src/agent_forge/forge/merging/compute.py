"""One output tensor from its inputs, in torch: on any device, and where there is no compiled kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from agent_forge.errors import CheckpointError
from agent_forge.forge.merging.chance import key_of
from agent_forge.forge.merging.counts import rescale_factor, share
from agent_forge.forge.merging.exact import rounded, tree_sum
from agent_forge.forge.merging.layout import Output
from agent_forge.forge.merging.methods import linear, sparsify, spherical, stock, task_vectors
from agent_forge.forge.merging.settings import METHODS

Threshold = tuple[float, int]  # keep what is above, and so many of what is equal (trim: model)


def compute(output: Output, tensors: Sequence[Tensor], thresholds: Sequence[Threshold | None] = ()) -> Tensor:
    """The output tensor, rounded to its type. `tensors` are the pieces' own, of any float type.

    `thresholds`, one for each piece, are given where a task vector is trimmed over the whole model.
    """
    if output.method == "equal":
        return equal(output, tensors)
    if output.method == "passthrough" and output.pieces[0].values.get("scale") is None:
        only = tensors[0]
        return only if only.dtype == torch_dtype(output.spec.dtype) else rounded(only.double(), output.spec.dtype)
    double = [tensor.to(torch.float64) for tensor in tensors]
    if METHODS[output.method].elect or "rescale" in METHODS[output.method].parameters:
        made = _task_vectors(output, double, thresholds)
    else:
        made = _DIRECT[output.method](output, double)
    return rounded(made, output.spec.dtype)


def torch_dtype(code: str) -> torch.dtype:
    return {
        "F64": torch.float64,
        "F32": torch.float32,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "I64": torch.int64,
        "I32": torch.int32,
        "I16": torch.int16,
        "I8": torch.int8,
        "U8": torch.uint8,
        "BOOL": torch.bool,
    }[code]


def equal(output: Output, tensors: Sequence[Tensor]) -> Tensor:
    """A tensor that is not of floats is taken over, if all models agree on it."""
    for piece, tensor in zip(output.pieces[1:], tensors[1:], strict=True):
        if not torch.equal(tensor, tensors[0]):
            raise CheckpointError(f"{output.name} is not of floats and differs between models", where=piece.model)
    return tensors[0]


def _split(output: Output, tensors: Sequence[Tensor]) -> tuple[Tensor | None, list[Tensor], list[Mapping[str, Any]]]:
    """The base, the others, and the others' own parameters."""
    others = [i for i in range(len(tensors)) if i != output.base]
    base = None if output.base is None else tensors[output.base]
    return base, [tensors[i] for i in others], [output.pieces[i].values for i in others]


def _linear(output: Output, tensors: Sequence[Tensor]) -> Tensor:
    weights = [piece.values["weight"] for piece in output.pieces]
    return linear.linear(tensors, weights, output.values["normalize"])


def _passthrough(output: Output, tensors: Sequence[Tensor]) -> Tensor:
    return linear.passthrough(tensors[0], output.pieces[0].values["scale"])


def _slerp(output: Output, tensors: Sequence[Tensor]) -> Tensor:
    base, (other,), _ = _split(output, tensors)
    assert base is not None
    return spherical.slerp(base, other, output.values["t"])


def _from_base(base: Tensor | None, others: Sequence[Tensor], merge: Callable[[list[Tensor]], Tensor]) -> Tensor:
    if base is None:
        return merge(list(others))
    return base + merge([other - base for other in others])


def _nuslerp(output: Output, tensors: Sequence[Tensor]) -> Tensor:
    base, others, values = _split(output, tensors)
    t = share([value["weight"] for value in values])

    def merge(pair: list[Tensor]) -> Tensor:
        if output.values["nuslerp_flatten"]:
            return spherical.nuslerp(pair[0], pair[1], t)
        return spherical.nuslerp_rows(pair[0], pair[1], t, 0 if output.values["nuslerp_row_wise"] else -1)

    return _from_base(base, others, merge)


def _multislerp(output: Output, tensors: Sequence[Tensor]) -> Tensor:
    base, others, values = _split(output, tensors)
    if len(others) == 1:
        return others[0]
    weights = [value["weight"] for value in values]
    normalize, eps = output.values["normalize_weights"], output.values["eps"]
    return _from_base(base, others, lambda vectors: spherical.multislerp(vectors, weights, normalize, eps))


def _model_stock(output: Output, tensors: Sequence[Tensor]) -> Tensor:
    base, others, _ = _split(output, tensors)
    assert base is not None
    return (stock.model_stock_rows if output.values["filter_wise"] else stock.model_stock)(base, others)


def _sce(output: Output, tensors: Sequence[Tensor]) -> Tensor:
    base, others, _ = _split(output, tensors)
    assert base is not None
    return task_vectors.sce(base, others, output.values["select_topk"]) if others else base


_DIRECT: dict[str, Callable[[Output, Sequence[Tensor]], Tensor]] = {
    "linear": _linear,
    "passthrough": _passthrough,
    "slerp": _slerp,
    "nuslerp": _nuslerp,
    "multislerp": _multislerp,
    "model_stock": _model_stock,
    "sce": _sce,
}


def _task_vectors(output: Output, tensors: Sequence[Tensor], thresholds: Sequence[Threshold | None]) -> Tensor:
    assert output.base is not None
    base, values = tensors[output.base], output.values
    others = [i for i in range(len(tensors)) if i != output.base]
    if not others:
        return base
    vectors = []
    for i in others:
        threshold = thresholds[i] if thresholds else None
        vectors.append(thin(output, i, tensors[i] - base, threshold))
    weights = [output.pieces[i].values["weight"] for i in others]
    elect = METHODS[output.method].elect
    return task_vectors.add_task_vectors(base, vectors, weights, elect, values["normalize"], values["lambda"])


def thin(output: Output, place: int, vector: Tensor, threshold: Threshold | None = None) -> Tensor:
    """A task vector after its method's thinning out and rescaling."""
    values, own = output.values, output.pieces[place].values
    kind, density = METHODS[output.method].sparsify, own["density"]
    if kind is None or density >= 1:
        return vector
    mask, probability = mask_of(output, place, vector, threshold)
    vector, whole = task_vectors.kept(vector, mask), vector
    if not values["rescale"]:
        return vector
    if values["rescale_by"] == "probability" and probability is not None:
        return vector / probability
    factor = rescale_factor(tree_sum(whole.abs()), tree_sum(vector.abs()))
    return vector * factor if factor != 1.0 else vector


def mask_of(
    output: Output, place: int, vector: Tensor, threshold: Threshold | None = None
) -> tuple[Tensor, float | Tensor | None]:
    """Which elements stay, and with which probability they did (None where it is not chance)."""
    own, kind = output.pieces[place].values, METHODS[output.method].sparsify
    density = own["density"]
    key = key_of(output.values["seed"], output.name, place)
    if kind == "magnitude":
        return (sparsify.top(vector, density) if threshold is None else above(vector, threshold)), None
    if kind == "band":
        return sparsify.band(vector, density, own["gamma"]), None
    if density <= 0:
        return torch.zeros_like(vector, dtype=torch.bool), None
    if kind == "random":
        return sparsify.bernoulli(vector, density, key), density
    probabilities = sparsify.keep_probabilities(vector, density, own["epsilon"])
    return sparsify.ranked(vector, probabilities, key), probabilities


def above(vector: Tensor, threshold: Threshold) -> Tensor:
    """What is larger than a threshold of the whole model, and the first so many of what is equal to it."""
    keys = vector.abs().reshape(-1)
    mask = keys > threshold[0]
    mask[(keys == threshold[0]).nonzero()[: threshold[1], 0]] = True
    return mask.reshape(vector.shape)
