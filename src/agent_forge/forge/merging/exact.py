"""Arithmetic that is equal, bit for bit, in torch on any device and in the C kernel.

Everything is computed in float64 and rounded once, to the type of the output. Sums have a fixed order (halving), and
random numbers are defined bit for bit (`rng`); no order is left to a library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 1024  # part of the definition of a sum, and the kernel's unit
PIECE = 1 << 16  # elements that are rounded at once: their copies stay in the cache


def tree_sum(x: Tensor) -> float:
    """The sum of a float64 tensor, by halving: blocks of 1024 first, then the blocks.

    Pairwise summation has an error of O(log n) roundings, and each step is one elementwise addition.
    """
    from torch.nn.functional import pad

    flat = x.reshape(-1)
    rows = pad(flat, (0, -flat.numel() % BLOCK)).reshape(-1, BLOCK)
    while rows.shape[1] > 1:
        half = rows.shape[1] // 2
        rows = rows[:, :half] + rows[:, half:]
    sums = rows[:, 0]
    sums = pad(sums, (0, (1 << (sums.numel() - 1).bit_length()) - sums.numel()) if sums.numel() else (0, 1))
    while sums.numel() > 1:
        half = sums.numel() // 2
        sums = sums[:half] + sums[half:]
    return float(sums[0])


def row_sums(x: Tensor) -> Tensor:
    """The sums over the last axis, by halving: [..., 1]."""
    from torch.nn.functional import pad

    length = x.shape[-1]
    x = pad(x, (0, (1 << max(length - 1, 0).bit_length()) - length))
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x


def gram(tensors: list[Tensor]) -> list[list[float]]:
    """All inner products <x_i, x_j> of float64 tensors."""
    products = [[0.0] * len(tensors) for _ in tensors]
    for i, a in enumerate(tensors):
        for j, b in enumerate(tensors[: i + 1]):
            products[i][j] = products[j][i] = tree_sum(a * b)
    return products


def rounded(x: Tensor, dtype: str) -> Tensor:
    """A float64 tensor in the output's type, rounded once, to nearest even.

    torch converts float64 to bfloat16 by way of float32 and so rounds twice. Rounding the first step to odd (setting
    the last bit if it is inexact) makes the second one correct: Boldo and Melquiond, "When double rounding is odd".
    """
    import torch

    if dtype == "F64":
        return x
    if dtype == "F32":
        return x.to(torch.float32)
    parts = []
    for part in x.reshape(-1).split(PIECE):
        single = part.to(torch.float32)
        back, bits = single.to(torch.float64), single.view(torch.int32)
        away = torch.where(part.abs() > back.abs(), 1, -1).to(torch.int32)
        odd = torch.where((part != back) & ~part.isnan() & (bits & 1 == 0), bits + away, bits)
        parts.append(odd.view(torch.float32).to(torch.bfloat16 if dtype == "BF16" else torch.float16))
    return torch.cat(parts).reshape(x.shape)
