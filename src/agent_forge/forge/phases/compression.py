"""Phase 8, final compression: the model in as few bytes as its quality allows, judged from the
folder as shipped."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from agent_forge.config import option
from agent_forge.errors import ConfigError
from agent_forge.forge.checkpoint import Checkpoint, Metric, finish, staging
from agent_forge.forge.compression.search import CompressionReport, compress
from agent_forge.forge.compression.settings import CompressSettings
from agent_forge.forge.compression.text import mixed, prepare_text
from agent_forge.forge.contracts import Contract
from agent_forge.forge.corpus import Source, SplitCorpus, read_corpus, source_digests
from agent_forge.forge.gates import NO_GAIN, PASSED, GateResult
from agent_forge.forge.phases import Phase, PhaseOutcome, Work
from agent_forge.forge.phases.specialise import refuse_seen_documents


@dataclass(frozen=True, kw_only=True)
class Compression(CompressSettings):
    """Where the calibration text comes from, beside the settings of `compress`."""

    sources: dict[str, Source]
    held_out: float = option(0.05, help="Share of the documents kept for judging", above=0, at_most=0.5)
    budget_mb: float | None = option(None, help="The budget in megabytes, instead of bytes", above=0)
    # stricter than the command's: nobody looks at the figures before the next phase
    max_increase: float = option(0.1, help="Largest increase of perplexity on held-out text, as a share", above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sources:
            raise ConfigError("name at least one source of text", where="sources")
        if self.budget is not None and self.budget_mb is not None:
            raise ConfigError("the budget is set twice", where="budget_mb", fix="Set `budget` or `budget_mb`")


def run(work: Work) -> PhaseOutcome:
    config: Compression = work.config
    base = work.inputs[0]
    for name, source in config.sources.items():
        refuse_seen_documents(base, name, source.path, source.held_out or config.held_out)
    corpus = read_corpus(config.sources, config.held_out)
    if config.budget_mb is not None:
        config = replace(config, budget=int(config.budget_mb * 1e6), budget_mb=None)
    train, held_out = mixed(corpus.train.values()), mixed(corpus.held_out.values())
    text = prepare_text(base.path, train, held_out, config.length, config.judged, work.seed, work.tell)
    with staging(work.models) as place:
        report = compress(base.path, place / "compressed", text, config, work.tell, work.seed)
        checkpoint = _save(work, report, place / "compressed", corpus) if report.accepted else None
    smaller = report.accepted and report.figures.bytes < report.bytes_before
    before, after = float(report.bytes_before), float(report.figures.bytes)
    return PhaseOutcome(checkpoint, GateResult("bytes", before, after, 0.0, PASSED if smaller else NO_GAIN))


def _save(work: Work, report: CompressionReport, folder: Path, corpus: SplitCorpus) -> Checkpoint:
    figures, before = report.figures, report.before.before
    how = "held-out documents, from the folder as it is shipped"
    metrics = {
        "bytes": Metric(float(figures.bytes), how="all files of the folder"),
        "ratio": Metric(report.bytes_before / figures.bytes, how="all files of both folders"),
        "bits_per_weight": Metric(8 * figures.bytes / report.weights, how="all files of the folder"),
        "perplexity_ratio": Metric(figures.ppl / before.perplexity, how=f"to the input's, {how}"),
        "kl_to_input": Metric(figures.kl, figures.kl_stderr, how=f"nats per token, {how}"),
    }
    if figures.bits_per_byte is not None:
        metrics["bits per byte"] = Metric(figures.bits_per_byte, how=how)
    if figures.accuracy is not None:
        question = "which of four pieces follows?"
        metrics["continuation_accuracy"] = Metric(figures.accuracy, figures.accuracy_stderr, how=question)
    notes = "; ".join(f"{stage.name}: {'passed' if stage.passed else 'failed'}" for stage in report.stages)
    return finish(folder, work.card(corpus.digests(), metrics, notes), work.models)


PHASE = Phase(
    name="compression",
    version=1,
    about="Put the model in as few bytes as its quality allows",
    config=Compression,
    takes=Contract(checkpoints=(1, 1), tokenizer=True),
    promises=Contract(),
    run=run,
    data=lambda config: source_digests(config.sources),
)
