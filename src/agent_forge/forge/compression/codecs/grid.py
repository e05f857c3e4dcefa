"""Entropy-coded scalar quantisation with error feedback: the workhorse.

Weights are rounded to whole multiples of a step and the multiples are entropy-coded: at any rate within a quarter of a
bit of Shannon's bound for the weights as they come, where fixed-width codes lose up to a bit. By reverse water-filling
the cheapest way to spend bits on weights of unequal importance is to give every weight the same expected loss: the step
of weight (i, j) is step * row_i * column_j, with the row's factor from the Fisher information of its output and the
column's from the Cholesky factor of the inputs' second moments. Both are stored as quarter octaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agent_forge.forge.compression.container import Encoded, magnitude_classes
from agent_forge.forge.compression.feedback import Cost, order_of, rounded_with_feedback

QUARTERS = (1.0, 2**0.25, 2**0.5, 2**0.75)
REACH = 12  # factors from 2^-3 to 2^3
MOST = 2047
DEADZONE = 0.1  # for every unit of the step


def encode(weight: Tensor, cost: Cost, step: float = 1.0, deadzone: float | None = None) -> Encoded:
    """`step` is in units of the weights' root mean square; 1.0 takes about 2.1 bits a weight, 0.5 about 3."""
    deadzone = min(0.25, DEADZONE * step) if deadzone is None else deadzone
    source = weight.detach().float()
    order = None if cost.hessian is None else order_of(cost.hessian.to(source.device))
    rows = _quarters(None if cost.rows is None else cost.rows.to(source.device).clamp_min(1e-30).rsqrt(), len(source))
    spread = None if order is None else order.upper.diagonal()[order.back]
    columns = _quarters(spread, source.shape[1])
    size = float(source.square().mean().sqrt().clamp_min(1e-12)) * step
    size = float(np.float32(size))
    steps = _factors(size, rows, columns).to(source.device)
    if order is None:
        codes = rounded(source / steps, deadzone)
    else:
        scaled = steps[:, order.columns]
        codes = torch.empty_like(source)

        def quantise(piece: Tensor, at: int) -> Tensor:
            place = scaled[:, at : at + piece.shape[1]]
            codes[:, at : at + piece.shape[1]] = found = rounded(piece / place, deadzone)
            return found * place

        rounded_with_feedback(source[:, order.columns], order.upper, quantise)
        codes = codes[:, order.back]
    return from_codes(codes.to(torch.int16).cpu().numpy(), rows, columns, size)


def rounded(x: Tensor, deadzone: float = 0.0) -> Tensor:
    """To whole numbers, those just above a half going down: it saves more bits than it costs in error."""
    return torch.sign(x) * torch.floor(x.abs() + (0.5 - deadzone)).clamp(max=MOST)


def from_codes(codes: np.ndarray, rows: np.ndarray, columns: np.ndarray, size: float) -> Encoded:
    parts = {
        "rows": (rows + REACH).astype(np.uint8),
        "columns": (columns + REACH).astype(np.uint8),
        **magnitude_classes(codes),
    }
    low = int(codes.min()) if codes.size else 0
    shifted = codes.astype(np.int32) - low
    parts["codes"] = shifted.astype(np.uint8 if shifted.max(initial=0) < 256 else np.uint16)
    return Encoded("grid", codes.shape, parts, {"step": size, "low": low})


def _quarters(factor: Tensor | None, count: int) -> np.ndarray:
    """A factor for each row or column around a geometric mean of 1, in quarter octaves."""
    if factor is None:
        return np.zeros(count, np.int8)
    logs = factor.double().log2()
    steps = (4 * (logs - logs.mean())).round().clamp(-REACH, REACH)
    return steps.to(torch.int8).cpu().numpy()


def _factors(size: float, rows: np.ndarray, columns: np.ndarray) -> Tensor:
    return torch.from_numpy(_line(rows, size)[:, None] * _line(columns)[None, :])


def _line(quarters: np.ndarray, size: float = 1.0) -> np.ndarray:
    """size * 2^(quarters / 4), from a table: the same on every machine."""
    table = np.array(QUARTERS, np.float32)
    return (np.ldexp(table[quarters % 4], quarters // 4) * np.float32(size)).astype(np.float32)


def steps_of(parts: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> Tensor:
    """The step of every weight."""
    rows, columns = (parts[name].astype(np.int32) - REACH for name in ("rows", "columns"))
    return _factors(settings["step"], rows, columns)


def decode(encoded: Encoded) -> Tensor:
    codes = encoded.parts["codes"].astype(np.int32) + encoded.settings["low"]
    return torch.from_numpy(codes.astype(np.float32)) * steps_of(encoded.parts, encoded.settings)


def recoded(encoded: Encoded, codes: np.ndarray) -> Encoded:
    """The same grid with other codes, as training leaves them."""
    rows, columns = (encoded.parts[name].astype(np.int32) - REACH for name in ("rows", "columns"))
    return from_codes(codes, rows, columns, encoded.settings["step"])
