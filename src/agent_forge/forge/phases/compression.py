"""Phase 8, final compression: the model in as few bytes as its quality allows, judged from the folder as shipped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agent_forge.config import option
from agent_forge.errors import ConfigError
from agent_forge.forge.checkpoint import Checkpoint, Metric, finish, staging
from agent_forge.forge.compression.search import Report, Settings, compress
from agent_forge.forge.compression.text import mixed, prepare_text
from agent_forge.forge.compression.trials import GRIDS, USUAL
from agent_forge.forge.contracts import Contract
from agent_forge.forge.corpus import Source, SplitCorpus, read_corpus, source_digests
from agent_forge.forge.gates import NO_GAIN, PASSED, GateResult
from agent_forge.forge.phases import Phase, PhaseOutcome, Work
from agent_forge.forge.phases.specialise import refuse_seen_documents


@dataclass(frozen=True)
class Compression:
    """Where the calibration text comes from, what is asked for, and how much work may go into it."""

    sources: dict[str, Source]
    budget_mb: float | None = option(
        None, help="the whole folder may take so many megabytes; none: as few as pass", above=0
    )
    max_increase: float = option(0.1, help="by how much the perplexity on held-out text may grow", above=0)
    codecs: list[str] = option(USUAL, help=f"of {', '.join(GRIDS)}")
    recovery_steps: int = option(100, help="steps of distillation a stage; 0: none", at_least=0)
    rows: int = option(256, help="rows to calibrate on", at_least=1)
    gradient_rows: int = option(48, help="of those, with gradients", at_least=1)
    judged: int = option(64, help="held-out rows to judge on", at_least=1)
    trial_tokens: int = option(2048, help="tokens that every option of every tensor is tried on", at_least=16)
    measured: int = option(2, help="options measured for each matrix, the others inferred; 0: all", at_least=0)
    tries: int = option(5, help="sizes that are tried", at_least=1)
    batch_rows: int = option(4, help="rows at a time", at_least=1)
    length: int = option(256, help="tokens in a row", at_least=8)
    held_out: float = option(0.05, help="share of the documents kept for judging", above=0, at_most=0.5)

    def __post_init__(self) -> None:
        if not self.sources:
            raise ConfigError("name at least one source of text", where="sources")
        for name in self.codecs:
            if name not in GRIDS:
                raise ConfigError(f"there is no codec {name!r}", where="codecs", fix=f"of {', '.join(GRIDS)}")


def run(work: Work) -> PhaseOutcome:
    config: Compression = work.config
    base = work.inputs[0]
    for name, source in config.sources.items():
        refuse_seen_documents(base, name, source.path, source.held_out or config.held_out)
    corpus = read_corpus(config.sources, config.held_out)
    settings = Settings(
        budget=None if config.budget_mb is None else int(config.budget_mb * 1e6),
        max_increase=config.max_increase,
        codecs=tuple(config.codecs),
        recovery_steps=config.recovery_steps,
        calibration_rows=config.rows,
        gradient_rows=config.gradient_rows,
        trial_tokens=config.trial_tokens,
        measured=config.measured,
        batch_rows=config.batch_rows,
        length=config.length,
        tries=config.tries,
        seed=work.seed,
    )
    train, held_out = mixed(corpus.train.values()), mixed(corpus.held_out.values())
    text = prepare_text(base.path, train, held_out, config.length, config.judged, work.seed)
    with staging(work.models) as place:
        report = compress(base.path, place / "compressed", text, settings, work.tell)
        made = _save(work, report, place / "compressed", corpus) if report.accepted else None
    return PhaseOutcome(made, _gate(report))


def _gate(report: Report) -> GateResult:
    """Smaller, within the limit on perplexity. The stages' own gates are in the card."""
    verdict = PASSED if report.accepted and report.kept.bytes < report.bytes_before else NO_GAIN
    return GateResult("bytes", float(report.bytes_before), float(report.kept.bytes), 0.0, verdict)


def _save(work: Work, report: Report, folder: Any, corpus: SplitCorpus) -> Checkpoint:
    kept, before = report.kept, report.before.before
    how = "held-out documents, from the folder as it is shipped"
    metrics = {
        "bytes": Metric(float(kept.bytes), how="all files of the folder"),
        "ratio": Metric(report.bytes_before / kept.bytes, how="all files of both folders"),
        "bits_per_weight": Metric(8 * kept.bytes / report.weights, how="all files of the folder"),
        "perplexity_ratio": Metric(kept.ppl / before.perplexity, how=f"to the input's, {how}"),
        "kl_to_input": Metric(kept.kl, kept.kl_stderr, how=f"nats per token, {how}"),
    }
    if kept.bits_per_byte is not None:
        metrics["bits per byte"] = Metric(kept.bits_per_byte, how=how)
    if kept.accuracy is not None:
        metrics["continuation_accuracy"] = Metric(
            kept.accuracy, kept.accuracy_stderr, how="which of four pieces follows?"
        )
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
