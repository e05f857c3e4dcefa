"""Traces: worked solutions as thoughts, to learn from before thoughts are rewarded.

A row with a question and an answer whose last line is `#### 42` (as in GSM8K) becomes

    Question: …\\nAnswer:<|startofthought|> the solution, told by a strategy <|endofthought|> 42

The strategies are data: a YAML file with one text per strategy (`forge/data/strategies.yaml` says which fields it has).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

import numpy as np
import torch
import yaml

from agent_forge.errors import ConfigError, DataError
from agent_forge.forge.checkpoint import Metric
from agent_forge.forge.corpus import BUNDLED, QUESTIONS, place, read_rows
from agent_forge.forge.thoughts.model import ThinkingModel
from agent_forge.forge.training.packing import IGNORE, PackedRows, pack

FIELDS = {"steps", "count", "first", "rest", "last", "answer", "guess"}
CALCULATOR = re.compile(r"<<[^<>]*>>")  # GSM8K's notes for a calculator
NUMBER = re.compile(r"\d[\d,.]*\d|\d")


@dataclass(frozen=True)
class Trace:
    """A question, a thought about it, and the answer."""

    strategy: str
    question: str
    thought: str
    answer: str


def read_strategies(path: str = "") -> dict[str, str]:
    """The strategies of a YAML file, or those that come with the package. Raises ConfigError."""
    file = Path(path).expanduser() if path else BUNDLED / "strategies.yaml"
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"the strategies cannot be read: {error}", where=str(file)) from error
    if not isinstance(document, dict) or not document:
        raise ConfigError("a file of strategies has a name and a text for each", where=str(file))
    for name, text in document.items():
        try:
            unknown = {field for _, field, _, _ in Formatter().parse(text) if field is not None} - FIELDS
        except (ValueError, TypeError) as error:
            raise ConfigError(f"the strategy {name!r} cannot be read: {error}", where=str(file)) from error
        if unknown:
            fix = f"The fields are {', '.join(sorted(FIELDS))}"
            raise ConfigError(f"the strategy {name!r} has a field {min(unknown)!r}", where=str(file), fix=fix)
    return {str(name): text for name, text in document.items()}


def traces_of(path: str, strategies: Mapping[str, str]) -> list[Trace]:
    """A trace of every row of a source, the strategies in turn. Raises DataError for a row without a worked answer."""
    names, traces = sorted(strategies), list[Trace]()
    for row, where in read_rows(path):
        question = next((row[name] for name in QUESTIONS if name in row), None) if isinstance(row, dict) else None
        worked, mark, answer = str(row.get("answer", "")).rpartition("####") if question else ("", "", "")
        steps = [CALCULATOR.sub("", line).strip() for line in worked.splitlines() if line.strip()]
        if not (question and mark and steps):
            raise DataError('a trace needs a "question", and an "answer" that ends with a line `#### 42`', where=where)
        name = names[len(traces) % len(names)]
        guess = NUMBER.search(" ".join(steps))
        thought = strategies[name].format(
            steps=" ".join(steps),
            count=len(steps),
            first=steps[0],
            rest=" ".join(steps[1:]),
            last=steps[-1],
            answer=answer.strip(),
            guess=guess[0] if guess else "0",
        )
        traces.append(Trace(name, str(question), thought, answer.strip()))
    return traces


def split_traces(traces: Sequence[Trace], share: float) -> tuple[list[Trace], list[Trace]]:
    """Traces to learn from, and held out, by the text of the question: every run holds out the same."""
    held_out = [trace for trace in traces if place(trace.question) < share]
    learnt = [trace for trace in traces if place(trace.question) >= share]
    if not held_out or not learnt:
        raise DataError(f"{len(traces)} traces are too few to hold some out")
    return learnt, held_out


def pack_traces(traces: Sequence[Trace], tokenizer: Any, model: ThinkingModel, length: int, alone: bool) -> PackedRows:
    """Rows of traces. Only the first `length` tokens of a trace are read: one that is cut has no answer to learn."""
    encoded = []
    for trace in traces:
        parts = (f"Question: {trace.question}\nAnswer:", f" {trace.thought}", f" {trace.answer}")
        before, thought, after = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in parts)
        ids = [*before, model.start_id, *thought, model.end_id, *after, *[tokenizer.eos_token_id] * (not alone)]
        encoded.append(np.array(ids, dtype=np.int32)[:length])
    return pack(encoded, length, tokenizer.bos_token_id, tokenizer.pad_token_id, alone=alone)


@torch.no_grad()
def trace_nats(model: ThinkingModel, traces: Sequence[Trace], tokenizer: Any, length: int) -> dict[str, list[float]]:
    """By strategy: the nats per token of each trace, from its thought on; the two marks are not counted."""
    model.eval()
    rows, nats = pack_traces(traces, tokenizer, model, length, alone=True), dict[str, list[float]]()
    for number, trace in enumerate(traces):
        batch = rows.take(slice(number, number + 1)).to(model.start.device)
        inside = (batch.inputs == model.start_id).cumsum(1) > 0
        marks = (batch.targets == model.start_id) | (batch.targets == model.end_id)
        wanted = inside & (batch.targets != IGNORE) & ~marks
        if bool(wanted.any()):
            losses = -model.log_probs(model.read(batch.inputs)[0], torch.where(wanted, batch.targets, 0))
            nats.setdefault(trace.strategy, []).append(float(losses[wanted].mean()))
    return nats


def trace_metrics(before: Mapping[str, list[float]], after: Mapping[str, list[float]]) -> dict[str, Metric]:
    """The nats per token of held-out traces by strategy, and their change with its standard error."""
    metrics = {}
    for name in before:
        change = np.array(after[name]) - np.array(before[name])
        error = float(change.std(ddof=1) / len(change) ** 0.5) if len(change) > 1 else None
        metrics[f"trace nats, {name}"] = Metric(float(np.mean(after[name])), n=len(change))
        metrics[f"trace nats, {name}, change"] = Metric(float(change.mean()), error, len(change))
    return metrics
