"""Phase 5, curriculum: exercises from the level where the model is at home up to a target.

The assessment finds the level at which the model succeeds about 75 % of the time. From there a course climbs to the
target: a level ends when new exercises are mastered at first attempts, or at a hard wall. The result is judged on
held-out exercises at the target level against uniform sampling with as many answers, and on earlier text for
forgetting. See `agent_forge.forge.curriculum.job`.
"""

from __future__ import annotations

from agent_forge.forge.checkpoint import finish, staging
from agent_forge.forge.contracts import Contract
from agent_forge.forge.corpus import read_corpus, source_digests
from agent_forge.forge.curriculum.settings import CurriculumSettings
from agent_forge.forge.lineage import refuse_seen_documents
from agent_forge.forge.phases import Phase, PhaseOutcome, Work


def run(work: Work) -> PhaseOutcome:
    import torch

    from agent_forge.forge.curriculum.job import practise_curriculum
    from agent_forge.forge.curriculum.report import metrics_of, notes_of, write_report
    from agent_forge.forge.phases.cognate import device, refuse_long_rows
    from agent_forge.forge.phases.specialise import reading_tokenizer
    from agent_forge.inference.loading import load_model, load_tokenizer

    config: CurriculumSettings = work.config
    base = work.inputs[0]
    for name, source in config.sources.items():
        refuse_seen_documents(base, name, source.path, source.held_out or config.held_out)
    corpus = read_corpus(config.sources, config.held_out)
    model = load_model(base.path, dtype=torch.float32).eval().to(device())
    refuse_long_rows(model.config, config.length + 1)
    outcome = practise_curriculum(model, reading_tokenizer(base), corpus, config, work.seed, work.folder, work.tell)
    card = work.card(corpus.digests(), metrics_of(outcome), notes_of(outcome))
    with staging(work.models) as place:
        model.cpu().save_pretrained(place)
        load_tokenizer(base.path).save_pretrained(place)
        write_report(outcome, place / "curriculum")
        checkpoint = finish(place, card, work.models)
    return PhaseOutcome(checkpoint, outcome.gate)


PHASE = Phase(
    name="curriculum",
    version=2,
    about="Practise from the model's level up to a target",
    config=CurriculumSettings,
    takes=Contract(checkpoints=(1, 1), formats=("dense",), tokenizer=True),
    promises=Contract(tokenizer=True),
    run=run,
    data=lambda config: source_digests(config.sources),  # exercises come from their seeds
)
