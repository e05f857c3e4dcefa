"""Second-order rounding: the error of each column is compensated by the columns that follow.

With H the second moments of a layer's inputs, replacing W by Q costs about tr((W - Q) H (W - Q)^T).
Rounding column by column and moving each error onto the later columns (OBQ, GPTQ: 2210.17323)
minimises it greedily; with U the upper Cholesky factor of H^-1, rounding column j costs
(w_j - q_j)^2 / U_jj^2, whatever comes later.

Shapes: R rows (outputs), C columns (inputs).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

DAMPING = 0.01  # of the mean diagonal: moments of little text are not invertible
BLOCK = 128  # columns between two updates of the rest of the matrix, which is bound by memory


@dataclass(frozen=True)
class Cost:
    """What an error in a matrix [R, C] costs: `hessian` [C, C] of its inputs, and the weight of
    each output, `rows` [R]. None weighs all alike."""

    hessian: Tensor | None = None
    rows: Tensor | None = None


@dataclass(frozen=True)
class Order:
    """The order in which columns are rounded, and the Cholesky factor U [C, C] in that order."""

    columns: Tensor
    upper: Tensor

    @property
    def back(self) -> Tensor:
        """Brings columns back into the order of the matrix."""
        return torch.argsort(self.columns)


_ORDERS: Any = WeakIdKeyDictionary()  # Hessian: {(sort, damping): Order}


def order_of(hessian: Tensor, sort: bool = True, damping: float = DAMPING) -> Order:
    """Factors the damped Hessian, with the costliest columns first (`sort`) or in the order of the matrix.

    The factor is cached for as long as the Hessian lives: a matrix is encoded in many ways.
    """
    orders: dict[tuple[bool, float], Order] = _ORDERS.setdefault(hessian, {})
    if (sort, damping) not in orders:
        moments = hessian.double()
        diagonal = moments.diagonal()
        columns = torch.argsort(diagonal, descending=True, stable=True) if sort else torch.arange(len(diagonal))
        columns = columns.to(hessian.device)
        identity = torch.eye(len(diagonal), dtype=moments.dtype, device=moments.device)
        damped = moments[columns][:, columns] + damping * diagonal.mean().clamp_min(1e-12) * identity
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
        orders[sort, damping] = Order(columns, torch.linalg.cholesky(inverse, upper=True))
    return orders[sort, damping]


def rounded_with_feedback(
    weight: Tensor, upper: Tensor, quantise: Callable[[Tensor, int], Tensor], parts: int = 1
) -> Tensor:
    """The decoded matrix [R, C]; `quantise(column, at)` returns what column number `at` [R, 1] decodes to.

    `weight` and `upper` are in the order of rounding. `weight` may be several matrices (`parts`) on top of each other:
    the result is that of each alone, to the bit, and a GPU takes hardly longer for all than for one.
    """
    count = weight.shape[1]
    factor, work = upper.to(weight.dtype), weight.clone()
    decoded = torch.empty_like(work)
    for first in range(0, count, BLOCK):
        last = min(first + BLOCK, count)
        block = work[:, first:last].T.contiguous()  # a column's numbers side by side
        errors, results = torch.empty_like(block), torch.empty_like(block)
        for place, at in enumerate(range(first, last)):
            results[place] = quantise(block[place, :, None], at)[:, 0]
            errors[place] = (block[place] - results[place]) / factor[at, at]
            block[place + 1 :] -= factor[at, at + 1 : last, None] * errors[place]
        decoded[:, first:last] = results.T
        for part in range(parts):  # products of another height may be summed in another order
            rows = slice(part * len(work) // parts, (part + 1) * len(work) // parts)
            work[rows, last:] -= errors[:, rows].T.contiguous() @ factor[first:last, last:]
    return decoded


def codes_with_feedback(
    weight: Tensor,
    hessian: Tensor | None,
    encode: Callable[[Tensor, slice], Tensor],
    decode: Callable[[Tensor, slice], Tensor],
    sort: bool = True,
    parts: int = 1,
) -> Tensor:
    """Codes [R, C] of a matrix, with error feedback where there is a Hessian.

    `encode(columns, at)` and `decode(codes, at)` work on some columns of the matrix; `at` says
    which, for what differs from column to column. For `parts`, see `rounded_with_feedback`.
    """
    if hessian is None:
        return encode(weight, slice(None))
    order = order_of(hessian.to(weight.device), sort)
    codes, numbers = by_columns(torch.empty_like(weight)), order.columns.tolist()

    def quantise(column: Tensor, at: int) -> Tensor:
        place = slice(numbers[at], numbers[at] + 1)
        codes[:, place] = code = encode(column, place)
        return decode(code, place)

    rounded_with_feedback(weight[:, order.columns], order.upper, quantise, parts)
    return codes.contiguous()


def by_columns(matrix: Tensor) -> Tensor:
    """The same matrix with the numbers of a column side by side in memory: much faster to read column by column."""
    return matrix.T.contiguous().T


def weighted_square(matrix: Tensor, cost: Cost) -> float:
    """What an error of this size costs."""
    if matrix.dim() != 2:
        return float(matrix.square().sum().double())
    through = matrix if cost.hessian is None else matrix @ cost.hessian.to(matrix)
    squares = (through * matrix).sum(1)
    return float((squares.sum() if cost.rows is None else (squares * cost.rows.to(matrix)).sum()).double())


def distortion(weight: Tensor, decoded: Tensor, cost: Cost = Cost(), whole: float | None = None) -> float:  # noqa: B008 (frozen)
    """The weighted squared error as a share of the weighted square of the matrix (`whole`, where the
    caller has it): 0 is exact, 1 as bad as zeros."""
    source = weight.float()
    whole = weighted_square(source, cost) if whole is None else whole
    return weighted_square(source - decoded.to(source), cost) / max(whole, 1e-300)
