"""Phase 1, second half: a specialist branched from a base model, which may be any Hugging Face causal LM.

Specialists of one base share its loss basin, and its weights as the origin of their task vectors: merging needs both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig

from agent_forge.config import option
from agent_forge.errors import ConfigError, HandoffError
from agent_forge.forge.checkpoint import Checkpoint
from agent_forge.forge.contracts import Contract
from agent_forge.forge.corpus import Source, Stage, check_stages, read_corpus, source_digests
from agent_forge.forge.evaluation.text import measure_text
from agent_forge.forge.gates import TrainingGate
from agent_forge.forge.lineage import refuse_seen_documents
from agent_forge.forge.phases import Phase, PhaseOutcome, Work
from agent_forge.forge.phases.cognate import (
    control_bits,
    device,
    learn,
    numbers,
    refuse_long_rows,
    refuse_unknown_fields,
    save,
    settings_of,
)
from agent_forge.forge.phases.measure import behaviour_metrics, compare, text_metrics, training_metrics
from agent_forge.forge.training.evaluation import HeldOut
from agent_forge.inference.loading import load_config, load_model, load_tokenizer


@dataclass(frozen=True)
class Specialise:
    """What the specialist learns from, and how. `model` changes fields of the base's configuration, e.g. `loops`."""

    sources: dict[str, Source]
    model: dict[str, Any] = option({})
    training: dict[str, Any] = option({})
    stages: tuple[Stage, ...] = option(
        (), help="Stages of the training: shares of the steps, each with its own weights of the sources"
    )
    length: int = option(1024, help="Tokens per row", at_least=8)
    held_out: float = option(0.05, help="Share of the documents held out for judging", above=0, at_most=0.5)
    gate: TrainingGate = option(TrainingGate())

    def __post_init__(self) -> None:
        if not self.sources:
            raise ConfigError("name at least one source of text", where="sources")
        check_stages(self.stages, self.sources)
        settings_of(self.training, 0)


def run(work: Work) -> PhaseOutcome:
    config: Specialise = work.config
    base = work.inputs[0]
    for name, source in config.sources.items():
        refuse_seen_documents(base, name, source.path, source.held_out or config.held_out)
    tokenizer = reading_tokenizer(base)
    corpus = read_corpus(config.sources, config.held_out)
    judged = HeldOut.of(tokenizer, [text for texts in corpus.held_out.values() for text in texts], config.length)
    original: Any = load_model(base.path, dtype=torch.float32)
    original.to(device())
    refuse_long_rows(original.config, config.length)
    before = measure_text(original, judged).bits
    del original

    def begin(fields: Mapping[str, Any]) -> Any:
        torch.manual_seed(work.seed)  # parts that the base does not have start at random
        changed = changed_config(base, fields) if fields else None
        return load_model(base.path, dtype=torch.float32, config=changed)

    model = begin(config.model)
    trained = learn(work, model, tokenizer, corpus, settings_of(config.training, work.seed), config.length)
    after = measure_text(model, judged).bits
    metrics = {**text_metrics(after, judged.bytes_of), **training_metrics(trained), **behaviour_metrics(model, judged)}
    checkpoint = save(work, model, load_tokenizer(base.path), corpus, metrics)
    control = control_bits(work, begin, model, tokenizer, judged)
    return PhaseOutcome(checkpoint, compare(before, after, judged.bytes_of, config.gate.least_gain, control))


def changed_config(base: Checkpoint, changes: Mapping[str, Any]) -> PretrainedConfig:
    """The base's configuration with some fields changed, checked like a new one. Raises ConfigError."""
    config: PretrainedConfig = load_config(base.path)
    refuse_unknown_fields(changes, config)
    return type(config).from_dict({**config.to_dict(), **numbers(changes)})


def reading_tokenizer(base: Checkpoint) -> Any:
    """The base's tokenizer for training text. EOS stands in for BOS and padding, which many models do not have."""
    tokenizer = load_tokenizer(base.path)
    if tokenizer.bos_token_id is None:
        if tokenizer.eos_token_id is None:
            raise HandoffError("the tokenizer has neither BOS nor EOS to begin a text with", where=str(base.path))
        tokenizer.bos_token = tokenizer.eos_token
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.bos_token  # padding is never a target
    return tokenizer


PHASE = Phase(
    name="specialise",
    version=2,
    about="Branch a specialist from a base model",
    config=Specialise,
    takes=Contract(checkpoints=(1, 1), tokenizer=True),
    promises=Contract(),
    run=run,
    data=lambda config: source_digests(config.sources),
)
