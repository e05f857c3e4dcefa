"""Phase 6, tool and persona baking: what prompts do to the model goes into its weights.

First it is shown that a prompt moves the model at all; else there is nothing to bake. The checkpoint is the first
seed's, chosen before any was judged; the other seeds and the controls say how sure its figures are.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agent_forge.context_length import context_length
from agent_forge.forge.baking.behaviours import behaviours
from agent_forge.forge.baking.cycles import BakedTurn, Baseline, Cycles
from agent_forge.forge.baking.settings import Baking
from agent_forge.forge.checkpoint import Checkpoint, Metric, finish, staging
from agent_forge.forge.contracts import Contract
from agent_forge.forge.corpus import read_corpus, source_digests
from agent_forge.forge.evaluation.text import measure_text
from agent_forge.forge.gates import NO_GAIN, PASSED, GateResult
from agent_forge.forge.lineage import judging_share
from agent_forge.forge.phases import Phase, PhaseOutcome, Work
from agent_forge.forge.phases.cognate import device
from agent_forge.forge.phases.specialise import reading_tokenizer
from agent_forge.forge.training import HeldOut
from agent_forge.inference.loading import load_model, load_tokenizer

KEPT = "share of the prompted gain kept without the prompt"
NOTHING = "nothing to bake: no prompt moves the model"
REPORT = "baking.json"
TEXT_TOKENS = 256  # per row of unrelated text


def run(work: Work) -> PhaseOutcome:
    study = BakingStudy.of(work)
    for number in range(work.config.seeds):
        study.add_seed(number)
    return PhaseOutcome(save(work, study.order, study.metrics(), study.report()), study.gate())


@dataclass
class BakingStudy:
    """The behaviours before anything is baked, and the figures of the seeds so far."""

    work: Work
    baselines: list[Baseline]
    cycles: Cycles
    perplexity: float  # of unrelated text
    arms: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {"baked": [], "control": []})
    order: list[BakedTurn] = field(default_factory=list)  # the first seed's

    @staticmethod
    def of(work: Work) -> BakingStudy:
        config: Baking = work.config
        base = work.inputs[0]
        tokenizer, model = reading_tokenizer(base), begin(base)
        corpus = read_corpus(config.text, judging_share(base, config.text, None))
        texts = [text for part in corpus.held_out.values() for text in part][: config.documents]
        text = HeldOut.of(tokenizer, texts, min(TEXT_TOKENS, (context_length(model.config) or TEXT_TOKENS) - 1))
        perplexity = measure_text(model, text).perplexity
        baselines = [
            Baseline.of(model, tokenizer, behaviour, config, work.seed)
            for behaviour in behaviours(model, tokenizer, config, work.seed)
        ]
        for each in baselines:
            work.tell(stage=f"baseline {each.behaviour.name}", **each.as_dict())
        cycles = Cycles(tokenizer, [each for each in baselines if each.moves], config, text)
        return BakingStudy(work, baselines, cycles, perplexity)

    def add_seed(self, number: int) -> None:
        """Bakes, and trains the control, with one more seed; nothing where no prompt moves the model."""
        if not self.cycles.baselines:
            return
        turns, figures = run_seed(self.work, self.cycles, number)
        self.order = self.order or turns
        for arm, judged in figures.items():
            self.arms[arm].append(judged)

    def metrics(self) -> dict[str, Metric]:
        return figures_of(self.baselines, self.perplexity, self.arms)

    def gate(self) -> GateResult:
        return verdict(self.cycles.baselines, self.metrics(), self.work.config)

    def report(self) -> dict[str, Any]:
        return {
            "baselines": {each.behaviour.name: each.as_dict() for each in self.baselines},
            "order": [asdict(turn) for turn in self.order],
            "seeds": self.arms,
            "perplexity": self.perplexity,
            "gate": self.gate().as_dict(),
        }


def begin(base: Checkpoint) -> Any:
    return load_model(base.path, dtype=torch.float32).to(device()).eval()


def run_seed(work: Work, cycles: Cycles, number: int) -> tuple[list[BakedTurn], dict[str, dict[str, Any]]]:
    """Bakes once and trains its control. A finished arm is read from its file."""
    folder, seed = work.folder / f"seed-{number}", work.seed + 10_000 * number
    turns: list[BakedTurn] = []
    figures = {}
    for arm in ("baked", "control"):
        file = folder / f"{arm}.json"
        if not file.is_file() or arm == "baked":
            model = begin(work.inputs[0])
            if arm == "baked":
                turns = cycles.run(model, folder / arm, seed, work.tell)
            else:
                cycles.control(model, turns, folder / arm, folder / "baked", seed, work.tell)
            if not file.is_file():
                judged = cycles.judge(model)
                work.tell(stage=f"seed {number} {arm}", **{k: v for k, v in judged.items() if k == "perplexity"})
                file.write_text(json.dumps(judged), encoding="utf-8")
        figures[arm] = json.loads(file.read_text(encoding="utf-8"))
    return turns, figures


def figures_of(
    baselines: Sequence[Baseline], perplexity: float, arms: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, Metric]:
    """Every figure, its standard error over questions before baking and over seeds after it."""
    metrics: dict[str, Metric] = {}
    for each in baselines:
        name, n = each.behaviour.name, len(each.plain)
        metrics[f"{name}_kl"] = Metric(each.divergence.kl, each.divergence.kl_stderr, n, "nats per answer token")
        for state, points in (("plain", each.plain), ("prompted", each.prompted)):
            error = float(points.std(ddof=1) / math.sqrt(n))
            metrics[f"{name}_score_{state}"] = Metric(float(points.mean()), error, n, each.behaviour.how)
        for arm, seeds in arms.items():
            if each.moves and seeds:
                scores, kls = (np.array([seed[name][key] for seed in seeds]) for key in ("score", "kl"))
                metrics[f"{name}_score_{arm}"] = _over_seeds(scores, each.behaviour.how)
                metrics[f"{name}_kept_{arm}"] = _over_seeds((scores - each.plain.mean()) / each.gain, KEPT)
                closed = 1 - kls / each.divergence.kl
                metrics[f"{name}_kl_closed_{arm}"] = _over_seeds(closed, "fraction of the divergence that is gone")
    for arm, seeds in arms.items():
        if seeds:
            forgotten = np.array([seed["perplexity"] for seed in seeds]) / perplexity - 1
            metrics[f"forgotten_{arm}"] = _over_seeds(forgotten, "increase of perplexity on unrelated text")
    return metrics


def _over_seeds(values: np.ndarray, how: str) -> Metric:
    error = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None
    return Metric(float(values.mean()), error, len(values), f"{how}; over seeds")


def verdict(moving: Sequence[Baseline], metrics: Mapping[str, Metric], config: Baking) -> GateResult:
    """Passes if, over enough seeds, every behaviour keeps enough of its gain and little is forgotten; the worst
    behaviour is shown."""
    if not moving:
        return GateResult(NOTHING, None, None, None, NO_GAIN)
    kept = {each.behaviour.name: metrics[f"{each.behaviour.name}_kept_baked"] for each in moving}
    worst = min(kept, key=lambda name: kept[name].value)
    enough = kept[worst].value >= config.least_kept
    little = metrics["forgotten_baked"].value <= config.most_forgotten
    control = metrics[f"{worst}_kept_control"].value
    passed = PASSED if enough and little else NO_GAIN
    gate = GateResult(f"{KEPT} ({worst})", 0.0, kept[worst].value, kept[worst].stderr, passed, control)
    return gate.of_seeds(kept[worst].n or 0)


def save(
    work: Work, order: Sequence[BakedTurn], metrics: Mapping[str, Metric], report: Mapping[str, Any]
) -> Checkpoint:
    """The first seed's model, its adapters in the order of their bakes as PEFT's files, and the report."""
    from agent_forge.forge.adapters import load_adapter, merge_adapter

    base = work.inputs[0]
    model = load_model(base.path, dtype=torch.float32)
    names: list[str] = []
    with staging(work.models) as place:
        for number, turn in enumerate(order, 1):
            for bake in turn.bakes:
                source = work.folder / f"seed-0/baked/turn-{number}-{turn.cycle}/round-{bake.round}/adapter"
                name = f"{len(names) + 1}-{turn.cycle}"
                shutil.copytree(source, place / "adapters" / name)
                load_adapter(model, source)
                merge_adapter(model)
                names.append(name)
        model.save_pretrained(place)
        load_tokenizer(base.path).save_pretrained(place)
        (place / REPORT).write_text(json.dumps(report, indent=1, sort_keys=True), encoding="utf-8")
        notes = f"Baked in this order: {', '.join(names)}." if names else f"{NOTHING}."
        return finish(place, work.card(data_digests(work.config), metrics, notes), work.models)


def data_digests(config: Baking) -> dict[str, str]:
    """The unrelated text, and the cases of the tool cycle where they come from a folder."""
    digests = source_digests(config.text)
    if config.data is not None:
        from agent_forge.files import file_digest

        files = sorted(Path(config.data).expanduser().rglob("simple_python*"))
        digests["bfcl"] = "-".join(file_digest(file)[:16] for file in files)
    return digests


PHASE = Phase(
    name="baking",
    version=2,
    about="Bake tool prompts and a persona into the weights",
    config=Baking,
    takes=Contract(checkpoints=(1, 1), formats=("dense",), tokenizer=True),
    promises=Contract(tokenizer=True),
    run=run,
    data=data_digests,
)
