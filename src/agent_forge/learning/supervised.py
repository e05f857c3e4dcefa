"""Supervised learning from prompts with their answers: only answers are learnt, and what all prompts begin with (an
agent's instructions, the schema of its answers) is read once for several of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from agent_forge.forge.phases.cognate import settings_of
from agent_forge.forge.training import TrainResult, TrainSettings, train
from agent_forge.learning.sheets import PlanSheets, fill_sheets, pack_sheets

Pair = tuple[Sequence[int], Sequence[int]]  # the tokens of a prompt and of its answer
_TOKENS = 2048  # at once in main memory: 4,096 are as fast and take twice as much, 8,192 are slower (experiments.md)


def in_main_memory(model: Any, length: int) -> dict[str, int]:
    """Settings for a model in main memory: few rows at once. A process that takes too much there is killed, where a GPU
    says that its memory has run out, and the step is split."""
    on_cpu = next(model.parameters()).device.type == "cpu"
    return {"micro_rows": max(1, _TOKENS // length)} if on_cpu else {}


def adamw_settings(steps: int, batch_rows: int, rate: float, training: Mapping[str, Any], seed: int) -> TrainSettings:
    """Settings of the training core: AdamW at one rate for everything, a cosine to nearly zero."""
    rates = {"matrix_rule": "adamw", "lr": rate, "embedding_lr": rate, "scalar_lr": rate}
    fixed = {
        "steps": steps, "batch_rows": batch_rows, "micro_rows": batch_rows, "schedule": "cosine",
        "warmup": max(1, steps // 20), "floor": 0.03, "log_every": max(1, steps // 50), "optimizer": "specialise",
        "optimizer_changes": {**rates, "weight_decay": 0.0}, "save_every": max(10, steps // 10),
    }  # fmt: skip
    return settings_of({**fixed, **training}, seed)


def pack_pairs(pairs: Sequence[Pair], length: int) -> PlanSheets:
    """Pairs as packed sheets of about `length` tokens, longer if a pair is. Raises DataError if there are none."""
    shared = common_start([prompt[:-1] for prompt, _ in pairs])  # each keeps a token of its own
    parts = [(prompt[len(shared) :], answer) for prompt, answer in pairs]
    longest = len(shared) + max((len(prompt) + len(answer) for prompt, answer in parts), default=0)
    length = max(length, longest - 1)
    return pack_sheets(fill_sheets(shared, parts, length), length)


def common_start(rows: Sequence[Sequence[int]]) -> list[int]:
    """The tokens that all rows begin with.

    >>> common_start([[1, 2, 3], [1, 2], [1, 2, 4]])
    [1, 2]
    """
    columns = zip(*rows, strict=False)
    return [column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)]


def learn_pairs(
    model: Any, pairs: Sequence[Pair], steps: int, rate: float, *, length: int = 1024, **options: Any
) -> TrainResult:
    """`learn_sheets` on pairs, packed into rows of about `length` tokens."""
    return learn_sheets(model, pack_pairs(pairs, length), steps, rate, **options)


def learn_sheets(
    model: Any,
    data: PlanSheets,
    steps: int,
    rate: float,
    *,
    folder: Path | None = None,
    epochs: float = 1.0,
    training: Mapping[str, Any] | None = None,
    seed: int = 0,
    on_record: Callable[[dict[str, Any]], None] | None = None,
) -> TrainResult:
    """Trains what learns in the model (its adapter, or all weights) on the sheets, `epochs` times in so many steps.

    A run that was stopped goes on from the last checkpoint in `folder`. When memory runs out, a step is split.
    """
    rows = max(1, math.ceil(epochs * len(data) / steps))
    # compiling takes longer than a short run does
    fixed = {"compile": False, **in_main_memory(model, data.length)}
    settings = adamw_settings(steps, rows, rate, {**fixed, **(training or {})}, seed)
    return train(model, data, settings, folder, on_record=on_record, progress=None)
