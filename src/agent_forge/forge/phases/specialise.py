"""Phase 1, second half: a specialist branched from a base model, which may be any Hugging Face causal LM.

The specialists of one base share its basin and its weights as the origin of their task vectors, which is what merging
them later needs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_forge.config import as_dict, option
from agent_forge.errors import ConfigError, HandoffError
from agent_forge.forge.checkpoint import Checkpoint
from agent_forge.forge.contracts import Contract
from agent_forge.forge.corpus import Source, read_corpus, source_digests
from agent_forge.forge.phases import Outcome, Phase, Work
from agent_forge.forge.phases.cognate import device, learn, save, settings_of
from agent_forge.forge.phases.measure import behaviour_metrics, compare, document_bits, text_metrics, training_metrics
from agent_forge.forge.training.evaluation import HeldOut


@dataclass(frozen=True)
class Specialise:
    """What the specialist learns from, and how. `model` changes fields of the base's configuration (loops, halting)."""

    sources: dict[str, Source]
    model: dict[str, Any] = option({})
    training: dict[str, Any] = option({})
    length: int = option(1024, help="tokens in a row", at_least=8)
    held_out: float = option(0.05, help="share of the documents kept for judging", above=0, at_most=0.5)

    def __post_init__(self) -> None:
        if not self.sources:
            raise ConfigError("name at least one source of text", where="sources")
        settings_of(self.training, 0)


def run(work: Work) -> Outcome:
    config: Specialise = work.config
    base = work.inputs[0]
    for name, source in config.sources.items():
        refuse_seen_documents(base, name, source.path, source.held_out or config.held_out)
    tokenizer = reading_tokenizer(base)
    corpus = read_corpus(config.sources, config.held_out)
    judged = HeldOut.of(tokenizer, [text for texts in corpus.held_out.values() for text in texts], config.length)
    original: Any = AutoModelForCausalLM.from_pretrained(base.path, dtype=torch.float32)
    original.to(device())
    _refuse_long_rows(original, config.length)
    before = document_bits(original, judged)
    del original
    torch.manual_seed(work.seed)  # parts that the base does not have start at random
    model = AutoModelForCausalLM.from_pretrained(base.path, dtype=torch.float32, **config.model)
    trained = learn(work, model, tokenizer, corpus, settings_of(config.training, work.seed), config.length)
    after = document_bits(model, judged)
    metrics = {**text_metrics(after, judged.bytes_of), **training_metrics(trained)}
    metrics.update(behaviour_metrics(model, judged))
    unchanged = AutoTokenizer.from_pretrained(base.path)
    made = save(work, model, unchanged, corpus, as_dict(config), metrics)
    return Outcome(made, compare(before, after, judged.bytes_of))


def reading_tokenizer(base: Checkpoint) -> Any:
    """The base's tokenizer for reading training text. Many models have no BOS or no padding: EOS then stands for it."""
    tokenizer = AutoTokenizer.from_pretrained(base.path)
    if tokenizer.bos_token_id is None:
        if tokenizer.eos_token_id is None:
            raise HandoffError("the tokenizer has neither BOS nor EOS to begin a text with", where=str(base.path))
        tokenizer.bos_token = tokenizer.eos_token
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.bos_token  # padding is never a target
    return tokenizer


def refuse_seen_documents(model: Checkpoint, name: str, path: str, share: float) -> None:
    """Of one source, the same documents are held out by the same share; by a larger one, some that the model has
    learnt from. A source of which the model's card names neither the name nor the path, it has not read.

    Raises HandoffError naming the source.
    """
    usual = model.card.config.get("held_out")
    if usual is None:
        return  # not made by a phase that learns from text: what it has read is not known
    for known, source in model.card.config.get("sources", {name: {"path": path}}).items():
        before = source.get("held_out") or usual
        if (known == name or _same_place(source["path"], path)) and before < share:
            raise HandoffError(
                f"held_out is {share}, and the model {model.card.phase!r} was made with {before}: it has seen what "
                "would be judged on",
                where=path,
                fix=f"set held_out to {before} or less",
            )


def _same_place(one: str, other: str) -> bool:
    return os.path.realpath(os.path.expandvars(one)) == os.path.realpath(os.path.expandvars(other))


def _refuse_long_rows(model: Any, length: int) -> None:
    most = getattr(model.config, "max_position_embeddings", None)
    if most is not None and length > most:
        raise HandoffError(f"length is {length}, and the model reads {most} tokens", fix="shorten `length`")


PHASE = Phase(
    name="specialise",
    version=1,
    about="Branch a specialist from a base model",
    config=Specialise,
    takes=Contract(checkpoints=(1, 1), tokenizer=True),
    promises=Contract(),
    run=run,
    data=lambda config: source_digests(config.sources),
)
