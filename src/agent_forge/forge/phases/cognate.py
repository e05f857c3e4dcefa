"""Phase 1, Cognate: a base language model trained from text alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import PretrainedConfig

from agent_forge.config import as_dict, build, nearest, option
from agent_forge.context_length import context_length
from agent_forge.errors import ConfigError, UsageError
from agent_forge.forge.checkpoint import Checkpoint, Metric, finish, staging
from agent_forge.forge.contracts import Contract
from agent_forge.forge.corpus import (
    Source,
    SplitCorpus,
    Stage,
    check_stages,
    mixed,
    read_corpus,
    set_aside,
    source_digests,
)
from agent_forge.forge.evaluation.text import measure_text
from agent_forge.forge.gates import TrainingGate
from agent_forge.forge.models import CognateConfig, CognateForCausalLM
from agent_forge.forge.phases import Phase, PhaseOutcome, Work
from agent_forge.forge.phases.measure import (
    behaviour_metrics,
    compare,
    order_zero_bits,
    text_metrics,
    token_frequency_bits,
    training_metrics,
    use_metrics,
)
from agent_forge.forge.training import TrainResult, TrainSettings, encode, pack, train
from agent_forge.forge.training.evaluation import HeldOut, evaluate
from agent_forge.forge.training.packing import PackedRows, StagedRows
from agent_forge.forge.training.settings import optimizer_settings
from agent_forge.forge.training.speed import training_flops
from agent_forge.forge.training.tokenizer import train_tokenizer


@dataclass(frozen=True)
class Cognate:
    """How the base model is made. `model` holds fields of CognateConfig, `training` fields of TrainSettings."""

    sources: dict[str, Source]
    model: dict[str, Any] = option({})
    training: dict[str, Any] = option({})
    stages: tuple[Stage, ...] = option(
        (), help="Stages of the training: shares of the steps, each with its own weights of the sources"
    )
    vocab_size: int = option(32768, help="Vocabulary size of the tokenizer", at_least=288)
    length: int = option(1024, help="Tokens per row", at_least=8)
    held_out: float = option(0.05, help="Share of the documents held out for judging", above=0, at_most=0.5)
    gate: TrainingGate = option(TrainingGate())

    def __post_init__(self) -> None:
        if not self.sources:
            raise ConfigError("name at least one source of text", where="sources")
        settings_of(self.training, 0)
        check_stages(self.stages, self.sources)
        refuse_unknown_fields(self.model, CognateConfig())
        refuse_long_rows(CognateConfig(**{**numbers(self.model), "vocab_size": self.vocab_size}), self.length)


def numbers(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with texts like 1e-3 turned into numbers: YAML 1.1 reads them as text, for lack of a point.

    >>> numbers({"lr": "1e-3", "rule": "muon"})
    {'lr': 0.001, 'rule': 'muon'}
    """
    return {name: float(v) if isinstance(v, str) and EXPONENT.fullmatch(v) else v for name, v in fields.items()}


EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")


def refuse_unknown_fields(model: Mapping[str, Any], config: PretrainedConfig) -> None:
    """Raises ConfigError for a misspelt field, which transformers would accept and ignore."""
    fields = config.to_dict().keys() - {"vocab_size"}
    for name in sorted(model.keys() - fields):
        near = nearest(name, fields)
        fix = "It belongs beside `model`" if name == "vocab_size" else f"Did you mean {near!r}?" if near else None
        raise ConfigError(f"unknown key {name!r}", where="model", fix=fix)


def refuse_long_rows(config: PretrainedConfig, length: int) -> None:
    """Raises ConfigError for rows longer than the model's context."""
    context = context_length(config)
    if context is not None and length > context:
        raise ConfigError(f"length is {length}, and the model reads {context} tokens", fix="Shorten `length`")


def settings_of(training: Mapping[str, Any], seed: int) -> TrainSettings:
    """The settings of a run with the pipeline's seed. Raises ConfigError."""
    if "seed" in training:
        raise ConfigError("the seed is the pipeline's", where="training", fix="Set `seed` at the top of the file")
    settings = build(TrainSettings, {**training, "seed": seed}, "training")
    if settings.patience and not settings.evaluate_every:
        raise ConfigError("patience counts evaluations", where="training", fix="Set `evaluate_every` too")
    try:
        optimizer_settings(settings.optimizer, **settings.optimizer_changes)
    except UsageError as error:
        raise ConfigError(str(error), where="training") from error
    return settings


def run(work: Work) -> PhaseOutcome:
    config: Cognate = work.config
    corpus = read_corpus(config.sources, config.held_out)
    train_texts = [text for texts in corpus.train.values() for text in texts]
    tokenizer = train_tokenizer(train_texts, config.vocab_size)
    settings = settings_of(config.training, work.seed)
    special = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}

    def begin(fields: Mapping[str, Any]) -> Any:
        torch.manual_seed(work.seed)
        shape = CognateConfig(**{**numbers(fields), **special, "vocab_size": len(tokenizer)})
        return CognateForCausalLM(shape)

    model = begin(config.model)
    tokens_of = dict(zip(train_texts, encode(tokenizer, train_texts), strict=True))
    trained = learn(work, model, tokenizer, corpus, settings, config.length, tokens_of)
    held_out = [text for texts in corpus.held_out.values() for text in texts]
    judged = HeldOut.of(tokenizer, held_out, config.length)
    train_tokens = (tokens_of[text][:-1] for text in train_texts)  # without EOS
    frequencies = (order_zero_bits(train_texts, held_out), token_frequency_bits(tokenizer, train_tokens, held_out))
    before, after = min(frequencies, key=lambda bits: float(bits.sum())), measure_text(model, judged).bits
    metrics = {**text_metrics(after, judged.bytes_of), **training_metrics(trained), **behaviour_metrics(model, judged)}
    checkpoint = save(work, model, tokenizer, corpus, metrics)
    control = control_bits(work, begin, model, tokenizer, judged)
    return PhaseOutcome(checkpoint, compare(before, after, judged.bytes_of, config.gate.least_gain, control))


def control_bits(
    work: Work, begin: Callable[[Mapping[str, Any]], Any], model: Any, tokenizer: Any, judged: HeldOut
) -> np.ndarray | None:
    """The bits of the control on the held-out documents, or None where the gate names none.

    `begin` makes the model that the control starts from. It is trained for as many steps as its operations per token
    allow within the compute that `model` took.
    """
    ours = work.config
    if not ours.gate.control:
        return None
    changes = dict(ours.gate.control)
    for name in ("model", "training"):
        changes[name] = {**getattr(ours, name), **changes.get(name, {})}
    config = build(type(ours), {**as_dict(ours), "gate": {}, **changes}, "gate.control")
    corpus = read_corpus({**ours.sources, **config.sources}, ours.held_out)  # what the phase is judged on is held out
    corpus = replace(corpus, train={name: corpus.train[name] for name in config.sources})
    control = begin(config.model)
    first, second = settings_of(ours.training, work.seed), settings_of(config.training, work.seed)
    compute = first.steps * first.batch_rows * training_flops(model, ours.length)
    steps = max(1, round(compute / (second.batch_rows * training_flops(control, config.length))))
    work = replace(work, config=config, folder=work.folder / "control")
    learn(work, control, tokenizer, corpus, replace(second, steps=steps), config.length)
    return measure_text(control, judged).bits


def learn(
    work: Work,
    model: Any,
    tokenizer: Any,
    corpus: SplitCorpus,
    settings: TrainSettings,
    length: int,
    tokens_of: Mapping[str, np.ndarray] | None = None,
) -> TrainResult:
    """Trains on the sources in proportion to their weights, resuming where an earlier process stopped.

    `tokens_of` holds the tokens of every text, where the caller has them: encoding much text takes a minute.
    With `evaluate_every`, a few of the training documents are set aside to evaluate on.
    """
    watch = None
    if settings.evaluate_every:
        corpus, watched = set_aside(corpus)
        watch = partial(evaluate, held_out=HeldOut.of(tokenizer, watched, length))
    rows = {}
    for name, texts in corpus.train.items():
        tokens = encode(tokenizer, texts) if tokens_of is None else [tokens_of[text] for text in texts]
        rows[name] = pack(tokens, length, tokenizer.bos_token_id, tokenizer.pad_token_id)
    model.to(device())
    return train(
        model,
        _mix(work, rows, settings),
        settings,
        work.folder / "training",
        watch,
        on_record=lambda record: work.tell(**record, steps=settings.steps),
        progress=None,
    )


def _mix(work: Work, rows: Mapping[str, PackedRows], settings: TrainSettings) -> PackedRows:
    """The rows by the weights of the sources or, with stages, by those of each stage."""
    whole = Stage(1.0, {name: source.weight for name, source in work.config.sources.items()})
    stages, done = [], 0.0
    for number, stage in enumerate(work.config.stages or (whole,)):
        first, done = round(done * settings.steps), done + stage.share
        members = {name: rows[name] for name in rows if name in stage.weights}
        needed = (round(done * settings.steps) - first) * settings.batch_rows
        available = sum(len(of) for of in members.values())  # beyond four epochs, rows are repeated by the batches
        stages.append((first, mixed(members, stage.weights, min(needed, 4 * available), work.seed + number)))
    return stages[0][1] if len(stages) == 1 else StagedRows.of(stages)


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def save(work: Work, model: Any, tokenizer: Any, corpus: SplitCorpus, metrics: Mapping[str, Metric]) -> Checkpoint:
    """Writes the model as a checkpoint with its card."""
    removed = {"leaked_documents_removed": Metric(float(corpus.removed))}
    card = work.card(corpus.digests(), {**metrics, **use_metrics(model), **removed})
    with staging(work.models) as folder:
        model.cpu().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return finish(folder, card, work.models)


PHASE = Phase(
    name="cognate",
    version=2,
    about="Train a base language model from text",
    config=Cognate,
    takes=Contract(checkpoints=(0, 0)),
    promises=Contract(architectures=("CognateForCausalLM",)),
    run=run,
    data=lambda config: source_digests(config.sources),
)
