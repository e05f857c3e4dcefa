"""Whether thoughts help, on held-out text: the loss of every token with its thought, and with what must not do as well.

| figure | what it is |
|---|---|
| thoughts | each token predicted after a thought of its own, mixed |
| shuffled | the same with the thought of another position: what helps must depend on the text |
| zero | the same model with a mixing weight of 0 |
| pause | a model trained with learned fillers of the same length in place of thoughts |
| plain | a model trained for as many steps on the text alone |
| before | the model as it came into the phase |

All are compared on the same tokens, of which the hardest tenth are those with the highest loss by `before`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agent_forge.forge.checkpoint import Metric
from agent_forge.forge.gates import NO_GAIN, NOT_MEASURED, PASSED, GateResult
from agent_forge.forge.progress import Tell, silent, track
from agent_forge.forge.thoughts.learning import Arm, chosen_positions
from agent_forge.forge.thoughts.model import ThinkingModel
from agent_forge.forge.training.evaluation import HeldOut, ratio
from agent_forge.forge.training.packing import IGNORE, PackedRows

Figures = dict[str, np.ndarray]  # by name: nats of every judged token, always in the same order
CONTROLS = ("before", "zero", "shuffled", "pause", "plain")
METRIC = "nats per token, hardest tenth"
HARD = 0.1


def sample_rows(held_out: HeldOut, most_tokens: int) -> PackedRows:
    """Rows with about `most_tokens` targets, spread over all documents."""
    rows = held_out.rows
    each = max(1.0, float((rows.documents[:, 1:] >= 0).sum()) / len(rows))
    count = min(len(rows), max(1, round(most_tokens / each)))
    return take_rows(rows, np.unique(np.linspace(0, len(rows) - 1, count).round().astype(int)))


def take_rows(rows: PackedRows, chosen: Any) -> PackedRows:
    return PackedRows(rows.tokens[chosen], rows.documents[chosen])


@torch.no_grad()
def token_nats(
    model: ThinkingModel,
    rows: PackedRows,
    arm: Arm,
    thought_tokens: int = 0,
    batch_rows: int = 8,
    judge: ThinkingModel | None = None,
    tell: Tell = silent,
) -> Figures:
    """The loss of every token of the rows, by what the arm has to show; with a `judge`, also how it finds the thoughts.

    Thoughts are the likeliest ones, so that the figures do not depend on luck.
    """
    model.eval()
    parts: list[Figures] = []
    for start in track(range(0, len(rows), batch_rows), f"judge {arm}", tell):
        batch = rows.take(slice(start, start + batch_rows)).to(model.start.device)
        longest = int((batch.targets != IGNORE).sum(1).max())
        ids, targets = batch.inputs[:, :longest], batch.targets[:, :longest]
        real = targets != IGNORE
        known = torch.where(real, targets, 0)
        states, aside = model.read(ids)
        figures = {"zero": -model.log_probs(states, known)}
        if arm != "plain":
            positions = chosen_positions(targets, 0, 1)
            none = ids.new_zeros(*positions.shape, 0)
            for name, thoughts in _thoughts(model, aside, positions, arm, thought_tokens, real).items():
                embedded = model.embed(thoughts) if thoughts.dim() == 3 else thoughts
                after = model.follow(aside, positions, embedded, none)[1][:, :, 0]
                mixed, weight = model.mix(states, after)
                figures[name] = -model.log_probs(mixed, known)
                if name == arm:
                    figures["weight"] = weight[..., 0].expand_as(known)
                if judge is not None and name != "pause":
                    figures[f"{name} by the judge"] = _surprise(judge, ids, positions, thoughts)
        where = real.cpu()
        parts.append({name: figure.float().cpu()[where].double().numpy() for name, figure in figures.items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _thoughts(
    model: ThinkingModel, aside: Any, positions: Tensor, arm: Arm, count: int, real: Tensor
) -> dict[str, Tensor]:
    """The thoughts to read: tokens [B, P, J], or the embeddings of pauses [B, P, J, *]."""
    if arm == "pause":
        return {"pause": model.vector("pause").expand(*positions.shape, count, -1)}
    own = model.sample(aside, positions, count, temperature=0)
    others = own.clone()
    others[real] = own[real].roll(max(1, int(real.sum()) // 2), 0)  # half the batch away: mostly another document
    return {"thoughts": own, "shuffled": others}


def _surprise(judge: ThinkingModel, ids: Tensor, positions: Tensor, thoughts: Tensor) -> Tensor:
    """The nats per token, by the judge's model, of each thought as the continuation of the text: [B, P]."""
    states, aside = judge.read(ids)
    inner = judge.think(aside.after(positions), judge.embed(thoughts))
    before = torch.cat([states[:, :, None], inner[:, :, :-1]], dim=2)  # [B, P, J, D]
    return -judge.log_probs(before, thoughts).mean(-1)


@dataclass(frozen=True)
class ThoughtJudgement:
    """The figures of every seed: `of[arm]` is a list with one array of nats per seed, `before` the input's nats."""

    documents: np.ndarray  # the document of every judged token
    before: np.ndarray
    of: Mapping[str, Sequence[np.ndarray]]

    def hard(self) -> np.ndarray:
        """Which tokens are the hardest tenth: by the model before any training, so the same for all."""
        return np.asarray(self.before >= np.quantile(self.before, 1 - HARD))

    def arrays(self, name: str) -> list[np.ndarray]:
        return [self.before] if name == "before" else list(self.of[name])

    def mean(self, name: str, tokens: np.ndarray) -> float:
        return float(np.mean([nats[tokens].mean() for nats in self.arrays(name)]))

    def difference(self, name: str, tokens: np.ndarray) -> tuple[float, float]:
        """Thoughts minus a control, in nats per token, and its standard error: over documents (whose tokens are not
        independent) and over seeds (whose training is not the same)."""
        own, other = self.arrays("thoughts"), self.arrays(name)
        pairs = [one - other[seed % len(other)] for seed, one in enumerate(own)]
        of = self.documents[tokens]
        counts = np.bincount(of).astype(float)
        sums = np.bincount(of, np.mean(pairs, axis=0)[tokens])
        value, error = ratio(sums[counts > 0], counts[counts > 0])
        seeds = [pair[tokens].mean() for pair in pairs]
        spread = float(np.std(seeds, ddof=1) / math.sqrt(len(seeds))) if len(seeds) > 1 else math.nan
        return value, math.sqrt(error**2 + spread**2)

    def gate(self) -> GateResult:
        """Passes if thoughts beat every control on the hardest tenth by two standard errors, over enough seeds."""
        hard = self.hard()
        differences = {name: self.difference(name, hard) for name in CONTROLS}
        closest = max(CONTROLS, key=lambda name: differences[name][0])
        error = differences[closest][1]
        measured = all(math.isfinite(figure) for pair in differences.values() for figure in pair)
        better = measured and all(value < -2 * error for value, error in differences.values())
        verdict = NOT_MEASURED if not measured else PASSED if better else NO_GAIN
        after = self.mean("thoughts", hard)
        gate = GateResult(
            METRIC,
            self.mean("before", hard),
            after,
            error if math.isfinite(error) else None,
            verdict,
            control=self.mean(closest, hard),
        )
        return gate.of_seeds(len(self.of["thoughts"]))

    def metrics(self) -> dict[str, Metric]:
        """Every figure for the card: of each control, and of thoughts minus it, on the hardest tenth and on all."""
        metrics = {}
        for label, tokens in (("hardest tenth", self.hard()), ("all tokens", np.ones(len(self.before), dtype=bool))):
            count, seeds = int(tokens.sum()), len(self.of["thoughts"])
            how = f"{seeds} seeds, {len(np.unique(self.documents))} held-out documents"
            for name in ("thoughts", *CONTROLS):
                metrics[f"nats, {label}, {name}"] = Metric(self.mean(name, tokens), None, count, how)
            for name in CONTROLS:
                value, error = self.difference(name, tokens)
                stderr = error if math.isfinite(error) else None
                metrics[f"nats, {label}, thoughts minus {name}"] = Metric(value, stderr, count, how)
        return metrics


def coherence_metrics(figures: Figures) -> dict[str, Metric]:
    """How the model before the phase finds the thoughts: its nats per token of a thought as the text's continuation,
    and how many fewer these are than after another text. A thought that fits any text has a relevance of 0."""
    own, other = figures["thoughts by the judge"], figures["shuffled by the judge"]
    count, gap = len(own), other - own
    return {
        "thought nats per token": Metric(float(own.mean()), float(own.std() / math.sqrt(count)), count),
        "thought relevance": Metric(float(gap.mean()), float(gap.std() / math.sqrt(count)), count),
        "weight of thoughts": Metric(float(figures["weight"].mean()), n=count),
    }
