"""Micro-batches by replay: on a GPU, the kernels of one micro-batch are recorded once and then launched as one graph.

A step of the 25 M model is about 1,300 kernels, and launching one takes longer than many of them run. A CUDA graph
records them with their addresses. So each batch is copied to the recorded place, and the gradients stay where they are:
they are added to, and set to zero between steps instead of being freed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from agent_forge.forge.training.packing import Batch

MicroStep = Callable[[Batch, Tensor], Tensor]  # a batch and its weight; adds to the gradients and returns the loss


class Replayable(Protocol):
    """A CUDA graph, or whatever repeats the work on the current content of the recorded batch."""

    def replay(self) -> None: ...


Record = Callable[[Callable[[], Tensor]], tuple[Replayable, Tensor]]


class Replayed:
    """`work`, recorded on the first batch of `rows` rows and replayed for all others of that size.

    Batches of another size run directly. The loss that a replay returns is overwritten by the next one.
    """

    def __init__(self, work: MicroStep, device: torch.device, record: Record | None) -> None:
        self.work, self.device, self.record = work, device, record
        self.weight = torch.zeros((), device=device)
        self.recorded: tuple[Replayable, Batch, Tensor] | None = None  # with the places of the batch and of the loss

    def forget(self) -> None:
        """Drops the recording: needed when gradients are freed or the micro-batch changes its size."""
        self.recorded = None

    def __call__(self, batch: Batch, weight: float, rows: int) -> Tensor:
        self.weight.fill_(weight)
        if self.record is None or len(batch) != rows:
            return self.work(batch.to(self.device), self.weight)
        if self.recorded is None:
            return self._first(self.record, batch.to(self.device))
        recording, place, loss = self.recorded
        place.copy(batch)
        recording.replay()
        return loss

    def _first(self, record: Record, batch: Batch) -> Tensor:
        """Runs the batch (which compiles and allocates the gradients), then records the same work."""
        loss = self.work(batch, self.weight)
        try:
            recording, place = record(lambda: self.work(batch, self.weight))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # a model that looks at its numbers cannot be recorded
            self.record = None
            warnings.warn(f"training without a CUDA graph: {str(error).splitlines()[0]}", stacklevel=2)
        else:
            self.recorded = recording, batch, place
        return loss


def cuda_graph(work: Callable[[], Tensor]) -> tuple[Replayable, Tensor]:
    """Records what `work` launches without running it: the graph, and the tensor that a replay fills."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may keep using the GPU
        result = work()
    return graph, result
