"""Trimming over the whole model, as the TIES paper does: one threshold for all tensors of a task vector.

The exact threshold takes neither a sort nor the task vector in memory: four passes each count the next 16 bits of |x|
among the elements that agree with the bits found so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from agent_forge.forge.merging.layout import Output
from agent_forge.forge.merging.settings import METHODS

BINS = 1 << 16
Threshold = tuple[float, int]  # keep what is above, and so many of what is equal
Histogram = Callable[[Output, int, int, int], Any]  # (output, place, shift, prefix): counts [65536]


def trims_model(output: Output) -> bool:
    """Whether a threshold holds for the whole model, not for each tensor."""
    method = METHODS.get(output.method)
    return method is not None and method.sparsify == "magnitude" and output.values["trim"] == "model"


def find_thresholds(outputs: Sequence[Output], histogram: Histogram) -> dict[tuple[str, str], Threshold]:
    """The thresholds by output and model."""
    parts: dict[str, list[tuple[Output, int]]] = {}  # of each model: outputs, and its place among their pieces
    for output in filter(trims_model, outputs):
        for place, piece in enumerate(output.pieces):
            if place != output.base and piece.values["density"] < 1:
                parts.setdefault(piece.model, []).append((output, place))
    thresholds: dict[tuple[str, str], Threshold] = {}
    for model, places in parts.items():
        thresholds |= _of_model(model, places, histogram)
    return thresholds


def _of_model(model: str, parts: list[tuple[Output, int]], histogram: Histogram) -> dict[tuple[str, str], Threshold]:
    target = sum(output.pieces[place].values["density"] * output.spec.elements for output, place in parts)

    def count(shift: int, prefix: int) -> Any:
        return sum(histogram(output, place, shift, prefix) for output, place in parts)

    bits, left = select(max(1, int(target)), count)
    value = float(np.array([bits], dtype=np.int64).view(np.float64)[0])
    thresholds: dict[tuple[str, str], Threshold] = {}
    for output, place in parts:  # equal elements stay in the order of the tensors, then of their positions
        equal = int(histogram(output, place, 0, bits >> 16)[bits & (BINS - 1)])
        thresholds[output.name, model] = (value, min(left, equal))
        left -= min(left, equal)
    return thresholds


def select(rank: int, count: Callable[[int, int], Any]) -> tuple[int, int]:
    """The bits of the `rank`-th largest value, and how many of those equal to it belong to the largest."""
    prefix, left = 0, rank
    for shift in (48, 32, 16, 0):
        above = np.cumsum(count(shift, prefix)[::-1])
        place = int(np.searchsorted(above, left))
        left -= int(above[place - 1]) if place else 0
        prefix = prefix << 16 | (BINS - 1 - place)
    return prefix, left
