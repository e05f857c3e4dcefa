"""The judge: what an artefact is worth, measured on held-out text from the folder as it would be shipped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

from agent_forge.errors import DataError
from agent_forge.forge.compression.folder import folder_bytes
from agent_forge.forge.evaluation.choices import answer_questions, continuations
from agent_forge.forge.evaluation.text import TextScore
from agent_forge.forge.training.evaluation import HeldOut, ratio
from agent_forge.forge.training.packing import IGNORE, Batch


@dataclass(frozen=True)
class Figures:
    """Size and quality of one artefact. The divergence is KL(original || artefact), in nats per token."""

    bytes: int
    ppl: float
    ppl_stderr: float | None
    bits_per_byte: float | None
    kl: float
    kl_stderr: float | None
    agreement: float
    accuracy: float | None = None  # which of four pieces follows? None: too few documents to ask
    accuracy_stderr: float | None = None
    above_chance: float | None = None  # 0 is guessing, 1 perfect
    ppl_ratio_stderr: float | None = None  # of ppl over the original's, over documents

    def as_dict(self) -> dict[str, Any]:
        return {name: _finite(value) for name, value in asdict(self).items()}


@dataclass(frozen=True)
class Stage:
    """One step of the search: what was tried, what came out, and whether it passed both gates."""

    name: str
    figures: Figures
    limit_ppl: float
    budget: int | None
    seconds: float
    codecs: Mapping[str, int] = field(default_factory=dict)  # tensors by codec

    @property
    def passed(self) -> bool:
        return self.good and self.fits

    @property
    def good(self) -> bool:
        return self.figures.ppl <= self.limit_ppl

    @property
    def fits(self) -> bool:
        return self.budget is None or self.figures.bytes <= self.budget

    def as_dict(self) -> dict[str, Any]:
        return {
            "stage": self.name,
            **self.figures.as_dict(),
            "limit_ppl": self.limit_ppl,
            "good_enough": self.good,
            "within_budget": self.fits,
            "codecs": dict(self.codecs),
            "seconds": round(self.seconds, 2),
        }


@dataclass(frozen=True)
class Goal:
    """What the original says of a batch: logits (half of float32's bits: there are gigabytes of them), and the
    likeliest tokens."""

    logits: torch.Tensor
    likeliest: torch.Tensor


class Judge:
    """Compares artefacts with the original on held-out text."""

    def __init__(self, original: Any, held_out: HeldOut, batch_rows: int = 4, questions: int = 100) -> None:
        self.original, self.held_out, self.batch_rows = original, held_out, batch_rows
        self.goals: list[Goal] = []  # every artefact is compared with them
        self.before, _ = self._compared(self._logits(original, keep=True))
        try:
            self.questions = continuations(held_out, questions) if questions else []
        except DataError:
            self.questions = []
        self.choices = answer_questions(original, self.questions) if self.questions else None

    def of_folder(self, folder: Path) -> Figures:
        """Loads the folder as a user would, and measures that."""
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=self.original.dtype)
        return self.of_model(model.to(next(self.original.parameters()).device), folder_bytes(folder))

    def of_model(self, model: Any, size: int) -> Figures:
        text, kl = self._compared(self._logits(model.eval()))
        away, error = ratio(kl, text.tokens)
        quality = (text.perplexity, text.perplexity_stderr, text.bits_per_byte)
        figures = Figures(size, *quality, max(0.0, away), _or_none(error), text.accuracy,
                          ppl_ratio_stderr=self._ratio_error(text))  # fmt: skip
        if not self.questions:
            return figures
        score = answer_questions(model, self.questions)
        return replace(figures, accuracy=score.value, accuracy_stderr=score.stderr, above_chance=score.above_chance)

    def _ratio_error(self, text: TextScore) -> float | None:
        """Of the perplexity against the original's, document by document: most of what differs between documents
        is the same for both, and cancels."""
        more, error = ratio(text.nats - self.before.nats, text.tokens)
        return _or_none(math.exp(min(more, 700.0)) * error)

    def _compared(self, logits: Iterator[torch.Tensor]) -> tuple[TextScore, np.ndarray]:
        """By document: nats, how often the original's likeliest token was found too (as hits), and the divergence."""
        count = len(self.held_out.bytes_of)
        sums, tokens = np.zeros((3, count)), np.zeros(count)
        for number, (batch, mine) in enumerate(zip(self._batches(), logits, strict=True)):
            kept = self.goals[number]
            real, theirs = batch.targets != IGNORE, kept.logits.to(mine.device).float()
            where = batch.documents[real].numpy()
            losses = F.cross_entropy(mine, batch.targets[real].to(mine.device), reduction="none")
            values = (losses, mine.argmax(-1) == kept.likeliest.to(mine.device), _divergence(theirs, mine))
            sums += [np.bincount(where, value.double().cpu().numpy(), count) for value in values]
            tokens += np.bincount(where, minlength=count)
        nats, same, kl = sums
        return TextScore(nats, same, tokens, np.array(self.held_out.bytes_of, dtype=float)), kl

    def _batches(self) -> Iterator[Batch]:
        for start in range(0, len(self.held_out.rows), self.batch_rows):
            yield self.held_out.rows.take(slice(start, start + self.batch_rows))

    @torch.no_grad()
    def _logits(self, model: Any, keep: bool = False) -> Iterator[torch.Tensor]:
        device = next(model.parameters()).device
        for batch in self._batches():
            logits = model(input_ids=batch.inputs.to(device), use_cache=False).logits
            found = logits[(batch.targets != IGNORE).to(device)].float()
            if keep:
                self.goals.append(Goal(found.half().cpu(), found.argmax(-1).cpu()))
            yield found


def _divergence(goal: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    told = F.log_softmax(goal, dim=-1)
    return (told.exp() * (told - F.log_softmax(logits, dim=-1))).sum(-1)


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


Tell = Callable[..., None]
