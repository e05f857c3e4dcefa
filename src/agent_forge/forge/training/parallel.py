"""Several processes, started by torchrun or accelerate: each takes a share of every batch, and gradients are summed.

In a single process nothing here does anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn


def join() -> tuple[int, int]:
    """(rank, number of processes), after joining the group that the launcher's variables describe."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1 and not dist.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def sum_over_processes(tensors: Iterable[Tensor]) -> None:
    """Adds up each tensor over all processes, in place."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        for tensor in tensors:
            dist.all_reduce(tensor)


def same_start(model: nn.Module) -> None:
    """Gives every process the weights of the first."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)
