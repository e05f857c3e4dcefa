"""Phase 1, second half: a specialist branched from a base model, which may be any Hugging Face causal LM.

The specialists of one base share its basin and its weights as the origin of their task vectors, which is what merging
them later needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig

from agent_forge.config import as_dict, option
from agent_forge.errors import ConfigError, HandoffError
from agent_forge.forge.checkpoint import CARD, Card, Checkpoint
from agent_forge.forge.contracts import Contract
from agent_forge.forge.corpus import Source, Stage, check_stages, read_corpus, source_digests
from agent_forge.forge.phases import Outcome, Phase, Work
from agent_forge.forge.phases.cognate import (
    device,
    learn,
    numbers,
    refuse_long_rows,
    refuse_unknown_fields,
    save,
    settings_of,
)
from agent_forge.forge.phases.measure import behaviour_metrics, compare, document_bits, text_metrics, training_metrics
from agent_forge.forge.registry import folder_of
from agent_forge.forge.training.evaluation import HeldOut


@dataclass(frozen=True)
class Specialise:
    """What the specialist learns from, and how. `model` changes fields of the base's configuration (loops, halting)."""

    sources: dict[str, Source]
    model: dict[str, Any] = option({})
    training: dict[str, Any] = option({})
    stages: tuple[Stage, ...] = option((), help="a curriculum: shares of the steps with other weights of the sources")
    length: int = option(1024, help="tokens in a row", at_least=8)
    held_out: float = option(0.05, help="share of the documents kept for judging", above=0, at_most=0.5)

    def __post_init__(self) -> None:
        if not self.sources:
            raise ConfigError("name at least one source of text", where="sources")
        check_stages(self.stages, self.sources)
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
    refuse_long_rows(original.config, config.length)
    before = document_bits(original, judged)
    del original
    torch.manual_seed(work.seed)  # parts that the base does not have start at random
    changed = {"config": changed_config(base, config.model)} if config.model else {}
    model = AutoModelForCausalLM.from_pretrained(base.path, dtype=torch.float32, **changed)
    trained = learn(work, model, tokenizer, corpus, settings_of(config.training, work.seed), config.length)
    after = document_bits(model, judged)
    metrics = {**text_metrics(after, judged.bytes_of), **training_metrics(trained)}
    metrics.update(behaviour_metrics(model, judged))
    unchanged = AutoTokenizer.from_pretrained(base.path)
    made = save(work, model, unchanged, corpus, as_dict(config), metrics)
    return Outcome(made, compare(before, after, judged.bytes_of))


def changed_config(base: Checkpoint, changes: Mapping[str, Any]) -> PretrainedConfig:
    """The base's configuration with some fields changed, checked as a new one is. Raises ConfigError."""
    config: PretrainedConfig = AutoConfig.from_pretrained(base.path)
    refuse_unknown_fields(changes, config)
    return type(config).from_dict({**config.to_dict(), **numbers(changes)})


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
    learnt from, or one that it was made from. A source of which their cards name neither the name nor the path, they
    have not read.

    Raises HandoffError naming the source.
    """
    for card in (model.card, *_ancestors(model)):
        usual = card.config.get("held_out")
        if usual is None:
            continue  # not made by a phase that learns from text: what it has read is not known
        for known, source in card.config.get("sources", {name: {"path": path}}).items():
            before = source.get("held_out") or usual
            if (known == name or _same_place(source["path"], path)) and before < share:
                raise HandoffError(
                    f"held_out is {share}, and the model {card.phase!r} was made with {before}: it has seen what "
                    "would be judged on",
                    where=path,
                    fix=f"set held_out to {before} or less",
                )


def _ancestors(model: Checkpoint) -> Iterator[Card]:
    """The cards of what the model was made from, and of what that was made from, as far as they are still there."""
    ahead, seen = list(model.card.inputs), set[str]()
    while ahead:
        digest = ahead.pop()
        if digest in seen:
            continue
        seen.add(digest)
        for file in model.path.parent.glob(f"*-{digest[:12]}/{CARD}"):
            card = Card.from_json(file.read_text(encoding="utf-8"), str(file))
            ahead.extend(card.inputs)
            yield card


def _same_place(one: str, other: str) -> bool:
    return folder_of(one) == folder_of(other)


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
