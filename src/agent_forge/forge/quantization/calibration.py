"""Post-training quantisation: the levels without any training, which training has to beat and may start from.

Three ways, each better than the one before: BitNet's rule applied once (scales are the mean of |w|); scales fitted to
the inputs that calibration text gives each layer (its error is sum_c h_c (w_c - s q_c)^2, h_c the mean square of input
c); and rounding column by column while the columns still to come make up for the error (GPTQ, 2210.17323).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from agent_forge.forge.quantization.bitlinear import BitLinear
from agent_forge.forge.quantization.levels import fit_scales, level_codes, spread
from agent_forge.forge.training import PackedRows

BLOCK = 64  # columns whose errors are spread over the rest of the matrix at once
DAMPING = 0.01  # of the mean diagonal: a Hessian from little text is not invertible


def input_squares(model: nn.Module, rows: PackedRows, names: list[str], batch_rows: int = 8) -> dict[str, Tensor]:
    """The mean square of each input of each named layer over the rows: the diagonal of `input_moments`."""
    return _means(model, rows, names, lambda x: x.square().sum(0), batch_rows)


def input_moments(model: nn.Module, rows: PackedRows, names: list[str], batch_rows: int = 8) -> dict[str, Tensor]:
    """The mean of x x^T over the rows, for each named layer: the Hessian of its squared error, up to a factor."""
    return _means(model, rows, names, lambda x: x.T @ x, batch_rows)


@torch.no_grad()
def _means(
    model: nn.Module, rows: PackedRows, names: list[str], of: Callable[[Tensor], Tensor], batch_rows: int
) -> dict[str, Tensor]:
    sums: dict[str, Any] = dict.fromkeys(names, 0.0)
    counts = dict.fromkeys(names, 0)

    def watch(name: str) -> Any:
        def add(_: nn.Module, inputs: Any) -> None:
            flat = inputs[0].detach().float().flatten(0, -2)
            sums[name] = sums[name] + of(flat)
            counts[name] += len(flat)

        return add

    hooks = [model.get_submodule(name).register_forward_pre_hook(watch(name)) for name in names]
    device, was_training = next(model.parameters()).device, model.training
    model.eval()
    try:
        for start in range(0, len(rows), batch_rows):
            batch = rows.take(slice(start, start + batch_rows))
            model(input_ids=batch.inputs.to(device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
        model.train(was_training)
    return {name: sums[name] / counts[name] for name in names if counts[name]}


@torch.no_grad()
def calibrate(model: nn.Module, squares: dict[str, Tensor]) -> None:
    """Sets the learned scales of the BitLinear layers to those that suit their inputs best."""
    for name, square in squares.items():
        layer = model.get_submodule(name)
        if isinstance(layer, BitLinear) and layer.scales is not None:
            layer.scales.copy_(fit_scales(layer.weight, layer.format, square))


@torch.no_grad()
def round_with_feedback(model: nn.Module, moments: dict[str, Tensor], rounds: int = 2) -> None:
    """GPTQ for the BitLinear layers: their shadow weights become the levels that it finds.

    Between rounds the scales are fitted anew: with H the moments, s = (q H w) / (q H q) row by row.
    """
    for name, moment in moments.items():
        layer = model.get_submodule(name)
        if not isinstance(layer, BitLinear) or layer.scales is None:
            continue
        original = layer.weight.detach().float().clone()
        scales = fit_scales(original, layer.format, moment.diagonal())
        for last in [False] * (rounds - 1) + [True]:
            codes = feedback_codes(original, scales, moment, layer)
            if not last and scales.shape[1] == 1:
                along = codes @ moment
                fitted = (along * original).sum(1, keepdim=True) / (along * codes).sum(1, keepdim=True).clamp_min(1e-12)
                scales = torch.where(fitted > 0, fitted, scales)
        layer.scales.copy_(scales)
        layer.weight.copy_(codes * spread(scales, original.shape[1], layer.format.group))


def feedback_codes(weight_RC: Tensor, scales_SG: Tensor, moment_CC: Tensor, layer: BitLinear) -> Tensor:
    """Codes chosen column by column; what a column loses is made up for by those after it (GPTQ, equation 3)."""
    damped = moment_CC.double() + DAMPING * moment_CC.diagonal().double().mean() * torch.eye(
        len(moment_CC), device=moment_CC.device, dtype=torch.float64
    )
    factor = torch.linalg.cholesky(torch.linalg.inv(damped), upper=True).to(weight_RC.dtype)
    left = weight_RC.clone()
    wide = spread(scales_SG, weight_RC.shape[1], layer.format.group).expand(-1, weight_RC.shape[1])
    codes = torch.empty_like(left)
    for start in range(0, left.shape[1], BLOCK):
        end = min(start + BLOCK, left.shape[1])
        errors = torch.empty_like(left[:, start:end])
        for column in range(start, end):
            scale, now = wide[:, column : column + 1], left[:, column : column + 1]
            codes[:, column : column + 1] = level_codes(now, scale, layer.format.levels, 1)
            error = (now - codes[:, column : column + 1] * scale) / factor[column, column]
            left[:, column + 1 : end] -= error @ factor[column : column + 1, column + 1 : end]
            errors[:, column - start : column - start + 1] = error
        left[:, end:] -= (
            errors @ factor[start:end, end:]
        )  # the rest of the matrix once a block: it is memory that costs
    return codes
