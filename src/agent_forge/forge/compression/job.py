"""`compress` from its settings: reads the text, compresses, and leaves a folder with its card."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agent_forge.forge.checkpoint import Card, Checkpoint
from agent_forge.forge.compression.search import CompressionReport, compress
from agent_forge.forge.compression.settings import CompressSettings
from agent_forge.forge.compression.text import mixed, prepare_text
from agent_forge.forge.corpus import read_corpus
from agent_forge.forge.lineage import judging_share
from agent_forge.forge.progress import Tell, silent

MOST_MB = (
    6.0  # per source, unless it says otherwise: the text calibrates and recovers, and more would only be tokenised
)


def compress_folder(
    source: Checkpoint,
    out: Path,
    settings: CompressSettings,
    *,
    seed: int = 0,
    tell: Tell = silent,
    phase: str = "compress",
) -> CompressionReport:
    """Compresses `source` into the new folder `out` as the settings say; `phase` is the name on its card."""
    tell(stage="read text")
    share = judging_share(source, settings.sources, settings.held_out)
    sources = {name: replace(one, most_mb=one.most_mb or MOST_MB) for name, one in settings.sources.items()}
    corpus = read_corpus(sources, share)
    train, held_out = mixed(corpus.train.values()), mixed(corpus.held_out.values())
    text = prepare_text(source.path, train, held_out, settings.length, settings.judged, seed, tell)
    tell(stage="load the model")
    card = Card(phase, {}, (source.digest,), corpus.digests(), seed)
    resolved = replace(settings, held_out=share)  # on the card: later phases must not judge on what this one has read
    return compress(source.path, out, text, resolved, tell, seed, card)
