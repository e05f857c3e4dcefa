"""Trimming over the whole model, as the TIES paper does: one threshold for all tensors of a task vector.

The threshold is found exactly without sorting or holding the task vector: four passes, each counting the next 16 bits
of |x| among the elements that agree with the bits found so far.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from agent_forge.forge.merging.layout import Output
from agent_forge.forge.merging.settings import METHODS

if TYPE_CHECKING:
    from agent_forge.forge.merging.staging import Stage

BINS = 1 << 16
Found = dict[tuple[str, str], tuple[float, int]]  # (output, model): keep what is above, and so many of what is equal


def thresholds_of(stage: Stage, output: Output) -> list[tuple[float, int] | None]:
    """The threshold for each piece of an output; empty where tensors are trimmed one by one."""
    if not trims_model(output):
        return []
    found: Found | None = getattr(stage, "_thresholds", None)
    if found is None:
        found = _find(stage)
        stage._thresholds = found  # type: ignore[attr-defined]  # found once for all outputs
    return [found.get((output.name, piece.model)) for piece in output.pieces]


def trims_model(output: Output) -> bool:
    method = METHODS.get(output.method)
    return method is not None and method.sparsify == "magnitude" and output.values["trim"] == "model"


def _find(stage: Stage) -> Found:
    found: Found = {}
    models = dict.fromkeys(piece.model for output in stage.layout.outputs for piece in output.pieces)
    for model in models:
        parts = [(output, place) for output in stage.layout.outputs if (place := _place(output, model)) is not None]
        if parts:
            found |= _of_model(stage, model, parts)
    return found


def _place(output: Output, model: str) -> int | None:
    if not trims_model(output):
        return None
    for place, piece in enumerate(output.pieces):
        if piece.model == model and place != output.base and piece.values["density"] < 1:
            return place
    return None


def _of_model(stage: Stage, model: str, parts: list[tuple[Output, int]]) -> Found:
    wanted = sum(output.pieces[place].values["density"] * output.spec.elements for output, place in parts)

    def count(shift: int, prefix: int) -> Any:
        return sum(histogram(stage, output, place, shift, prefix) for output, place in parts)

    bits, left = select(max(1, int(wanted)), count)
    threshold = float(np.array([bits], dtype=np.int64).view(np.float64)[0])
    found: Found = {}
    for output, place in parts:  # equal elements stay in the order of the tensors, then of their places
        equal = int(histogram(stage, output, place, 0, bits >> 16)[bits & (BINS - 1)])
        found[output.name, model] = (threshold, min(left, equal))
        left -= min(left, equal)
    return found


def select(wanted: int, count: Callable[[int, int], Any]) -> tuple[int, int]:
    """The bits of the `wanted`-th largest value, and how many of those equal to it belong to the largest."""
    prefix, left = 0, wanted
    for shift in (48, 32, 16, 0):
        above = np.cumsum(count(shift, prefix)[::-1])
        place = int(np.searchsorted(above, left))
        left -= int(above[place - 1]) if place else 0
        prefix = prefix << 16 | (BINS - 1 - place)
    return prefix, left


def histogram(stage: Stage, output: Output, place: int, shift: int, prefix: int) -> Any:
    """How often each value of 16 bits of |x_i - x_0| from `shift` on occurs, where the bits above are `prefix`."""
    from agent_forge.forge.merging import native

    if native.can(output):
        return native.histogram(stage, output, place, shift, prefix)
    import torch

    from agent_forge.forge.merging.tensors import pieces

    tensors = pieces(stage, output)
    assert output.base is not None
    keys = (tensors[place].double() - tensors[output.base].double()).abs().reshape(-1).view(torch.int64)
    if shift < 48:
        keys = keys[keys >> (shift + 16) == prefix]
    return torch.bincount(keys >> shift & (BINS - 1), minlength=BINS).cpu().numpy()
