"""Entropy-coded scalar quantisation with error feedback: the workhorse.

Weights are rounded to whole multiples of a step and the multiples are entropy-coded: at any rate
within a quarter of a bit of Shannon's bound for normal weights, where fixed-width codes lose up to
a bit. By reverse water-filling, bits are spent best when every weight adds the same expected loss:
the step of weight (i, j) is step * row_i * column_j, with the row's factor from the Fisher
information of its output and the column's from the Cholesky factor of the inputs' second moments.
Both factors are stored as quarter octaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agent_forge.forge.compression.container import Encoded, magnitude_classes
from agent_forge.forge.compression.feedback import Cost, by_columns, codes_with_feedback, order_of

QUARTERS = np.array((1.0, 2**0.25, 2**0.5, 2**0.75), np.float32)
REACH = 12  # factors from 2^-3 to 2^3
MOST = 2047  # the largest code
DEADZONE = 0.1  # per unit of the step
AT_ONCE = (1 << 20, 1 << 26)  # weights that are rounded at once, on a CPU and on a GPU


def encode(weight: Tensor, cost: Cost, step: float = 1.0, deadzone: float | None = None) -> Encoded:
    """`step` is in units of the weights' root mean square; 1.0 takes about 2.1 bits per weight, 0.5 about 3."""
    return next(encode_all(weight, cost, [step], deadzone))


def encode_all(weight: Tensor, cost: Cost, steps: Sequence[float], deadzone: float | None = None) -> Iterator[Encoded]:
    """The matrix with each of the steps, as many of them at once as fit."""
    count = max(1, AT_ONCE[weight.device.type == "cuda"] // max(1, weight.numel()))
    for first in range(0, len(steps), count):
        yield from _encode_together(weight, cost, steps[first : first + count], deadzone)


def _encode_together(weight: Tensor, cost: Cost, steps: Sequence[float], deadzone: float | None) -> Iterator[Encoded]:
    zones = [min(0.25, DEADZONE * step) if deadzone is None else deadzone for step in steps]
    source = weight.detach().float()
    hessian = None if cost.hessian is None else cost.hessian.to(source.device)
    row_factor = None if cost.rows is None else cost.rows.to(source.device).clamp_min(1e-30).rsqrt()
    column_factor = None
    if hessian is not None:
        order = order_of(hessian)
        column_factor = order.upper.diagonal()[order.back]
    rows, columns = _quarters(row_factor, source.shape[0]), _quarters(column_factor, source.shape[1])
    usual = float(source.square().mean().sqrt().clamp_min(1e-12))
    sizes = [float(np.float32(usual * step)) for step in steps]
    # one matrix for each step, on top of each other
    grids = by_columns(torch.cat([_steps(size, rows, columns) for size in sizes]).to(source.device))
    halves = torch.tensor([0.5 - zone for zone in zones], device=source.device).repeat_interleave(len(source))[:, None]
    codes = codes_with_feedback(
        source.repeat(len(steps), 1),
        hessian,
        lambda columns, at: _rounded(columns / grids[:, at], halves),
        lambda codes, at: codes * grids[:, at],
        parts=len(steps),
    )
    matrices = codes.to(torch.int16).cpu().numpy().reshape(len(steps), *source.shape)
    for matrix, size in zip(matrices, sizes, strict=True):
        yield from_codes(matrix, rows, columns, size)


def rounded(x: Tensor, deadzone: float = 0.0) -> Tensor:
    """To whole numbers, those just above a half going down: that saves more bits than it costs in error."""
    return _rounded(x, 0.5 - deadzone)


def _rounded(x: Tensor, half: float | Tensor) -> Tensor:
    return torch.sign(x) * torch.floor(x.abs() + half).clamp(max=MOST)


def from_codes(codes: np.ndarray, rows: np.ndarray, columns: np.ndarray, size: float) -> Encoded:
    """Codes [R, C], the factors of rows [R] and columns [C] in quarter octaves, and the common step."""
    low = int(codes.min()) if codes.size else 0
    shifted = codes.astype(np.int32) - low
    parts = {
        "rows": (rows + REACH).astype(np.uint8),
        "columns": (columns + REACH).astype(np.uint8),
        **magnitude_classes(codes),
        "codes": shifted.astype(np.uint8 if shifted.max(initial=0) < 256 else np.uint16),
    }
    return Encoded("grid", codes.shape, parts, {"step": size, "low": low})


def _quarters(factor: Tensor | None, count: int) -> np.ndarray:
    """Factors around a geometric mean of 1, in quarter octaves."""
    if factor is None:
        return np.zeros(count, np.int8)
    logs = factor.double().log2()
    steps = (4 * (logs - logs.mean())).round().clamp(-REACH, REACH)
    return steps.to(torch.int8).cpu().numpy()


def _steps(size: float, rows: np.ndarray, columns: np.ndarray) -> Tensor:
    """The step [R, C] of every weight: size * 2^(row / 4) * 2^(column / 4), from a table, the same
    on every machine."""

    def powers(quarters: np.ndarray, size: float = 1.0) -> np.ndarray:
        return (np.ldexp(QUARTERS[quarters % 4], quarters // 4) * np.float32(size)).astype(np.float32)

    return torch.from_numpy(powers(rows, size)[:, None] * powers(columns)[None, :])


def _factors(parts: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The factors of rows and columns, as `from_codes` takes them."""
    return parts["rows"].astype(np.int32) - REACH, parts["columns"].astype(np.int32) - REACH


def steps_of(parts: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> Tensor:
    """The step [R, C] of every weight of an encoded matrix."""
    return _steps(settings["step"], *_factors(parts))


def decode(encoded: Encoded) -> Tensor:
    codes = encoded.parts["codes"].astype(np.int32) + encoded.settings["low"]
    return torch.from_numpy(codes.astype(np.float32)) * steps_of(encoded.parts, encoded.settings)


def recoded(encoded: Encoded, codes: np.ndarray) -> Encoded:
    """The same grid with other codes, as training leaves them."""
    return from_codes(codes, *_factors(encoded.parts), encoded.settings["step"])
