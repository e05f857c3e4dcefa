"""Post-training quantisation: the levels without any training, which training has to beat.

Either the scales are the mean of |w| (BitNet's rule applied once), or they are fitted to the inputs that calibration
text gives each layer: the error of an output is sum_c h_c (w_c - s q_c)^2, h_c the mean square of input c.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from agent_forge.forge.quantization.bitlinear import BitLinear
from agent_forge.forge.quantization.levels import fit_scales
from agent_forge.forge.training import PackedRows


@torch.no_grad()
def input_squares(model: nn.Module, rows: PackedRows, names: list[str], batch_rows: int = 8) -> dict[str, Tensor]:
    """The mean square of each input of each named layer over the rows: the diagonal of its Hessian, up to a factor."""
    sums: dict[str, Any] = dict.fromkeys(names, 0.0)
    counts = dict.fromkeys(names, 0)

    def watch(name: str) -> Any:
        def add(_: nn.Module, inputs: Any) -> None:
            flat = inputs[0].detach().float().flatten(0, -2)
            sums[name] = sums[name] + flat.square().sum(0).double()
            counts[name] += len(flat)

        return add

    hooks = [model.get_submodule(name).register_forward_pre_hook(watch(name)) for name in names]
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    try:
        for start in range(0, len(rows), batch_rows):
            batch = rows.take(slice(start, start + batch_rows))
            model(input_ids=batch.inputs.to(device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
        model.train(was_training)
    return {name: (sums[name] / counts[name]).float() for name in names if counts[name]}


@torch.no_grad()
def calibrate(model: nn.Module, squares: dict[str, Tensor]) -> None:
    """Sets the learned scales of the BitLinear layers to those that suit their inputs best."""
    for name, square in squares.items():
        layer = model.get_submodule(name)
        if isinstance(layer, BitLinear) and layer.scales is not None:
            layer.scales.copy_(fit_scales(layer.weight, layer.format, square))
