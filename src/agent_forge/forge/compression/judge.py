"""The judge: what an artefact is worth, measured on held-out text from the folder as it would be shipped."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from agent_forge.errors import DataError
from agent_forge.forge.compression.folder import folder_bytes
from agent_forge.forge.evaluation.choices import answer_questions, continuations
from agent_forge.forge.evaluation.text import divergence, measure_text
from agent_forge.forge.training.evaluation import HeldOut


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


class Judge:
    """Compares artefacts with the original on held-out text."""

    def __init__(self, original: Any, held_out: HeldOut, batch_rows: int = 4, questions: int = 100) -> None:
        self.original, self.held_out, self.batch_rows = original, held_out, batch_rows
        self.before = measure_text(original, held_out, batch_rows)
        try:
            self.questions = continuations(held_out, questions)
        except DataError:
            self.questions = []
        self.choices = answer_questions(original, self.questions) if self.questions else None

    def of_folder(self, folder: Path) -> Figures:
        """Loads the folder as a user would, and measures that."""
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=self.original.dtype)
        return self.of_model(model.to(next(self.original.parameters()).device), folder_bytes(folder))

    @torch.no_grad()
    def of_model(self, model: Any, size: int) -> Figures:
        text = measure_text(model, self.held_out, self.batch_rows)
        away = divergence(model, self.original, self.held_out, self.batch_rows)
        quality = (text.perplexity, text.perplexity_stderr, text.bits_per_byte)
        figures = Figures(size, *quality, away.kl, away.kl_stderr, away.agreement)
        if not self.questions:
            return figures
        score = answer_questions(model, self.questions)
        return replace(figures, accuracy=score.value, accuracy_stderr=score.stderr, above_chance=score.above_chance)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


Tell = Callable[..., None]
