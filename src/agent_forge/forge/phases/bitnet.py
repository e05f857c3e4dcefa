"""Phase 4, BitNet b1.58: the model on three levels, trained for by distillation, packed, and judged as packed.

`output: packed` passes the small model on; `output: dense` passes on its de-quantised form (the levels themselves, not
the shadow weights), for phases that train further. Training moves weights off their levels again: quantise last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoModelForCausalLM

from agent_forge.config import option
from agent_forge.errors import ConfigError
from agent_forge.forge.checkpoint import Checkpoint, Metric, finish, staging
from agent_forge.forge.contracts import Contract
from agent_forge.forge.corpus import Source, SplitCorpus, mixed, read_corpus, source_digests
from agent_forge.forge.evaluation.choices import continuations
from agent_forge.forge.evaluation.scores import retention
from agent_forge.forge.phases import Phase, PhaseOutcome, Work
from agent_forge.forge.phases.cognate import device
from agent_forge.forge.phases.measure import compare, text_metrics
from agent_forge.forge.phases.specialise import reading_tokenizer, refuse_seen_documents
from agent_forge.forge.quantization.bitlinear import INSIDE_BLOCKS, to_dense
from agent_forge.forge.quantization.folder import float32_bytes, write_dense, write_packed
from agent_forge.forge.quantization.gate import Demands, as_gate
from agent_forge.forge.quantization.levels import Format
from agent_forge.forge.quantization.material import Material
from agent_forge.forge.quantization.quantise import Measured, Quantisation, measure_folder
from agent_forge.forge.quantization.recipe import Recipe
from agent_forge.forge.training import PackedRows, encode, pack
from agent_forge.forge.training.evaluation import HeldOut


@dataclass(frozen=True)
class Bitnet:
    """The text, the levels, the recipe of the training, and what the result must keep."""

    sources: dict[str, Source]
    format: Format = field(default_factory=Format)
    recipe: Recipe = field(default_factory=Recipe)
    demands: Demands = field(default_factory=Demands)
    layers: str = option(INSIDE_BLOCKS, help="regular expression: the linear layers to quantise")
    layout: Literal["1.6bit", "2bit"] = option("1.6bit", help="five weights a byte, or four for speed")
    output: Literal["packed", "dense"] = option("packed", help="what is passed on")
    held_out: float = option(0.05, help="share of the documents kept for judging", above=0, at_most=0.5)
    most_judged: int = option(131_072, help="tokens of them that are read", at_least=64)
    questions: int = option(512, help="questions made from them", at_least=16)

    def __post_init__(self) -> None:
        if not self.sources:
            raise ConfigError("name at least one source of text", where="sources")


def run(work: Work) -> PhaseOutcome:
    config: Bitnet = work.config
    base = work.inputs[0]
    for name, source in config.sources.items():
        refuse_seen_documents(base, name, source.path, source.held_out or config.held_out)
    tokenizer = reading_tokenizer(base)
    corpus = read_corpus(config.sources, config.held_out)
    teacher: Any = AutoModelForCausalLM.from_pretrained(base.path, dtype=torch.float32)
    teacher.to(device()).eval()
    material = material_of(config, tokenised(config, corpus, tokenizer), work.seed)
    quantisation = Quantisation(
        teacher,
        material,
        config.format,
        config.recipe,
        config.demands,
        config.layers,
        {"continuation": continuations(material.judged, config.questions)},
        work.seed,
        work.folder,
        work.tell,
    )
    quantisation.run()
    with staging(work.models) as place:
        packed = place / "packed"
        size = write_packed(quantisation.student, base.path, packed, config.layout)
        found, divergence = measure_folder(quantisation, packed)
        metrics = _metrics(quantisation, found, divergence, float32_bytes(base.path), size)
        made = _save(work, quantisation, packed, corpus, metrics)
    clauses = quantisation.clauses(found, float32_bytes(base.path) / size)
    before, after = quantisation.original.text, found.text
    difference = compare(before.nats / math.log(2), after.nats / math.log(2), before.bytes_of.tolist())
    return PhaseOutcome(made, as_gate(clauses, before.bits_per_byte, after.bits_per_byte, difference.stderr))


@dataclass(frozen=True)
class Tokenised:
    """The text as tokens: rows of each source to learn from, and documents to watch and to judge on."""

    rows: dict[str, PackedRows]
    watched: HeldOut
    judged: HeldOut


def tokenised(config: Bitnet, corpus: SplitCorpus, tokenizer: Any) -> Tokenised:
    """The last documents of each source are only looked at while training."""
    length, rows = config.recipe.length, {}
    watched: list[str] = []
    for name, texts in corpus.train.items():
        apart = max(1, min(4, len(texts) // 20))
        watched += [text[: 8 * length] for text in texts[-apart:]]  # two rows or so of each
        learned = texts[:-apart] or texts
        rows[name] = pack(encode(tokenizer, learned), length, tokenizer.bos_token_id, tokenizer.pad_token_id)
    held_out = [text for texts in corpus.held_out.values() for text in texts]
    judged = _up_to(held_out, tokenizer, config.most_judged, length)
    return Tokenised(rows, HeldOut.of(tokenizer, watched, length), HeldOut.of(tokenizer, judged, length))


def material_of(config: Bitnet, text: Tokenised, seed: int) -> Material:
    """Rows by the sources' weights, as many as the training asks for."""
    available = sum(len(of) for of in text.rows.values())
    total = min((config.recipe.steps or available) * config.recipe.batch_rows, 4 * available)
    rows = mixed(text.rows, {name: source.weight for name, source in config.sources.items()}, total, seed)
    return Material(rows, text.watched, text.judged, ", ".join(config.sources))


def _up_to(texts: list[str], tokenizer: Any, tokens: int, length: int) -> list[str]:
    """The beginnings of the texts, and of them every k-th: about `tokens` tokens from as many documents as will fit."""
    room = 4 * max(length, tokens // len(texts))  # characters: about four a token
    parts = [text[:room] for text in texts]
    found = sum(len(ids) for ids in encode(tokenizer, parts, eos=False))
    return parts[:: max(1, -(-found // tokens))]


def _metrics(
    quantisation: Quantisation, found: Measured, divergence: dict[str, Any], whole: int, size: int
) -> dict[str, Metric]:
    metrics = text_metrics(found.text.nats / math.log(2), found.text.bytes_of.astype(int).tolist())
    kept = retention(quantisation.original.scores, found.scores)
    figures: dict[str, tuple[float, float | None, str]] = {
        "perplexity_ratio": (found.text.perplexity / quantisation.original.text.perplexity, None, "to the input's"),
        "kl_to_input": (divergence["kl"], divergence["kl_stderr"], "nats per token, held-out documents"),
        "same_likeliest_token": (divergence["agreement"], divergence["agreement_stderr"], "held-out documents"),
        "packed_bytes": (float(size), None, "all files of the packed folder"),
        "ratio_to_float32": (whole / size, None, "all files of both folders, the input's weights in float32"),
    }
    if kept is not None:
        figures["accuracy_above_chance_kept"] = (kept.share, kept.stderr, "which of four pieces follows?")
    for stage in quantisation.stages:
        if stage["stage"].startswith("post-training"):
            figures[f"perplexity_ratio {stage['stage']}"] = (stage["ppl_ratio"], None, "baseline without training")
    return {**metrics, **{name: Metric(value, error, how=how) for name, (value, error, how) in figures.items()}}


def _save(
    work: Work, quantisation: Quantisation, packed: Path, corpus: SplitCorpus, metrics: dict[str, Metric]
) -> Checkpoint:
    """The packed folder as a checkpoint, or the de-quantised model; the figures are the packed one's either way."""
    card = work.card(corpus.digests(), metrics)
    if work.config.output == "packed":
        return finish(packed, card, work.models)
    with staging(work.models) as folder:
        write_dense(to_dense(quantisation.student), work.inputs[0].path, folder)
        return finish(folder, card, work.models)


PHASE = Phase(
    name="bitnet",
    version=1,
    about="Put the model on three levels and pack it",
    config=Bitnet,
    takes=Contract(checkpoints=(1, 1), tokenizer=True),
    promises=Contract(tokenizer=True),
    run=run,
    data=lambda config: source_digests(config.sources),
)
