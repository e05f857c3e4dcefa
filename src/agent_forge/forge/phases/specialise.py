"""Phase 1, second half: a specialist branched from a base model, which may be any Hugging Face causal LM.

The specialists of one base share its basin and its weights as the origin of their task vectors, which is what merging
them later needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_forge.config import as_dict, option
from agent_forge.errors import ConfigError
from agent_forge.forge.contracts import Contract
from agent_forge.forge.corpus import Source, read_corpus, source_digests
from agent_forge.forge.phases import Outcome, Phase, Work
from agent_forge.forge.phases.cognate import learn, save, settings_of
from agent_forge.forge.phases.measure import compare, document_bits, text_metrics
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
    tokenizer = AutoTokenizer.from_pretrained(base.path)
    corpus = read_corpus(config.sources, config.held_out)
    judged = HeldOut.of(tokenizer, [text for texts in corpus.held_out.values() for text in texts], config.length)
    before = document_bits(AutoModelForCausalLM.from_pretrained(base.path, dtype=torch.float32), judged)
    torch.manual_seed(work.seed)  # parts that the base does not have start at random
    model = AutoModelForCausalLM.from_pretrained(base.path, dtype=torch.float32, **config.model)
    learn(work, model, tokenizer, corpus, settings_of(config.training, work.seed), config.length)
    after = document_bits(model, judged)
    metrics = text_metrics(after, judged.bytes_of)
    return Outcome(
        save(work, model, tokenizer, corpus, as_dict(config), metrics), compare(before, after, judged.bytes_of)
    )


PHASE = Phase(
    name="specialise",
    version=1,
    about="Branch a specialist from a base model",
    config=Specialise,
    takes=Contract(checkpoints=(1, 1)),
    promises=Contract(),
    run=run,
    data=lambda config: source_digests(config.sources),
)
