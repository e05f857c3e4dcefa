"""`quantize`: a checkpoint in, a packed folder with its card out, and a report measured on that."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from agent_forge.config import as_dict
from agent_forge.context_length import context_length
from agent_forge.errors import UsageError
from agent_forge.forge.checkpoint import (
    Card,
    Checkpoint,
    Metric,
    count_parameters,
    digest_of,
    staging,
    write_card,
)
from agent_forge.forge.compression.folder import copy_model, folder_bytes
from agent_forge.forge.corpus import SplitCorpus, read_corpus
from agent_forge.forge.evaluation.choices import ChoiceQuestion, continuations
from agent_forge.forge.evaluation.scores import retention
from agent_forge.forge.evaluation.text import Divergence, refuse_unsound
from agent_forge.forge.gates import GateResult
from agent_forge.forge.lineage import HELD_OUT, judging_share
from agent_forge.forge.phases.measure import compare, text_metrics
from agent_forge.forge.progress import Tell, silent
from agent_forge.forge.quantization.bitlinear import to_dense
from agent_forge.forge.quantization.folder import float32_bytes, write_dense, write_packed
from agent_forge.forge.quantization.gate import DemandCheck, as_gate
from agent_forge.forge.quantization.material import MaterialSize, gather
from agent_forge.forge.quantization.quantise import Measurement, Quantisation
from agent_forge.forge.quantization.settings import QuantizeSettings
from agent_forge.inference.loading import load_model, load_tokenizer
from agent_forge.model_files import TOKENIZERS

# Floating-point operations spent on judging: they bound the held-out text and the questions of a
# large model on a CPU.
JUDGING = {"cpu": 1e12, "cuda": 1e16}
MOST_JUDGED = {"cpu": 16_384, "cuda": 131_072}  # tokens
FEWEST_JUDGED = 4_096


@dataclass(frozen=True)
class QuantizeReport:
    """What lies in `out`, measured there after loading it again. Without `accepted` it is the input, unchanged."""

    out: Path
    digest: str
    accepted: bool
    gate: GateResult
    figures: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        return {"out": str(self.out), "digest": self.digest, "accepted": self.accepted, **self.figures}


def quantise_folder(
    source: Checkpoint,
    out: Path,
    settings: QuantizeSettings | None = None,
    *,
    questions: Mapping[str, Sequence[ChoiceQuestion]] | None = None,
    dense: Path | None = None,
    device: str | None = None,
    seed: int = 0,
    tell: Tell = silent,
    phase: str = "quantize",
    resume: Path | None = None,
) -> QuantizeReport:
    """Quantises `source` into the new folder `out` and returns the report.

    `questions` are asked beside those made from the held-out text; `dense` is where a de-quantised
    copy goes; `phase` is the name on the card; `resume` a folder from which a killed run continues.

    Every figure on the result was measured on `out` itself, loaded anew. If a demand is not met,
    `out` is the input unchanged and `accepted` is False. Raises UsageError if `out` exists or the
    model cannot be quantised.
    """
    settings = settings or QuantizeSettings()
    _refuse_outputs(out, dense, settings)
    # the working folders come first: if OUT cannot be written, say so before the work
    with staging(out.parent) as place, staging((dense or out).parent) as beside:
        share = judging_share(source, settings.sources, settings.held_out)
        settings = replace(settings, held_out=share)
        work, corpus = prepare(source, settings, questions or {}, device, seed, tell, resume)
        work.run()
        packed, plain = place / "packed", beside / "dense"
        write_packed(work.student, source.path, packed, settings.layout)
        measurement, divergence = work.measure_folder(packed)
        whole, data = float32_bytes(source.path), {} if corpus is None else corpus.digests()
        card = Card(phase, as_dict(settings), (source.digest,), data, seed)

        def card_for(size: int) -> Card:
            return replace(card, metrics=_metrics(work, measurement, divergence, whole, size))

        size = write_card(packed, card_for)
        checks = work.checks(measurement, whole / size)
        accepted = all(check.met for check in checks)
        work.note("packed", measurement, bytes=size, **divergence.as_dict())
        if not accepted:
            shutil.rmtree(packed)
            copy_model(source.path, packed)
            measurement, divergence = work.original, Divergence(0.0, 0.0, 1.0, 0.0)
        elif dense is not None or settings.output == "dense":
            write_dense(to_dense(work.student), source.path, plain)
            write_card(plain, lambda _: card_for(size))  # the figures are those of the packed form
        if accepted and settings.output == "dense":
            packed = plain
        packed.rename(out)
        if accepted and dense is not None:
            plain.rename(dense)
    return report(work, source.path, out, measurement, divergence, checks)


def _refuse_outputs(out: Path, dense: Path | None, settings: QuantizeSettings) -> None:
    for place in (out, dense):
        if place is not None and place.exists():
            raise UsageError("it exists already", where=str(place), fix="Name a folder that does not exist")
    if dense is None:
        return
    if dense.resolve() == out.resolve():
        raise UsageError("the de-quantised model needs a folder of its own", where=str(out))
    if settings.format.sub_norm:
        raise UsageError("layers with a sub-norm have no plain form", where=str(dense), fix="Leave out one of the two")
    if settings.output == "dense":
        raise UsageError(
            "the output is the de-quantised model already", where=str(dense), fix="Leave out one of the two"
        )


def prepare(
    source: Checkpoint,
    settings: QuantizeSettings,
    questions: Mapping[str, Sequence[ChoiceQuestion]],
    device: str | None,
    seed: int,
    tell: Tell,
    resume: Path | None = None,
) -> tuple[Quantisation, SplitCorpus | None]:
    """Loads the model, gathers what it is trained and judged on, and puts the levels in place."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device not in JUDGING or (device == "cuda" and not torch.cuda.is_available()):
        raise UsageError(f"there is no device {device!r} here", fix="Use cpu, or cuda where there is a GPU")
    share = settings.held_out or HELD_OUT
    teacher: Any = load_model(source.path, dtype=torch.float32).eval().to(device)
    if getattr(teacher, "hf_quantizer", None) is not None:
        fix = "Start from its full-precision form"
        raise UsageError("the model is quantised already", where=str(source.path), fix=fix)
    refuse_unsound(teacher, str(source.path))
    has_tokenizer = any((source.path / name).is_file() for name in TOKENIZERS)
    tokenizer: Any = load_tokenizer(source.path) if has_tokenizer else None
    recipe = settings.recipe
    steps = recipe.steps_for(teacher, device)
    judged = settings.most_judged or judged_tokens(teacher, device)
    length = min(recipe.length, context_length(teacher.config) or recipe.length)
    tell(stage="text", steps=steps)
    size = MaterialSize(steps * recipe.batch_rows, length, judged, held_out=share, seed=seed)
    corpus = read_corpus(settings.sources, share) if settings.sources else None
    weights = {name: one.weight for name, one in settings.sources.items()}
    material = gather(teacher, tokenizer, corpus, size, weights, tell)
    own = {"continuation": continuations(material.judged, settings.questions or max(64, judged // 64))}
    return Quantisation(teacher, material, settings, {**own, **questions}, seed, resume, tell), corpus


def judged_tokens(model: Any, device: str) -> int:
    """As many as the budget allows: 2 operations per weight and token."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    return int(min(MOST_JUDGED[device], max(FEWEST_JUDGED, JUDGING[device] / (2 * weights))))


def _metrics(
    work: Quantisation, measurement: Measurement, divergence: Divergence, whole: int, size: int
) -> dict[str, Metric]:
    """The figures of the card; `whole` is the size in float32, `size` that of the packed folder."""
    text, original = measurement.text, work.original
    metrics = text_metrics(text.bits, text.bytes_of.astype(int).tolist()) if text.bytes_of.all() else {}
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
    for stage in work.stages:
        if stage["stage"].startswith("post-training"):
            figures[f"perplexity_ratio {stage['stage']}"] = (stage["ppl_ratio"], None, "baseline without training")
    return {**metrics, **{name: Metric(value, error, how=how) for name, (value, error, how) in figures.items()}}


def report(
    work: Quantisation,
    source: Path,
    out: Path,
    measurement: Measurement,
    divergence: Divergence,
    checks: Sequence[DemandCheck],
) -> QuantizeReport:
    before, size, whole = folder_bytes(source), folder_bytes(out), float32_bytes(source)
    weights = sum(file.stat().st_size for file in out.glob("*.safetensors"))
    text, left = measurement.text, retention(work.original.scores, measurement.scores)
    figures = {
        "bytes_before": before,
        "bytes": size,
        "ratio": before / size,
        "bytes_float32": whole,
        "ratio_float32": whole / size,
        "bits_per_weight": 8 * weights / count_parameters(source),
        "ppl_before": work.original.text.perplexity,
        "ppl": text.perplexity,
        "ppl_stderr": text.perplexity_stderr,
        "bits_per_byte_before": work.original.text.bits_per_byte,
        "bits_per_byte": text.bits_per_byte,
        "bits_per_byte_stderr": text.bits_per_byte_stderr,
        **divergence.as_dict(),
        "accuracy_kept": None if left is None else left.share,
        "accuracy_kept_stderr": None if left is None else left.stderr,
        "gate": [check.as_dict() for check in checks],
        "judged_on": f"{work.material.about}: {int(text.tokens.sum())} tokens, {len(text.tokens)} documents",
        "layers": len(work.names),
        "stages": work.stages,
    }
    accepted = all(check.met for check in checks)
    return QuantizeReport(out, digest_of(out), accepted, _gate(work, checks), figures)


def _gate(work: Quantisation, checks: Sequence[DemandCheck]) -> GateResult:
    """The verdict in the form of every phase, from the packed model: the last one that was noted."""
    before, after = work.original.text, work.latest.text
    known = before.bits_per_byte is not None  # text that the model wrote may be known as tokens only
    error = compare(before.bits, after.bits, before.bytes_of.tolist()).stderr if known else None
    return as_gate(tuple(checks), before.bits_per_byte, after.bits_per_byte, error)
