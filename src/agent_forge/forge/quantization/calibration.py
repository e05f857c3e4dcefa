"""Post-training quantisation: the levels without any training, which training has to beat and may start from.

Three ways, each better than the one before: BitNet's rule applied once (scales are the mean of
|w|); scales fitted to the inputs that calibration text gives each layer (its error is sum_c h_c
(w_c - s q_c)^2, h_c the mean square of input c); and rounding column by column while the columns
that follow compensate for the error (GPTQ, 2210.17323).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from agent_forge.forge.compression.feedback import codes_with_feedback
from agent_forge.forge.compression.sensitivity import input_means
from agent_forge.forge.progress import Tell, silent, track
from agent_forge.forge.quantization.bitlinear import BitLinear
from agent_forge.forge.quantization.levels import fit_scales, level_codes, spread
from agent_forge.forge.training import PackedRows


def input_squares(
    model: nn.Module, rows: PackedRows, names: list[str], batch_rows: int = 8, tell: Tell = silent
) -> dict[str, Tensor]:
    """The mean square [C] of each input of each named layer over the rows: the diagonal of `input_moments`."""
    return _means(model, rows, names, lambda x: x.square().sum(0), batch_rows, tell)


def input_moments(
    model: nn.Module, rows: PackedRows, names: list[str], batch_rows: int = 8, tell: Tell = silent
) -> dict[str, Tensor]:
    """The mean of x x^T [C, C] over the rows, for each named layer: the Hessian of its squared
    error, up to a factor."""
    return _means(model, rows, names, lambda x: x.T @ x, batch_rows, tell)


@torch.no_grad()
def _means(
    model: nn.Module,
    rows: PackedRows,
    names: list[str],
    of: Callable[[Tensor], Tensor],
    batch_rows: int,
    tell: Tell,
) -> dict[str, Tensor]:
    device, was_training = next(model.parameters()).device, model.training
    model.eval()
    with input_means([(name, model.get_submodule(name)) for name in names], of) as means:
        for start in track(range(0, len(rows), batch_rows), "moments", tell):
            batch = rows.take(slice(start, start + batch_rows))
            model(input_ids=batch.inputs.to(device), use_cache=False)
    model.train(was_training)
    return means


@torch.no_grad()
def calibrate(model: nn.Module, squares: dict[str, Tensor]) -> None:
    """Sets the learned scales of the BitLinear layers to those that suit their inputs best."""
    for name, square in squares.items():
        layer = model.get_submodule(name)
        if isinstance(layer, BitLinear) and layer.scales is not None:
            layer.scales.copy_(fit_scales(layer.weight, layer.format, square))


@torch.no_grad()
def round_with_feedback(model: nn.Module, moments: dict[str, Tensor], rounds: int = 2, tell: Tell = silent) -> None:
    """GPTQ for the BitLinear layers: their shadow weights become the levels that it chooses.

    Between rounds the scales are fitted anew: with H the moments, s = (q H w) / (q H q) row by row.
    """
    for name, moment in track(moments.items(), "error feedback", tell):
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
    """Codes chosen column by column, in the order of the matrix; those after a column compensate
    for its loss."""
    columns = weight_RC.shape[1]
    wide = spread(scales_SG, columns, layer.format.group).expand(-1, columns)
    return codes_with_feedback(
        weight_RC,
        moment_CC,
        lambda column, at: level_codes(column, wide[:, at], layer.format.levels, 1),
        lambda codes, at: codes * wide[:, at],
        sort=False,
    )
