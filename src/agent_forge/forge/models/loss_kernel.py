# mypy: ignore-errors
"""The loss of a token and its slope in one reading of the logits, in Triton. Importing this needs Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_WORDS = 65536  # a row of logits is held in the registers of one program


def loss_and_slope(logits: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Each token's loss and d(weight * loss)/d(logits); the slope is written over the logits [tokens, words]."""
    losses = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
    block = triton.next_power_of_2(logits.shape[1])
    warps = min(32, max(4, block // 1024))
    _kernel[(logits.shape[0],)](
        logits, targets.contiguous(), weights.contiguous(), losses, logits.shape[1], BLOCK=block, num_warps=warps
    )
    return losses, logits


@triton.jit
def _kernel(logits_at, targets_at, weights_at, losses_at, words, BLOCK: tl.constexpr) -> None:
    token = tl.program_id(0).to(tl.int64)
    target = tl.load(targets_at + token)
    real = target >= 0  # -100: no target
    weight = tl.where(real, tl.load(weights_at + token), 0.0)
    word = tl.arange(0, BLOCK)
    row = logits_at + token * words
    x = tl.load(row + word, mask=word < words, other=float("-inf")).to(tl.float32)
    top = tl.max(x, axis=0)
    share = tl.exp(x - top)
    total = tl.sum(share, axis=0)
    chosen = tl.sum(tl.where(word == target, x, 0.0), axis=0)  # from the registers: the row is about to be overwritten
    loss = tl.log(total) + top - chosen
    tl.store(losses_at + token, tl.where(real, loss, 0.0))
    slope = (share / total - tl.where(word == target, 1.0, 0.0)) * weight
    tl.store(row + word, slope.to(logits_at.dtype.element_ty), mask=word < words)
