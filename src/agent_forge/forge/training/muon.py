"""Muon: momentum whose update is orthogonalised, for the matrices inside a network.

    B = lerp(B, g, 1 - mu);  u = lerp(g, B, mu);  O = NewtonSchulz(u);  W = W (1 - lr wd) - lr s(shape) O

The same numbers as torch.optim.Muon, with two additions: matrices of one shape go through the iteration as one batch (a
handful of kernels instead of hundreds), and a matrix that stacks several (a fused q, k, v projection) is orthogonalised
block by block.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

_Pair = tuple[Tensor, Tensor]  # a weight [rows, columns] and its direction
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Keller Jordan's quintic: fast, and good enough after five steps


def orthogonalize(matrices: Tensor, steps: int = 5, dtype: torch.dtype | None = None, eps: float = 1e-7) -> Tensor:
    """Newton-Schulz: roughly the nearest (semi-)orthogonal matrices. [..., rows, columns], tall or wide.

    `dtype` defaults to bf16 on a GPU and to the input's own type on a CPU, where bf16 is no faster.

    >>> torch.linalg.svdvals(orthogonalize(torch.randn(8, 32))).sub(1).abs().max() < 0.4
    tensor(True)
    """
    a, b, c = COEFFICIENTS
    x = matrices.to(dtype or (torch.bfloat16 if matrices.is_cuda else matrices.dtype))
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x  # the Gram matrix of the shorter side is smaller
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=eps)
    shape = x.shape
    x = x.reshape(-1, *shape[-2:])
    for _ in range(steps):
        gram = x @ x.mT  # [n, rows, rows]; then x <- a x + (b G + c G^2) x
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    x = x.reshape(shape)
    return x.mT if tall else x


def shape_factor(rows: int, columns: int, rule: str) -> float:
    """The factor on the learning rate. "original": Jordan's, for lr about 0.02. "match_rms_adamw": Moonshot's, which
    takes the learning rate and weight decay of AdamW."""
    return max(1.0, rows / columns) ** 0.5 if rule == "original" else 0.2 * max(rows, columns) ** 0.5


def muon_step(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    momenta: Sequence[Tensor],
    row_blocks: Sequence[Sequence[int]],
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
    nesterov: bool,
    ns_steps: int,
    adjust_lr: str,
    ns_dtype: torch.dtype | None = None,
) -> None:
    """One step for all matrices, in place."""
    torch._foreach_lerp_(list(momenta), list(grads), 1 - momentum)
    updates = torch._foreach_lerp(list(grads), list(momenta), momentum) if nesterov else list(momenta)
    torch._foreach_mul_(list(params), 1 - lr * weight_decay)
    by_shape: dict[tuple[int, int], tuple[list[_Pair], list[_Pair]]] = defaultdict(lambda: ([], []))
    for param, update, blocks in zip(params, updates, row_blocks, strict=True):
        for weight, direction in zip(param.split(list(blocks)), update.split(list(blocks)), strict=True):
            rows, columns = weight.shape
            by_shape[min(rows, columns), max(rows, columns)][rows > columns].append((weight, direction))
    for wide, tall in by_shape.values():
        # One batch [n, short, long], tall matrices transposed: a launch costs more than the product.
        batch = torch.stack([*(direction for _, direction in wide), *(direction.mT for _, direction in tall)])
        steps = orthogonalize(batch, ns_steps, ns_dtype).to(params[0].dtype)
        for pairs, moves in ((wide, steps[: len(wide)]), (tall, steps[len(wide) :].mT.contiguous())):
            if pairs:
                weights = [weight for weight, _ in pairs]
                rows, columns = weights[0].shape
                rate = lr * shape_factor(rows, columns, adjust_lr)
                torch._foreach_add_(weights, list(moves.unbind()), alpha=-rate)
