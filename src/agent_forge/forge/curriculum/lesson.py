"""What one step of the curriculum learns from: right answers, and replay against forgetting.

    loss = cross-entropy of the answers + weight * (dream: KL(start || model) on what the start model wrote,
                                                    text: cross-entropy of earlier text)

An answer is learnt after its exercise as it is, without the hints that may have led to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agent_forge.forge.curriculum.self_model import SelfModel
from agent_forge.forge.quantization.distillation import Distillation, block_outputs
from agent_forge.forge.training.objective import objective
from agent_forge.forge.training.packing import IGNORE, Batch, PackedRows
from agent_forge.forge.training.sampling import sample

ANSWER, REPLAY = 0, 1


@dataclass(frozen=True)
class Lesson(Batch):
    """Answers and replay; `documents` says which of the two a row is. `scales` undo the core's mean over all targets,
    so that each kind counts by its own mean."""

    scales: tuple[float, float] = (1.0, 1.0)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Lesson:
        return Lesson(change(self.inputs), change(self.targets), change(self.documents), scales=self.scales)

    def split(self, rows: int) -> Iterator[Lesson]:
        """Micro-batches of one kind each, as wide as their longest row."""
        for kind in (ANSWER, REPLAY):
            for places in (self.documents[:, 0] == kind).nonzero()[:, 0].split(rows):
                if len(places):
                    part = self._each(lambda tensor, at=places: tensor[at])  # type: ignore[misc]
                    real = (part.targets != IGNORE).any(0).nonzero()
                    width = int(real.max()) + 1 if len(real) else 1
                    yield part._each(lambda tensor, to=width: tensor[:, :to])  # type: ignore[misc]


def lesson(
    answers: Sequence[tuple[Sequence[int], Sequence[int]]], replay: Batch | None, weight: float
) -> Lesson | None:
    """One step's rows from (prompt, answer) pairs of tokens, and rows of replay. None where there is neither."""
    parts = []
    for prompt, answer in answers:
        tokens = torch.tensor([*prompt, *answer])
        targets = tokens[1:].clone()
        targets[: len(prompt) - 1] = IGNORE
        parts.append((tokens[:-1], targets, ANSWER))
    if replay is not None:
        parts += [(row, targets, REPLAY) for row, targets in zip(replay.inputs, replay.targets, strict=True)]
    if not parts:
        return None
    inputs = nn.utils.rnn.pad_sequence([row for row, _, _ in parts], batch_first=True)
    targets = nn.utils.rnn.pad_sequence([row for _, row, _ in parts], batch_first=True, padding_value=IGNORE)
    kinds = torch.tensor([kind for _, _, kind in parts])
    real = (targets != IGNORE).sum(1)
    counts = [int(real[kinds == kind].sum()) for kind in (ANSWER, REPLAY)]
    scales = [share * sum(counts) / max(1, count) for share, count in zip((1.0, weight), counts, strict=True)]
    return Lesson(inputs, targets, kinds[:, None].expand_as(inputs), scales=(scales[0], scales[1]))


@dataclass(frozen=True)
class LessonLoss:
    """The objective of the training core. With a `dreamer`, the model as it was, replay is distilled from it; with a
    `self_model`, its error counts by `weight`."""

    dreamer: nn.Module | None = None
    self_model: SelfModel | None = None
    weight: float = 0.0

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        kind = int(batch.documents[0, 0])
        teach = Distillation(self.dreamer) if kind == REPLAY and self.dreamer is not None else objective
        plain = Batch(batch.inputs, batch.targets, batch.documents)
        if self.self_model is None:
            return batch.scales[kind] * teach(model, plain)
        with block_outputs(model) as outputs:
            loss = teach(model, plain)
        return batch.scales[kind] * (loss + self.weight * self.self_model.error(plain, outputs))


def dream(model: Any, begin: int, count: int, length: int, end: Sequence[int], seed: int) -> PackedRows:
    """Text that the model writes from nothing, at temperature 1: what it knew, as far as samples show."""
    made = sample(model, [[begin]], copies=count, max_tokens=length, end=end, seed=seed)
    tokens = nn.functional.pad(made.tokens, (0, length + 1 - made.tokens.shape[1])).numpy()
    real = nn.functional.pad(made.mask, (0, length + 1 - made.mask.shape[1])).numpy() > 0
    real[:, 0] = True
    return PackedRows(tokens.astype(np.int32), np.where(real, np.arange(count)[:, None], -1).astype(np.int32))
