"""Low rank plus residual: the strongest directions of a matrix as two thin int8 matrices, the rest on the grid.

Pays for matrices with a few dominant directions; the directions are those of W H^1/2, so that they are strong in what
the layer puts out, not in the weights alone.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from agent_forge.forge.compression.codecs import grid
from agent_forge.forge.compression.container import Encoded
from agent_forge.forge.compression.feedback import DAMPING, Cost


def encode(weight: Tensor, cost: Cost, rank: int = 8, step: float = 1.0) -> Encoded:
    """`step` is that of the residual, in units of its root mean square."""
    source = weight.detach().float()
    rank = min(rank, *source.shape)
    left, right = _directions(source, cost, rank)
    left_codes, left_scale = _int8(left, 0)
    right_codes, right_scale = _int8(right, 1)
    parts = {"left": left_codes, "left_scale": left_scale, "right": right_codes, "right_scale": right_scale}
    residual = grid.encode(source - _product(parts).to(source.device), cost, step=step)
    return Encoded("lowrank", tuple(source.shape), {**parts, **residual.parts}, residual.settings)


def _directions(source: Tensor, cost: Cost, rank: int) -> tuple[Tensor, Tensor]:
    """Left [rows, rank] and right [rank, columns] factors of the best approximation in the metric of the inputs."""
    wide = source.double()
    if cost.hessian is None:
        u, s, v = torch.linalg.svd(wide, full_matrices=False)
        return (u[:, :rank] * s[:rank].sqrt()).float(), (s[:rank].sqrt()[:, None] * v[:rank]).float()
    hessian = cost.hessian.to(wide)
    damped = hessian + DAMPING * hessian.diagonal().mean() * torch.eye(
        len(hessian), dtype=wide.dtype, device=wide.device
    )
    root = torch.linalg.cholesky(damped)
    u, s, v = torch.linalg.svd(wide @ root, full_matrices=False)
    right = torch.linalg.solve_triangular(root.T, v[:rank].T, upper=True).T  # v R^-1, with R R^T the Hessian
    size = right.square().sum(1, keepdim=True).sqrt()
    return (u[:, :rank] * s[:rank] * size.T).float(), (right / size).float()


def _int8(matrix: Tensor, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes and the float16 scale of each direction."""
    values = matrix.cpu().numpy()
    scale = (np.abs(values).max(axis, keepdims=True) / 127 + 1e-12).astype(np.float32)
    half = np.maximum(scale.astype(np.float16), np.float16(6e-8))
    codes = np.clip(np.round(values / half.astype(np.float32)), -127, 127) + 128
    return codes.astype(np.uint8), half.reshape(-1)


def _product(parts: dict[str, np.ndarray]) -> Tensor:
    """In whole numbers where it matters and added up in a fixed order, so that every machine gets the same."""
    left = (parts["left"].astype(np.float32) - 128) * parts["left_scale"].astype(np.float32)
    right = (parts["right"].astype(np.float32) - 128) * parts["right_scale"].astype(np.float32)[:, None]
    total = np.zeros((left.shape[0], right.shape[1]), np.float32)
    for direction in range(left.shape[1]):
        total += left[:, direction, None] * right[None, direction]
    return torch.from_numpy(total)


def decode(encoded: Encoded) -> Tensor:
    return _product(dict(encoded.parts)) + grid.decode(encoded)
