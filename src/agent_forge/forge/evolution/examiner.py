"""The examiner: merges a recipe in memory and measures the model, without writing anything to disk.

All merges have the base's shape, so one model object takes the weights of each in turn. The rows are tokenised once and
stay on the device. Beside a GPU the host merges, with the compiled kernel: on the GPU a merge would be many small
operations.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agent_forge.errors import CheckpointError
from agent_forge.forge import checkpoint as checkpoints
from agent_forge.forge.evolution.fitness import RunningCost, Scores
from agent_forge.forge.evolution.parents import Parents, open_family
from agent_forge.forge.evolution.settings import Evolve
from agent_forge.forge.evolution.tasks import CHOICES, Item, TaskItems, TokenRow, read_tasks, rows_of
from agent_forge.forge.merging import merge_tensors, open_folder, parse_recipe
from agent_forge.forge.merging.binding import library
from agent_forge.forge.training.objective import losses_and_hits
from agent_forge.forge.training.packing import IGNORE, Batch
from agent_forge.forge.training.speed import wait
from agent_forge.inference.loading import load_model

BATCH_TOKENS = {"cpu": 2048, "cuda": 65536}  # small batches stay in the cache and pad less; a GPU takes many rows
WHOLE = 1024  # on a GPU longer rows are padded to a multiple: their attention is traced anew for every length
THREADS = 8  # that merge beside a GPU, at most

Stages = Sequence[Mapping[str, Any]]


@dataclass
class Examination:
    """Rows in batches on the device, and how their results become scores of items."""

    tasks: Sequence[TaskItems]
    items: Mapping[str, Sequence[Item]]
    rows: list[tuple[int, TokenRow]] = field(default_factory=list)  # (task, row), in the order of the batches
    batches: list[Batch] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        tasks: Sequence[TaskItems],
        items: Mapping[str, Sequence[Item]],
        rows: Mapping[str, Sequence[TokenRow]],
        device: str,
    ) -> Examination:
        examination = cls(tasks, items)
        pairs = [(number, row) for number, task in enumerate(tasks) for row in rows[task.name]]
        pairs.sort(key=lambda pair: len(pair[1].tokens))  # rows of similar length share a batch; the sort is stable
        for batch in _batches(pairs, BATCH_TOKENS.get(device.partition(":")[0], 2048)):
            examination.rows.extend(batch)
            examination.batches.append(_as_batch([row for _, row in batch], device))
        return examination

    @torch.no_grad()
    def run(self, model: Any) -> dict[str, np.ndarray]:
        """The scores by task: [items, 4]."""
        model.eval()
        sums: list[Tensor] = []  # per batch [rows, 3]: loss, tokens, hits
        for batch in self.batches:
            losses, hits = losses_and_hits(model, batch)
            real = batch.targets != IGNORE
            counts = torch.where(real, losses, 0.0).double().sum(1), real.sum(1), (hits & real).sum(1)
            sums.append(torch.stack([part.double() for part in counts], dim=1))
        return self._by_item(torch.cat(sums).cpu().numpy())

    def _by_item(self, sums: np.ndarray) -> dict[str, np.ndarray]:
        """From rows to items: the pieces of a text add up; the likeliest of several answers is the model's choice."""
        scores = {task.name: np.zeros((len(self.items[task.name]), 4)) for task in self.tasks}
        answers: dict[tuple[int, int], list[tuple[float, int]]] = {}
        for (number, row), (loss, tokens, hits) in zip(self.rows, sums, strict=True):
            task = self.tasks[number]
            if task.kind != CHOICES:
                scores[task.name][row.item] += (loss, tokens, hits, tokens)
                continue
            answers.setdefault((number, row.item), []).append((loss / row.size, row.answer))
            if row.answer == self.items[task.name][row.item].right:
                scores[task.name][row.item] += (loss, tokens, 0, 1)
        for (number, item), pairs in answers.items():
            name = self.tasks[number].name
            scores[name][item, 2] = float(min(pairs)[1] == self.items[name][item].right)
        return scores


def _batches(rows: list[tuple[int, TokenRow]], most: int) -> Iterator[list[tuple[int, TokenRow]]]:
    batch: list[tuple[int, TokenRow]] = []
    for pair in rows:
        if batch and len(pair[1].tokens) * (len(batch) + 1) > most:
            yield batch
            batch = []
        batch.append(pair)
    if batch:
        yield batch


def _as_batch(rows: Sequence[TokenRow], device: str) -> Batch:
    width = max(len(row.tokens) for row in rows)
    if device != "cpu" and width > WHOLE + 1:
        width = 1 + -(-(width - 1) // WHOLE) * WHOLE
    tokens = torch.zeros(len(rows), width, dtype=torch.long)
    targets = torch.full((len(rows), width), IGNORE)
    for number, row in enumerate(rows):
        tokens[number, : len(row.tokens)] = torch.tensor(row.tokens)
        targets[number, row.start : len(row.tokens)] = tokens[number, row.start : len(row.tokens)]
    batch = Batch(tokens[:, :-1], targets[:, 1:], torch.zeros_like(tokens[:, :-1]))
    return batch.to(torch.device(device))


class Examiner:
    """Holds the parents open and examines what is made of them."""

    def __init__(
        self,
        family: Parents,
        tasks: Sequence[TaskItems],
        tokenizer: Any,
        *,
        length: int,
        most_tokens: int = 4096,
        device: str | None = None,
    ) -> None:
        self.family, self.tasks, self.tokenizer = family, tasks, tokenizer
        self.length, self.most_tokens = length, most_tokens
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.kinds = {task.name: task.kind for task in tasks}
        self._sources = {name: open_folder(path) for name, path in family.paths().items()}

    @classmethod
    def open(cls, config: Evolve, models: Path) -> Examiner:
        """Opens parents and data, and checks that they fit. Projected parents are written under `models`."""
        from agent_forge.forge.phases.specialise import reading_tokenizer

        parents = [checkpoints.load(Path(path).expanduser()) for path in config.parents]
        base = parents[0] if config.base is None else checkpoints.load(Path(config.base).expanduser())
        family = open_family(base, parents, project=config.project, models=models)
        tasks = read_tasks(config.data, config.held_out)
        tokenizer = reading_tokenizer(base)
        return cls(family, tasks, tokenizer, length=config.length, most_tokens=config.most_tokens)

    @cached_property
    def selection(self) -> Examination:
        """The items that select recipes."""
        return self._examination({task.name: task.select for task in self.tasks})

    @cached_property
    def held_out(self) -> Examination:
        """The items of the gate. The search never sees them."""
        return self._examination({task.name: task.judge for task in self.tasks})

    def _examination(self, items: Mapping[str, Sequence[Item]]) -> Examination:
        rows = {name: rows_of(part, self.tokenizer, self.length, self.most_tokens) for name, part in items.items()}
        return Examination.of(self.tasks, items, rows, self.device)

    def examine(self, stages: Stages) -> dict[str, Any]:
        """Merges a recipe and measures it on the selection data, as a record for the log."""
        started = time.perf_counter()
        model = self.merged(stages)
        wait(torch.device(self.device))
        merged = time.perf_counter()
        scores = self.selection.run(model)
        seconds = {"merge": merged - started, "evaluate": time.perf_counter() - merged}
        return {"scores": as_lists(scores), "seconds": seconds}

    def merged(self, stages: Stages) -> Any:
        """The model of a recipe in the names of the family; it is valid until the next one."""
        recipe = parse_recipe(list(stages))
        device = None if library() is not None else self.device
        threads = 1 if self.device == "cpu" else min(THREADS, os.cpu_count() or 1)
        tensors = merge_tensors(recipe, sources=self._sources, device=device, threads=threads)
        with torch.no_grad():
            for name, parameter in self._shell.named_parameters():
                if name not in tensors:
                    raise CheckpointError(f"the merge has no tensor {name}", where=str(self.family.base.path))
                parameter.copy_(tensors[name])
        return self._shell

    @cached_property
    def _shell(self) -> Any:
        return self.model_at(self.family.base.path)

    def model_at(self, folder: Path) -> Any:
        """A model as it is on disk."""
        return load_model(folder, dtype=torch.float32).to(self.device)

    def cost_of(self, model: Any, base: RunningCost | None = None) -> RunningCost:
        """Tokens read per second (the median of five runs) and the bytes of the weights.

        With the cost of the `base`, its model runs in turns with this one, and the speed is relative to it: a machine
        that is busy at the moment slows both.
        """
        pair = [model] if base is None else [model, self._shell]
        runs = [[self._tokens_per_s(one) for one in pair] for _ in range(6)][1:]  # the first warms up
        speed, *base_now = np.median(runs, axis=0)
        if base is not None:
            speed *= base.tokens_per_s / base_now[0]
        return RunningCost(float(speed), float(sum(parameter.nbytes for parameter in model.parameters())))

    @torch.no_grad()
    def _tokens_per_s(self, model: Any) -> float:
        device = torch.device(self.device)
        tokens = torch.zeros(8, min(self.length, 256), dtype=torch.long, device=device)
        model.eval()
        wait(device)
        started = time.perf_counter()
        model(tokens, use_cache=False)
        wait(device)
        return tokens.numel() / (time.perf_counter() - started)


def as_lists(scores: Scores) -> dict[str, list[list[float | None]]]:
    """Scores for JSON, which has no infinity: what is not finite becomes null."""
    return {
        name: [[number if np.isfinite(number) else None for number in row] for row in rows.tolist()]
        for name, rows in scores.items()
    }


def as_scores(document: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The scores that `as_lists` wrote; null becomes NaN."""
    return {name: np.array(rows, dtype=float).reshape(-1, 4) for name, rows in document.items()}
