"""Phase 1, Cognate: a base language model from nothing but text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from agent_forge.config import as_dict, build, nearest, option
from agent_forge.errors import ConfigError
from agent_forge.forge.checkpoint import Card, Checkpoint, Metric, finish, staging
from agent_forge.forge.contracts import Contract
from agent_forge.forge.corpus import Corpus, Source, mixed, read_corpus, source_digests
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
from agent_forge.forge.training import PRESETS, TrainResult, TrainSettings, encode, pack, train
from agent_forge.forge.training.evaluation import HeldOut
from agent_forge.forge.training.tokenizer import train_tokenizer


@dataclass(frozen=True)
class Cognate:
    """How the base model is made. `model` are fields of CognateConfig, `training` fields of TrainSettings."""

    sources: dict[str, Source]
    model: dict[str, Any] = option({})
    training: dict[str, Any] = option({})
    vocab_size: int = option(32768, help="tokens of the tokenizer", at_least=288)
    length: int = option(1024, help="tokens in a row", at_least=8)
    held_out: float = option(0.05, help="share of the documents kept for judging", above=0, at_most=0.5)

    def __post_init__(self) -> None:
        if not self.sources:
            raise ConfigError("name at least one source of text", where="sources")
        settings_of(self.training, 0)
        _refuse_unknown_fields(self.model)
        CognateConfig(**{**self.model, "vocab_size": self.vocab_size})


def _refuse_unknown_fields(model: Mapping[str, Any]) -> None:
    """transformers takes any key into a configuration; a misspelt one would be lost there."""
    known = CognateConfig().to_dict().keys() - {"vocab_size"}
    for name in sorted(model.keys() - known):
        near = nearest(name, known)
        fix = "it belongs beside `model`" if name == "vocab_size" else f"did you mean {near!r}?" if near else None
        raise ConfigError(f"unknown key {name!r}", where="model", fix=fix)


def settings_of(training: Mapping[str, Any], seed: int) -> TrainSettings:
    """The settings of a run: the seed is the pipeline's. Raises ConfigError."""
    if "seed" in training:
        raise ConfigError("the seed is the pipeline's", where="training", fix="set `seed` at the top of the file")
    settings = build(TrainSettings, {**training, "seed": seed}, "training")
    if settings.optimizer not in PRESETS:
        fix = f"the presets are {', '.join(PRESETS)}"
        raise ConfigError(f"there is no optimizer preset {settings.optimizer!r}", where="training", fix=fix)
    return settings


def run(work: Work) -> Outcome:
    config: Cognate = work.config
    corpus = read_corpus(config.sources, config.held_out)
    tokenizer = train_tokenizer((text for texts in corpus.train.values() for text in texts), config.vocab_size)
    settings = settings_of(config.training, work.seed)
    torch.manual_seed(work.seed)
    special = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    model = CognateForCausalLM(CognateConfig(**{**config.model, **special, "vocab_size": len(tokenizer)}))
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
    """Trains on the sources in the shares of their weights, resuming what an earlier process left."""
    weights = {name: source.weight for name, source in work.config.sources.items()}
    rows = {
        name: pack(encode(tokenizer, texts), length, tokenizer.bos_token_id, tokenizer.pad_token_id)
        for name, texts in corpus.train.items()
    }
    wanted = settings.steps * settings.batch_rows
    available = sum(len(of) for of in rows.values())
    data = mixed(rows, weights, min(wanted, 4 * available), work.seed)
    model.to(device())
    folder = work.folder / "training"
    return train(model, data, settings, folder, on_record=lambda record: work.tell(**record), progress=None)


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
