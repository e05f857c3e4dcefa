"""Second-order rounding: the error of each column is made good by the columns that are still to come.

With H the second moments of a layer's inputs, the loss of replacing W by Q is about tr((W - Q) H (W - Q)^T). Rounding
column by column and moving each error onto the later columns (OBQ, GPTQ: 2210.17323) minimises it greedily; with U the
upper Cholesky factor of H^-1, what the rounding of column j costs is (w_j - q_j)^2 / U_jj^2, whatever comes later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

DAMPING = 0.01
BLOCK = 128


@dataclass(frozen=True)
class Cost:
    """What an error in a matrix [rows, columns] costs: `hessian` [columns, columns] of its inputs, `rows` [rows] the
    weight of each output. None: all alike."""

    hessian: Tensor | None = None
    rows: Tensor | None = None

    def to(self, device: torch.device | str) -> Cost:
        return Cost(*(None if part is None else part.to(device) for part in (self.hessian, self.rows)))


@dataclass(frozen=True)
class Order:
    """The order in which columns are rounded, the costliest first, and the Cholesky factor in that order."""

    columns: Tensor
    upper: Tensor

    @property
    def back(self) -> Tensor:
        return torch.argsort(self.columns)


_KNOWN: Any = WeakIdKeyDictionary()  # Hessian: {(sort, damping): Order}


def order_of(hessian: Tensor, sort: bool = True, damping: float = DAMPING) -> Order:
    """Factors the damped Hessian. `sort=False` keeps the columns as they are, for codecs that take neighbours.

    The factor is kept as long as the Hessian is: a matrix is encoded in many ways.
    """
    if hessian not in _KNOWN:
        _KNOWN[hessian] = {}
    known: dict[tuple[bool, float], Order] = _KNOWN[hessian]
    if (sort, damping) not in known:
        known[sort, damping] = _factored(hessian, sort, damping)
    return known[sort, damping]


def _factored(hessian: Tensor, sort: bool, damping: float) -> Order:
    moments = hessian.double()
    diagonal = moments.diagonal()
    spread = damping * diagonal.mean().clamp_min(1e-12)
    columns = torch.argsort(diagonal, descending=True, stable=True) if sort else torch.arange(len(diagonal))
    columns = columns.to(hessian.device)
    damped = moments[columns][:, columns] + spread * torch.eye(
        len(diagonal), dtype=moments.dtype, device=moments.device
    )
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    return Order(columns, torch.linalg.cholesky(inverse, upper=True))


def rounded_with_feedback(
    weight: Tensor, upper: Tensor, quantise: Callable[[Tensor, int], Tensor], width: int = 1
) -> Tensor:
    """`quantise(columns, at)` is called for `width` columns at a time and returns what they decode to.

    `weight` and `upper` are in the order of rounding. Returns the decoded matrix.
    """
    count = weight.shape[1]
    factor, work = upper.to(weight.dtype), weight.clone()
    done = torch.empty_like(work)
    step = max(1, BLOCK // width) * width
    for first in range(0, count, step):
        last = min(first + step, count)
        errors = work.new_zeros(len(work), last - first)
        for at in range(first, last, width):
            end = min(at + width, last)
            done[:, at:end] = quantise(work[:, at:end], at)
            lost = work[:, at:end] - done[:, at:end]
            own = factor[at:end, at:end]
            error = lost / own if width == 1 else torch.linalg.solve_triangular(own, lost, upper=True, left=False)
            work[:, end:last] -= error @ factor[at:end, end:last]
            errors[:, at - first : end - first] = error
        work[:, last:] -= errors @ factor[first:last, last:]
    return done


def distortion(weight: Tensor, decoded: Tensor, cost: Cost = Cost()) -> float:  # noqa: B008 (frozen)
    """The weighted squared error, as a share of the weighted square of the matrix: 0 exact, 1 as bad as zeros."""

    def weighted(matrix: Tensor) -> Tensor:
        if matrix.dim() != 2:
            return matrix.square().sum()
        through = matrix if cost.hessian is None else matrix @ cost.hessian.to(matrix)
        squares = (through * matrix).sum(1)
        return squares.sum() if cost.rows is None else (squares * cost.rows.to(matrix)).sum()

    source = weight.float()
    return float(weighted(source - decoded.to(source)).double() / weighted(source).double().clamp_min(1e-300))
