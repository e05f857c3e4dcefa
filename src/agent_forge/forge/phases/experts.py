"""Phase 7, self-guided experts: vectors over the singular values of a model, one per domain (Transformer²).

The model tests itself on the task families. Where it is right sometimes, but not always, a vector is trained by
reinforcement, and judged on held-out exercises against the model as it was and against a LoRA adapter of as many
parameters with the same rewards. The checkpoint has the weights of its input, with the experts and a report beside
them in `experts/`; with `output: folded`, one mixture for all domains is judged and folded into the weights instead.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from agent_forge.forge.checkpoint import CARD, files_of, finish, staging
from agent_forge.forge.contracts import Contract
from agent_forge.forge.corpus import source_digests
from agent_forge.forge.experts.settings import ExpertSettings
from agent_forge.forge.phases import Phase, PhaseOutcome, Work
from agent_forge.model_files import THOUGHTS


def run(work: Work) -> PhaseOutcome:
    import torch

    from agent_forge.forge.experts.bank import FOLDER, expert_file, weights_digest, write_expert
    from agent_forge.forge.experts.job import make_experts
    from agent_forge.forge.experts.report import metrics_of, write_report
    from agent_forge.forge.experts.svf import fold_vectors
    from agent_forge.forge.phases.cognate import device
    from agent_forge.inference.loading import load_model, load_tokenizer

    source = work.inputs[0].path
    model = load_model(source, dtype=torch.float32).eval().to(device())
    tokenizer = load_tokenizer(source)
    outcome = make_experts(model, tokenizer, work.config, work.seed, work.folder, work.tell)
    with staging(work.models) as place:
        copy_model(source, place)
        if outcome.folded is not None:
            plain = load_model(source)
            fold_vectors(plain, outcome.folded)
            plain.save_pretrained(place)
        else:
            base = weights_digest(place)
            for domain, vectors in outcome.experts.items():
                write_expert(expert_file(place, domain), domain, vectors, base)
            if outcome.classifier is not None:
                outcome.classifier.write(place / FOLDER / "classifier.safetensors", list(outcome.experts))
        write_report(outcome, place / FOLDER)
        checkpoint = finish(place, work.card(source_digests(work.config.sources), metrics_of(outcome)), work.models)
    return PhaseOutcome(checkpoint, outcome.gate)


def copy_model(source: Path, place: Path) -> None:
    """The files of a checkpoint without its card, experts and thoughts; the last go along as after any phase."""
    for file in files_of(source):
        name = file.relative_to(source)
        if name.parts[0] not in (CARD, "experts", THOUGHTS):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place / name)


PHASE = Phase(
    name="experts",
    version=2,
    about="Train experts for the domains that a self-test finds",
    config=ExpertSettings,
    takes=Contract(checkpoints=(1, 1), formats=("dense",), tokenizer=True),
    promises=Contract(tokenizer=True),
    run=run,
    data=lambda config: source_digests(config.sources),  # exercises come from their seeds
)
