"""Weights on a few levels: codes, and scales for the whole matrix, for each row, or for each group of a row.

    ternary:  w = s * {-1, 0, 1},              s = mean |w|        (BitNet b1.58, 2402.17764, equations 1 to 3)
    two_bit:  w = s * {-1.5, -0.5, 0.5, 1.5},  s = 1.25 mean |w|   (the grid of ParetoQ, 2502.02631, without a zero)
    int4, int8:  w = s * integers up to 7 or 127, s = max |w| / 7 or 127: for embeddings and heads

Shapes: R rows (outputs), C columns (inputs), G groups of a row, S rows of scales (R, or 1 for the
whole matrix).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from agent_forge.forge.quantization.settings import Format, Levels

SMALLEST_SCALE = 1e-5  # a row of zeros still divides by something
# The uniform four-level quantiser with the least error on a Gaussian has a step of 0.996 sigma =
# 1.25 mean |w|.
STEP_OF_TWO_BITS = 1.25
MOST = {"int4": 7, "int8": 127}


def level_scales(weight_RC: Tensor, format: Format) -> Tensor:
    """The scales [S, G] that the mean of |w| gives.

    >>> level_scales(torch.tensor([[1.0, -3.0], [0.0, 0.5]]), Format(granularity="row")).tolist()
    [[2.0], [0.25]]
    """
    size = weight_RC.abs()
    if format.granularity == "tensor":
        mean = size.mean().view(1, 1)
    elif format.granularity == "row":
        mean = size.mean(1, keepdim=True)
    else:
        starts = torch.arange(0, size.shape[1], format.group, device=size.device)
        columns_G = (size.shape[1] - starts).clamp_max(format.group).to(size.dtype)  # the last group may be shorter
        mean = _group_sums(size, format.group) / columns_G
    step = STEP_OF_TWO_BITS if format.levels == "two_bit" else 1.0
    return (mean * step).clamp_min(SMALLEST_SCALE)


def level_codes(weight_RC: Tensor, scales_SG: Tensor, levels: Levels, group: int) -> Tensor:
    """The level of every weight in units of its scale: -1, 0, 1, or -1.5, -0.5, 0.5, 1.5."""
    steps = weight_RC / spread(scales_SG, weight_RC.shape[1], group)
    if levels == "ternary":
        return steps.round().clamp(-1, 1)
    return (steps.floor() + 0.5).clamp(-1.5, 1.5)


def spread(scales_SG: Tensor, columns: int, group: int) -> Tensor:
    """Scales [S, G] as they meet the columns: [S, 1], or [S, C] for groups.

    >>> spread(torch.tensor([[1.0, 2.0]]), columns=5, group=3).tolist()
    [[1.0, 1.0, 1.0, 2.0, 2.0]]
    """
    if scales_SG.shape[1] == 1:
        return scales_SG
    return scales_SG.repeat_interleave(group, dim=1)[:, :columns]


def fit_scales(weight_RC: Tensor, format: Format, importance_C: Tensor | None = None, rounds: int = 8) -> Tensor:
    """Scales that minimise sum_c h_c (w_c - s q_c)^2, h being the mean square of each input on
    calibration text.

    Alternates between the best scale for the codes and the best codes for the scale (Lloyd), from
    the mean of |w|. The error never grows from round to round.
    """
    scales = level_scales(weight_RC, format)
    weights = torch.ones_like(weight_RC[:1]) if importance_C is None else importance_C.to(weight_RC)[None]
    group = format.group if format.granularity == "group" else weight_RC.shape[1]
    for _ in range(rounds):
        codes = level_codes(weight_RC, scales, format.levels, format.group)
        product = _group_sums(weights * weight_RC * codes, group)
        square = _group_sums(weights * codes * codes, group)
        if format.granularity == "tensor":
            product, square = product.sum(0, keepdim=True), square.sum(0, keepdim=True)
        scales = torch.where(square > 0, product / square.clamp_min(1e-30), scales).clamp_min(SMALLEST_SCALE)
    return scales


def whole_numbers(weight_RC: Tensor, most: int, group: int) -> Tensor:
    """The weights rounded to int4 (most = 7) or int8 (most = 127) in groups of columns, and back;
    the scales [R, G] are as float16 stores them."""
    padded = F.pad(weight_RC.abs(), (0, -weight_RC.shape[1] % group))
    largest = padded.unflatten(1, (-1, group)).amax(-1)
    scales_RG = (largest / most).clamp_min(SMALLEST_SCALE).half().to(weight_RC.dtype)
    scales = spread(scales_RG, weight_RC.shape[1], group)
    return (weight_RC / scales).round().clamp(-most, most) * scales


def round_inputs(x: Tensor) -> Tensor:
    """Each token's vector on the 255 levels of int8 (largest |x| at 127), and back, in its own type."""
    wide = x.float()
    unit = wide.abs().amax(-1, keepdim=True).clamp_min(SMALLEST_SCALE) / 127
    return ((wide / unit).round().clamp(-128, 127) * unit).to(x.dtype)


class LearnedLevels(torch.autograd.Function):
    """s * q(w / s) with the gradients of LSQ (1902.08153, equation 3).

    dw is passed on where the weight is inside the levels; ds is q - w / s there, and the outermost
    level elsewhere, divided by sqrt(columns that share the scale * levels above zero) so that
    scales and weights move at the same pace.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, scales: Tensor, levels: Levels, group: int) -> Tensor:
        codes = level_codes(weight, scales, levels, group)
        ctx.save_for_backward(weight, scales, codes)
        ctx.top, ctx.group = 1.0 if levels == "ternary" else 1.5, group
        return codes * spread(scales, weight.shape[1], group)

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        (slope,) = outer
        weight, scales, codes = ctx.saved_tensors
        steps = weight / spread(scales, weight.shape[1], ctx.group)
        inside = steps.abs() <= ctx.top
        group = ctx.group if scales.shape[1] > 1 else weight.shape[1]
        per_scale = _group_sums(slope * torch.where(inside, codes - steps, codes), group)
        return slope * inside, per_scale / (group * ctx.top) ** 0.5, None, None


def _group_sums(x_RC: Tensor, group: int) -> Tensor:
    """[R, G]; the last group may be shorter."""
    return F.pad(x_RC, (0, -x_RC.shape[1] % group)).unflatten(1, (-1, group)).sum(-1)
