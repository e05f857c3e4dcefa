"""One output tensor from its inputs, in torch: on any device, and where there is no compiled kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from agent_forge.errors import CheckpointError
from agent_forge.forge.merging.coefficients import nuslerp_t, rescale_factor
from agent_forge.forge.merging.exact import rounded, tree_sum
from agent_forge.forge.merging.layout import Output
from agent_forge.forge.merging.methods import linear, sparsify, spherical, stock, task_vectors
from agent_forge.forge.merging.rng import key_of
from agent_forge.forge.merging.settings import METHODS
from agent_forge.forge.merging.sources import TORCH_DTYPES
from agent_forge.forge.merging.thresholds import BINS, Threshold


def torch_dtype(code: str) -> torch.dtype:
    """torch's type for safetensors' name of it."""
    dtype: torch.dtype = getattr(torch, TORCH_DTYPES[code])
    return dtype


def compute(output: Output, tensors: Sequence[Tensor], thresholds: Sequence[Threshold | None] = ()) -> Tensor:
    """The output tensor, rounded to its type, from those of its pieces, which may be of any float type.

    `thresholds`, one per piece, are given where TIES trims the whole model.
    """
    if output.method == "equal":
        for piece, tensor in zip(output.pieces[1:], tensors[1:], strict=True):
            if not torch.equal(tensor, tensors[0]):
                raise CheckpointError(f"{output.name} holds no floats and differs between models", where=piece.model)
        return tensors[0]
    if output.method == "passthrough" and output.pieces[0].values.get("scale") is None:
        only = tensors[0]
        return only if only.dtype == torch_dtype(output.spec.dtype) else rounded(only.double(), output.spec.dtype)
    doubles = [tensor.to(torch.float64) for tensor in tensors]
    if output.method in _METHODS:
        return rounded(_METHODS[output.method](output, doubles), output.spec.dtype)
    return rounded(_task_vectors(output, doubles, thresholds), output.spec.dtype)


def histogram(vector: Tensor, shift: int, prefix: int) -> Any:
    """Counts of the 16 bits of |x| from `shift` on, where the bits above are `prefix`: [65536]."""
    keys = sparsify.magnitudes(vector).view(torch.int64)  # non-negative doubles are ordered as their bits are
    if shift < 48:
        keys = keys[keys >> (shift + 16) == prefix]
    return torch.bincount(keys >> shift & (BINS - 1), minlength=BINS).cpu().numpy()


# --- combinations ----------------------------------------------------------------------------------------------------


def _split(output: Output, tensors: Sequence[Tensor]) -> tuple[Tensor | None, list[Tensor], list[Mapping[str, Any]]]:
    """The base, the other tensors, and their parameters."""
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
    t = nuslerp_t([value["weight"] for value in values])

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


_METHODS: dict[str, Callable[[Output, Sequence[Tensor]], Tensor]] = {
    "linear": _linear,
    "passthrough": _passthrough,
    "slerp": _slerp,
    "nuslerp": _nuslerp,
    "multislerp": _multislerp,
    "model_stock": _model_stock,
    "sce": _sce,
}


# --- task vectors ----------------------------------------------------------------------------------------------------


def _task_vectors(output: Output, tensors: Sequence[Tensor], thresholds: Sequence[Threshold | None]) -> Tensor:
    assert output.base is not None
    base, values = tensors[output.base], output.values
    others = [i for i in range(len(tensors)) if i != output.base]
    if not others:
        return base
    vectors = [_sparsified(output, i, tensors[i] - base, thresholds[i] if thresholds else None) for i in others]
    weights = [output.pieces[i].values["weight"] for i in others]
    elect = METHODS[output.method].elect
    return task_vectors.add_task_vectors(base, vectors, weights, elect, values["normalize"], values["lambda"])


def _sparsified(output: Output, place: int, vector: Tensor, threshold: Threshold | None) -> Tensor:
    """A task vector, sparsified and rescaled as its method does."""
    values, own = output.values, output.pieces[place].values
    if METHODS[output.method].sparsify is None or own["density"] >= 1:
        return vector
    mask, probability = _mask(output, place, vector, threshold)
    sparse = task_vectors.masked(vector, mask)
    if not values["rescale"]:
        return sparse
    if values["rescale_by"] == "probability" and probability is not None:
        return sparse / probability
    factor = rescale_factor(tree_sum(vector.abs()), tree_sum(sparse.abs()))
    return sparse * factor if factor != 1.0 else sparse


def _mask(
    output: Output, place: int, vector: Tensor, threshold: Threshold | None
) -> tuple[Tensor, float | Tensor | None]:
    """Which elements stay, and the probability that they do (None where chance plays no part)."""
    own, kind = output.pieces[place].values, METHODS[output.method].sparsify
    density = own["density"]
    if kind == "magnitude":
        return (sparsify.top(vector, density) if threshold is None else _above(vector, threshold)), None
    if kind == "band":
        return sparsify.band(vector, density, own["gamma"]), None
    if density <= 0:
        return torch.zeros_like(vector, dtype=torch.bool), None
    key = key_of(output.values["seed"], output.name, place)
    if kind == "random":
        return sparsify.bernoulli(vector, density, key), density
    probabilities = sparsify.keep_probabilities(vector, density, own["epsilon"])
    return sparsify.ranked(vector, probabilities, key), probabilities


def _above(vector: Tensor, threshold: Threshold) -> Tensor:
    """What is larger than a threshold of the whole model, and the first few of what is equal to it."""
    keys = vector.abs().reshape(-1)
    mask = keys > threshold[0]
    mask[(keys == threshold[0]).nonzero()[: threshold[1], 0]] = True
    return mask.reshape(vector.shape)
