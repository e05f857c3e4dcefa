"""The examiner: merges a recipe in memory, and measures the model on the selection data, rung by rung.

Nothing is written to disk. There is one model object for each shape, and the merged tensors are copied into it; the
rows are tokenised once and stay on the device. With a GPU the host merges the next recipe while the GPU runs the model
of the one before. Time is kept apart for merging (waiting for it) and for running the model.
"""

from __future__ import annotations

import json
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from agent_forge.errors import CheckpointError
from agent_forge.forge.evolution.fitness import Measured, Scores, Use, first
from agent_forge.forge.evolution.genome import name_of
from agent_forge.forge.evolution.parents import BOOKKEEPING, Family
from agent_forge.forge.evolution.tasks import CHOICES, Item, Row, TaskItems, rows_of
from agent_forge.forge.merging import merge_tensors
from agent_forge.forge.merging.binding import library
from agent_forge.forge.training.objective import losses_and_hits
from agent_forge.forge.training.packing import IGNORE, Batch
from agent_forge.forge.training.speed import wait

PROBE = 512  # tokens whose probabilities stand for a model's behaviour
BATCH_TOKENS = {"cpu": 2048, "cuda": 65536}  # a small batch stays in the cache and pads less; a GPU wants many rows
WHOLE = 1024  # on a GPU longer rows are padded to a multiple: their attention is traced anew for every length
THREADS = 8  # that merge on the host, at most
KEPT_BYTES = 2 << 30  # of merged models that wait for their next rung


@dataclass
class Times:
    """Seconds, by what they went into."""

    merge: float = 0.0
    evaluate: float = 0.0

    def add(self, other: Mapping[str, float]) -> None:
        self.merge += other["merge"]
        self.evaluate += other["evaluate"]


@dataclass
class Examination:
    """Rows in batches on the device, and how their results become scores of items."""

    tasks: Sequence[TaskItems]
    items: Mapping[str, Sequence[Item]]
    rows: list[tuple[int, Row]] = field(default_factory=list)  # (task, row), in the order of the batches
    batches: list[Batch] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        tasks: Sequence[TaskItems],
        items: Mapping[str, Sequence[Item]],
        encoded: Callable[[Sequence[Item]], list[Row]],
        device: str,
    ) -> Examination:
        found = cls(tasks, items)
        rows = [(number, row) for number, task in enumerate(tasks) for row in encoded(items[task.name])]
        rows.sort(key=lambda pair: len(pair[1].tokens))  # rows of like length share a batch; the sort is stable
        for batch in _batched(rows, BATCH_TOKENS.get(device.partition(":")[0], 2048)):
            found.rows.extend(batch)
            found.batches.append(_as_batch([row for _, row in batch], device))
        return found

    @torch.no_grad()
    def run(self, model: Any) -> tuple[dict[str, np.ndarray], list[float]]:
        """The scores by task, and the probabilities of the first tokens: the model's behaviour on the probe."""
        model.eval()
        sums: list[Tensor] = []
        probe: list[Tensor] = []
        seen = 0
        for batch in self.batches:
            losses, hits = losses_and_hits(model, batch)
            real = batch.targets != IGNORE
            counts = torch.where(real, losses, 0.0).double().sum(1), real.sum(1), (hits & real).sum(1)
            sums.append(torch.stack([part.double() for part in counts], dim=1))
            if seen < PROBE:
                probe.append(torch.exp(-losses[real][: PROBE - seen].float()))
                seen += len(probe[-1])
        if not sums:  # a rung that adds nothing to a small set
            return self._by_item(np.zeros((0, 3))), []
        rows = torch.cat(sums).cpu().numpy()
        return self._by_item(rows), torch.cat(probe).cpu().double().numpy().round(6).tolist()

    def _by_item(self, sums: np.ndarray) -> dict[str, np.ndarray]:
        """From rows to items: the pieces of a text add up; of the answers to choose from, the likeliest was chosen."""
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
            chosen = min(pairs)[1]
            scores[name][item, 2] = float(chosen == self.items[name][item].right)
        return scores


def _batched(rows: list[tuple[int, Row]], most: int) -> Iterator[list[tuple[int, Row]]]:
    batch: list[tuple[int, Row]] = []
    for pair in rows:
        if batch and len(pair[1].tokens) * (len(batch) + 1) > most:
            yield batch
            batch = []
        batch.append(pair)
    if batch:
        yield batch


def _as_batch(rows: Sequence[Row], device: str) -> Batch:
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
    """Holds the parents in memory and examines what is made of them."""

    def __init__(
        self,
        family: Family,
        tasks: Sequence[TaskItems],
        tokenizer: Any,
        *,
        length: int,
        most_tokens: int = 4096,
        rungs: Sequence[float] = (1.0,),
        device: str | None = None,
        ahead: bool | None = None,
    ) -> None:
        """`ahead` says whether the host merges while a model runs; by default, if that is on a GPU."""
        self.family, self.tasks, self.tokenizer, self.rungs = family, tasks, tokenizer, tuple(rungs)
        self.length, self.most_tokens = length, most_tokens
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.ahead = (self.device != "cpu" if ahead is None else ahead) and library() is not None
        self.kinds = {task.name: task.kind for task in tasks}
        self.times = Times()
        self._examinations: dict[Any, Examination] = {}
        self._shells: dict[str, Any] = {}
        self._held: dict[str, Any] = {}
        self._uses: dict[str, Use] = {}
        self._merged: OrderedDict[str, Any] = OrderedDict()

    def rung(self, number: int) -> Examination:
        """The items that a rung adds to those before it."""
        if number not in self._examinations:
            items = {}
            for task in self.tasks:
                count = len(task.select)
                start = first(count, self.rungs[number - 1]) if number else 0
                items[task.name] = task.select[start : first(count, self.rungs[number])]
            self._examinations[number] = self._examination(items)
        return self._examinations[number]

    def held_out(self) -> Examination:
        """The items of the gate. The search never sees them."""
        if "judge" not in self._examinations:
            self._examinations["judge"] = self._examination({task.name: task.judge for task in self.tasks})
        return self._examinations["judge"]

    def _examination(self, items: Mapping[str, Sequence[Item]]) -> Examination:
        return Examination.of(
            self.tasks, items, lambda part: rows_of(part, self.tokenizer, self.length, self.most_tokens), self.device
        )

    def examine(self, stages: Sequence[Mapping[str, Any]], rung: int) -> dict[str, Any]:
        """Merges a recipe and measures it on one rung, as a record for the ledger."""
        return next(self.examine_each([stages], rung))

    def examine_each(self, recipes: Sequence[Sequence[Mapping[str, Any]]], rung: int) -> Iterator[dict[str, Any]]:
        """The records of several recipes, one after the other, as they are ready."""
        examination = self.rung(rung)
        for made, seconds in self._merged_in_turn(recipes):
            times = Times(merge=seconds)
            with self._timed(times, "merge"):
                model = self._filled(made, made.config)
            with self._timed(times, "evaluate"):
                scores, probe = examination.run(model)
            self.times.add(vars(times))
            yield {"scores": as_lists(scores), "probe": _known(probe) if rung == 0 else [], "seconds": vars(times)}

    def _merged_in_turn(self, recipes: Sequence[Sequence[Mapping[str, Any]]]) -> Iterator[tuple[Any, float]]:
        """The tensors of each recipe, and the seconds of waiting for them."""
        with ThreadPoolExecutor(1) as host:
            coming = host.submit(self._tensors, recipes[0]) if recipes and self.ahead else None
            for number, stages in enumerate(recipes):
                started = time.perf_counter()
                made = coming.result() if coming is not None else self._tensors(stages)
                following = recipes[number + 1 : number + 2] if self.ahead else []
                coming = host.submit(self._tensors, following[0]) if following else None
                yield made, time.perf_counter() - started

    @contextmanager
    def _timed(self, times: Times, what: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        wait(torch.device(self.device))
        setattr(times, what, getattr(times, what) + time.perf_counter() - start)

    def merged(self, stages: Sequence[Mapping[str, Any]]) -> Any:
        """The model of a recipe whose models go by the names of the family."""
        made = self._tensors(stages)
        return self._filled(made, made.config)

    def _tensors(self, stages: Sequence[Mapping[str, Any]]) -> Any:
        """The merged tensors. The latest are kept: a recipe that goes on to the next rung need not be merged again.

        Beside a GPU the host merges, with the compiled kernel: to the GPU a merge is many small operations, which would
        stand in the way of the model's own.
        """
        from agent_forge.forge.merging import parse_recipe

        name = name_of(list(stages))
        if name in self._merged:
            self._merged.move_to_end(name)
            return self._merged[name]
        recipe = parse_recipe(list(stages))
        place, threads = ("cpu", min(THREADS, os.cpu_count() or 1)) if self.ahead else (self.device, 1)
        sources = {model: self._source(model, place) for model in recipe.models_on_disk()}
        made = merge_tensors(recipe, device=place, sources=sources, threads=threads)
        made.update({name: tensor.to(self.device) for name, tensor in made.items()})
        self._merged[name] = made
        while len(self._merged) > 1 and sum(map(_bytes, self._merged.values())) > KEPT_BYTES:
            self._merged.popitem(last=False)
        return made

    def model_at(self, folder: Any) -> Any:
        """A model as it is on disk."""
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        return model.to(self.device)

    def use_of(self, model: Any, repeats: int = 5) -> Use:
        """Tokens per second of reading, and the bytes of the weights; measured once for a shape."""
        shape = _shape(model.config.to_dict())
        if shape not in self._uses:
            memory = float(sum(parameter.nbytes for parameter in model.parameters()))
            self._uses[shape] = Use(_tokens_per_s(model, min(self.length, 256), repeats), memory)
        return self._uses[shape]

    def measured(self, model: Any, examination: Examination) -> Measured:
        return Measured(examination.run(model)[0], self.use_of(model))

    def _source(self, name: str, place: str) -> Any:
        if name not in self._held:
            self._held[name] = hold(name, self.family.paths()[name], place)
        return self._held[name]

    def _filled(self, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Any:
        """The model object of that shape with these weights."""
        shape = _shape(config)
        if shape not in self._shells:
            settings = AutoConfig.for_model(**{"model_type": config["model_type"], **config})
            self._shells = {shape: AutoModelForCausalLM.from_config(settings).float().to(self.device)}
        model = self._shells[shape]
        missing = []
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name in tensors:
                    parameter.copy_(tensors[name])
                else:
                    missing.append(name)
        if missing:
            raise CheckpointError(f"the merge has no tensor {missing[0]}", where=str(config.get("model_type")))
        return model


def hold(name: str, folder: str, device: str) -> Any:
    """A model's tensors in memory, on the device, as a source of merges."""
    from pathlib import Path

    from safetensors.torch import load_file

    from agent_forge.forge.merging.sources import ModelInMemory

    tensors: dict[str, Tensor] = {}
    for shard in sorted(Path(folder).glob("*.safetensors")):
        tensors.update(load_file(shard, device=device))
    return ModelInMemory(name, json.loads((Path(folder) / "config.json").read_text(encoding="utf-8")), tensors)


def _bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def _shape(config: Mapping[str, Any]) -> str:
    left_out = {*BOOKKEEPING, "architectures"}
    return json.dumps({key: value for key, value in config.items() if key not in left_out}, sort_keys=True, default=str)


@torch.no_grad()
def _tokens_per_s(model: Any, length: int, repeats: int) -> float:
    device = next(model.parameters()).device
    tokens = torch.zeros(8, length, dtype=torch.long, device=device)
    model.eval()
    model(tokens, use_cache=False)
    times = []
    for _ in range(repeats):
        wait(device)
        start = time.perf_counter()
        model(tokens, use_cache=False)
        wait(device)
        times.append(time.perf_counter() - start)
    return tokens.numel() / sorted(times)[len(times) // 2]


def as_lists(scores: Scores) -> dict[str, list[list[float | None]]]:
    """Scores as JSON, which has no infinity: what is not finite becomes null."""
    return {name: [_known(row) for row in rows.tolist()] for name, rows in scores.items()}


def as_scores(document: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The scores that `as_lists` wrote; null is not a number again."""
    return {name: np.array(rows, dtype=float).reshape(-1, 4) for name, rows in document.items()}


def _known(numbers: Sequence[float]) -> list[float | None]:
    return [number if np.isfinite(number) else None for number in numbers]
