"""Phase 4, BitNet b1.58: the model on three levels, trained for by distillation, packed, and judged as packed.

`output: packed` passes the small model on; `output: dense` passes on its de-quantised form (the
levels themselves, not the shadow weights), for phases that train further. Training moves weights
off their levels again: quantise last.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from agent_forge.forge.evaluation.text import Divergence
from agent_forge.forge.phases import Phase, PhaseOutcome, Work
from agent_forge.forge.phases.cognate import device
from agent_forge.forge.phases.measure import compare, text_metrics
from agent_forge.forge.phases.specialise import reading_tokenizer, refuse_seen_documents
from agent_forge.forge.quantization.bitlinear import to_dense
from agent_forge.forge.quantization.folder import float32_bytes, write_dense, write_packed
from agent_forge.forge.quantization.gate import as_gate
from agent_forge.forge.quantization.material import Material
from agent_forge.forge.quantization.quantise import Measurement, Quantisation
from agent_forge.forge.quantization.settings import QuantizeSettings
from agent_forge.forge.training import PackedRows, encode, pack
from agent_forge.forge.training.evaluation import HeldOut


@dataclass(frozen=True, kw_only=True)
class Bitnet(QuantizeSettings):
    """The text and what is passed on, beside the settings of `quantize`."""

    sources: dict[str, Source]
    output: Literal["packed", "dense"] = option("packed", help="What is passed on")
    held_out: float = option(0.05, help="Share of the documents kept for judging", above=0, at_most=0.5)
    most_judged: int = option(131_072, help="Held-out tokens to judge on, at most", at_least=64)
    questions: int = option(512, help="Multiple-choice questions made from them", at_least=16)

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
    questions = {"continuation": continuations(material.judged, config.questions)}
    quantisation = Quantisation(teacher, material, config, questions, work.seed, work.folder, work.tell)
    quantisation.run()
    with staging(work.models) as place:
        packed = place / "packed"
        size = write_packed(quantisation.student, base.path, packed, config.layout)
        measurement, divergence = quantisation.measure_folder(packed)
        whole = float32_bytes(base.path)
        metrics = _metrics(quantisation, measurement, divergence, whole, size)
        checkpoint = _save(work, quantisation, packed, corpus, metrics)
    before, after = quantisation.original.text, measurement.text
    difference = compare(before.bits, after.bits, before.bytes_of.tolist())
    checks = quantisation.checks(measurement, whole / size)
    return PhaseOutcome(checkpoint, as_gate(checks, before.bits_per_byte, after.bits_per_byte, difference.stderr))


@dataclass(frozen=True)
class TokenisedText:
    """The text as tokens: rows of each source to learn from, and documents to watch and to judge on."""

    rows: dict[str, PackedRows]
    watched: HeldOut
    judged: HeldOut


def tokenised(config: Bitnet, corpus: SplitCorpus, tokenizer: Any) -> TokenisedText:
    """The last documents of each source are only watched during training."""
    length, rows = config.recipe.length, {}
    watched: list[str] = []
    for name, texts in corpus.train.items():
        apart = max(1, min(4, len(texts) // 20))
        watched += [text[: 8 * length] for text in texts[-apart:]]  # about two rows of each
        learned = texts[:-apart] or texts
        rows[name] = pack(encode(tokenizer, learned), length, tokenizer.bos_token_id, tokenizer.pad_token_id)
    held_out = [text for texts in corpus.held_out.values() for text in texts]
    judged = _up_to(held_out, tokenizer, config.most_judged, length)
    return TokenisedText(rows, HeldOut.of(tokenizer, watched, length), HeldOut.of(tokenizer, judged, length))


def material_of(config: Bitnet, text: TokenisedText, seed: int) -> Material:
    """Rows by the sources' weights, as many as the training needs."""
    available = sum(len(of) for of in text.rows.values())
    total = min((config.recipe.steps or available) * config.recipe.batch_rows, 4 * available)
    rows = mixed(text.rows, {name: source.weight for name, source in config.sources.items()}, total, seed)
    return Material(rows, text.watched, text.judged, ", ".join(config.sources))


def _up_to(texts: list[str], tokenizer: Any, tokens: int, length: int) -> list[str]:
    """The beginnings of every k-th text: about `tokens` tokens from as many documents as fit."""
    room = 4 * max(length, tokens // len(texts))  # characters: about four per token
    parts = [text[:room] for text in texts]
    count = sum(len(ids) for ids in encode(tokenizer, parts, eos=False))
    return parts[:: max(1, -(-count // tokens))]


def _metrics(
    quantisation: Quantisation, measurement: Measurement, divergence: Divergence, whole: int, size: int
) -> dict[str, Metric]:
    """The figures of the card; `whole` is the size in float32, `size` that of the packed folder."""
    text, original = measurement.text, quantisation.original
    metrics = text_metrics(text.bits, text.bytes_of.astype(int).tolist())
    left = retention(original.scores, measurement.scores)
    figures: dict[str, tuple[float, float | None, str]] = {
        "perplexity_ratio": (text.perplexity / original.text.perplexity, None, "to the input's"),
        "kl_to_input": (divergence.kl, divergence.kl_stderr, "nats per token, held-out documents"),
        "same_likeliest_token": (divergence.agreement, divergence.agreement_stderr, "held-out documents"),
        "packed_bytes": (float(size), None, "all files of the packed folder"),
        "ratio_to_float32": (whole / size, None, "all files of both folders, the input's weights in float32"),
    }
    if left is not None:
        figures["accuracy_above_chance_kept"] = (left.share, left.stderr, "which of four pieces follows?")
    for stage in quantisation.stages:
        if stage["stage"].startswith("post-training"):
            figures[f"perplexity_ratio {stage['stage']}"] = (stage["ppl_ratio"], None, "baseline without training")
    return {**metrics, **{name: Metric(value, error, how=how) for name, (value, error, how) in figures.items()}}


def _save(
    work: Work, quantisation: Quantisation, packed: Path, corpus: SplitCorpus, metrics: dict[str, Metric]
) -> Checkpoint:
    """The packed folder as a checkpoint, or the de-quantised model; the figures are the packed
    one's either way."""
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
