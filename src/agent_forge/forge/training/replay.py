"""Micro-batches by replay: on a GPU, what one of them launches is recorded once and started as one thing from then on.

A step of the 25 M model is about 1,300 kernels, and launching one takes longer than many of them run. A CUDA graph
holds them with their addresses. So the batch is copied to the place that was recorded, and the gradients stay where
they are: they are added to, and between steps set to zero instead of being thrown away.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from agent_forge.forge.training.packing import Batch

Work = Callable[[Batch, Tensor], Tensor]  # a batch and its weight; adds to the gradients and returns the loss


class Recording(Protocol):
    """A CUDA graph, or whatever repeats the work on what now lies in the recorded batch."""

    def replay(self) -> None: ...


Record = Callable[[Callable[[], Tensor]], tuple[Recording, Tensor]]


class Replayed:
    """`work`, recorded on the first batch of `rows` rows and replayed for all the others of that size.

    Batches of another size run as they are. The loss that a replay returns lies where the next one will be written.
    """

    def __init__(self, work: Work, device: torch.device, record: Record | None) -> None:
        self.work, self.device, self.record = work, device, record
        self.weight = torch.zeros((), device=device)
        self.recorded: tuple[Recording, Batch, Tensor] | None = None  # with the places of the batch and of the loss

    def forget(self) -> None:
        """Back to the start: needed when gradients are thrown away or the size of a micro-batch changes."""
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
        """Runs the batch (which compiles, and makes the gradients), then records the same."""
        loss = self.work(batch, self.weight)
        try:
            recording, place = record(lambda: self.work(batch, self.weight))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # a model that looks at its numbers cannot be recorded, and runs without it
            self.record = None
            warnings.warn(f"training without a CUDA graph: {str(error).splitlines()[0]}", stacklevel=2)
        else:
            self.recorded = recording, batch, place
        return loss


def cuda_graph(work: Callable[[], Tensor]) -> tuple[Recording, Tensor]:
    """What `work` launches, recorded but not run, and where its result will be after a replay."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may go on using the GPU
        result = work()
    return graph, result
