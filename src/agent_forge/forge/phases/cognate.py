"""Phase 1, Cognate: a base language model from nothing but text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import PretrainedConfig

from agent_forge.config import as_dict, build, nearest, option
from agent_forge.context_length import context_length
from agent_forge.errors import ConfigError, UsageError
from agent_forge.forge.checkpoint import Card, Checkpoint, Metric, finish, staging
from agent_forge.forge.contracts import Contract
from agent_forge.forge.corpus import (
    Corpus,
    Source,
    Stage,
    check_stages,
    mixed,
    read_corpus,
    set_aside,
    source_digests,
)
from agent_forge.forge.models import CognateConfig, CognateForCausalLM
from agent_forge.forge.phases import Outcome, Phase, Work
from agent_forge.forge.phases.measure import (
    behaviour_metrics,
    compare,
    document_bits,
    order_zero_bits,
    text_metrics,
    training_metrics,
    use_metrics,
)
from agent_forge.forge.training import PRESETS, MuGrokfast, TrainResult, TrainSettings, encode, pack, train
from agent_forge.forge.training.evaluation import HeldOut, evaluate
from agent_forge.forge.training.packing import PackedRows, StagedRows
from agent_forge.forge.training.tokenizer import train_tokenizer


@dataclass(frozen=True)
class Cognate:
    """How the base model is made. `model` are fields of CognateConfig, `training` fields of TrainSettings."""

    sources: dict[str, Source]
    model: dict[str, Any] = option({})
    training: dict[str, Any] = option({})
    stages: tuple[Stage, ...] = option((), help="a curriculum: shares of the steps with other weights of the sources")
    vocab_size: int = option(32768, help="tokens of the tokenizer", at_least=288)
    length: int = option(1024, help="tokens in a row", at_least=8)
    held_out: float = option(0.05, help="share of the documents kept for judging", above=0, at_most=0.5)

    def __post_init__(self) -> None:
        if not self.sources:
            raise ConfigError("name at least one source of text", where="sources")
        settings_of(self.training, 0)
        check_stages(self.stages, self.sources)
        refuse_unknown_fields(self.model, CognateConfig())
        refuse_long_rows(CognateConfig(**{**numbers(self.model), "vocab_size": self.vocab_size}), self.length)


def numbers(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, with 1e-3 as the number that it is: YAML 1.1 takes it for a text, having no point.

    >>> numbers({"lr": "1e-3", "rule": "muon"})
    {'lr': 0.001, 'rule': 'muon'}
    """
    return {name: float(v) if isinstance(v, str) and EXPONENT.fullmatch(v) else v for name, v in fields.items()}


EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")


def refuse_unknown_fields(model: Mapping[str, Any], config: PretrainedConfig) -> None:
    """transformers takes any key into a configuration; a misspelt one would be lost there."""
    known = config.to_dict().keys() - {"vocab_size"}
    for name in sorted(model.keys() - known):
        near = nearest(name, known)
        fix = "it belongs beside `model`" if name == "vocab_size" else f"did you mean {near!r}?" if near else None
        raise ConfigError(f"unknown key {name!r}", where="model", fix=fix)


def refuse_long_rows(config: PretrainedConfig, length: int) -> None:
    """Raises ConfigError for rows that are longer than the model can read."""
    most = context_length(config)
    if most is not None and length > most:
        raise ConfigError(f"length is {length}, and the model reads {most} tokens", fix="shorten `length`")


def settings_of(training: Mapping[str, Any], seed: int) -> TrainSettings:
    """The settings of a run: the seed is the pipeline's. Raises ConfigError."""
    if "seed" in training:
        raise ConfigError("the seed is the pipeline's", where="training", fix="set `seed` at the top of the file")
    changes = training.get("optimizer_changes")
    read = {"optimizer_changes": numbers(changes)} if isinstance(changes, Mapping) else {}
    settings = build(TrainSettings, {**training, **read, "seed": seed}, "training")
    if settings.optimizer not in PRESETS:
        fix = f"the presets are {', '.join(PRESETS)}"
        raise ConfigError(f"there is no optimizer preset {settings.optimizer!r}", where="training", fix=fix)
    if settings.patience and not settings.evaluate_every:
        raise ConfigError("patience counts evaluations", where="training", fix="set `evaluate_every` too")
    _try_out(settings)
    return settings


def _try_out(settings: TrainSettings) -> None:
    """Settings that only show themselves at work are put to work, on next to nothing. Raises ConfigError."""
    with torch.random.fork_rng(devices=[]):  # asking must not move anybody's dice
        toy = torch.nn.Linear(16, 16)
    try:
        optimizer = MuGrokfast.for_phase(toy, settings.optimizer, **settings.optimizer_changes)
        toy(torch.ones(1, 16)).sum().backward()
        optimizer.step()
    except UsageError as error:
        raise ConfigError(str(error), where="training") from error
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ConfigError(f"optimizer_changes: {error}", where="training") from error


def run(work: Work) -> Outcome:
    config: Cognate = work.config
    corpus = read_corpus(config.sources, config.held_out)
    tokenizer = train_tokenizer((text for texts in corpus.train.values() for text in texts), config.vocab_size)
    settings = settings_of(config.training, work.seed)
    torch.manual_seed(work.seed)
    special = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    model = CognateForCausalLM(CognateConfig(**{**numbers(config.model), **special, "vocab_size": len(tokenizer)}))
    trained = learn(work, model, tokenizer, corpus, settings, config.length)
    held_out = [text for texts in corpus.held_out.values() for text in texts]
    judged = HeldOut.of(tokenizer, held_out, config.length)
    after = document_bits(model, judged)
    before = order_zero_bits((text for texts in corpus.train.values() for text in texts), held_out)
    metrics = {**text_metrics(after, judged.bytes_of), **training_metrics(trained)}
    metrics.update(behaviour_metrics(model, judged))
    checkpoint = save(work, model, tokenizer, corpus, as_dict(config), metrics)
    return Outcome(checkpoint, compare(before, after, judged.bytes_of))


def learn(work: Work, model: Any, tokenizer: Any, corpus: Corpus, settings: TrainSettings, length: int) -> TrainResult:
    """Trains on the sources in the shares of their weights, resuming what an earlier process left.

    With `evaluate_every`, a few of the training documents are only looked at.
    """
    watch = None
    if settings.evaluate_every:
        corpus, watched = set_aside(corpus)
        watch = partial(evaluate, held_out=HeldOut.of(tokenizer, watched, length))
    rows = {
        name: pack(encode(tokenizer, texts), length, tokenizer.bos_token_id, tokenizer.pad_token_id)
        for name, texts in corpus.train.items()
    }
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
    """The rows by the weights of the sources, or, in a curriculum, by those of each stage."""
    usual = Stage(1.0, {name: source.weight for name, source in work.config.sources.items()})
    stages, done = [], 0.0
    for number, stage in enumerate(work.config.stages or (usual,)):
        first, done = round(done * settings.steps), done + stage.share
        read = {name: rows[name] for name in rows if name in stage.weights}
        wanted = (round(done * settings.steps) - first) * settings.batch_rows
        available = sum(len(of) for of in read.values())
        stages.append((first, mixed(read, stage.weights, min(wanted, 4 * available), work.seed + number)))
    return stages[0][1] if len(stages) == 1 else StagedRows.of(stages)


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def save(
    work: Work, model: Any, tokenizer: Any, corpus: Corpus, config: Mapping[str, Any], metrics: dict[str, Metric]
) -> Checkpoint:
    """Writes the model as a checkpoint with its card."""
    metrics = {**metrics, **use_metrics(model), "leaked_documents_removed": Metric(float(corpus.removed))}
    card = Card(
        phase=work.name,
        config=config,
        inputs=tuple(item.digest for item in work.inputs),
        data=corpus.digests(),
        seed=work.seed,
        metrics=metrics,
    )
    with staging(work.models) as folder:
        model.cpu().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return finish(folder, card, work.models)


PHASE = Phase(
    name="cognate",
    version=1,
    about="Train a base language model from text",
    config=Cognate,
    takes=Contract(checkpoints=(0, 0)),
    promises=Contract(architectures=("CognateForCausalLM",)),
    run=run,
    data=lambda config: source_digests(config.sources),
)
