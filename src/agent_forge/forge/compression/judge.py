"""What an artefact is worth, measured on held-out text from the folder as it would be shipped."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agent_forge.errors import DataError
from agent_forge.forge.compression.folder import folder_bytes
from agent_forge.forge.evaluation.choices import answer_questions, continuations
from agent_forge.forge.evaluation.text import TextScore, compare, finite_or_none, measure_goals
from agent_forge.forge.progress import Tell, silent
from agent_forge.forge.training.evaluation import HeldOut, ratio
from agent_forge.inference.loading import load_model


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
        return {n: finite_or_none(v) if isinstance(v, float) else v for n, v in asdict(self).items()}


@dataclass(frozen=True)
class CompressionStage:
    """One attempt of the search: what was tried, what came out, and whether it passed both gates."""

    name: str
    figures: Figures
    limit_ppl: float
    budget: int | None
    seconds: float
    codecs: Mapping[str, int] = field(default_factory=dict)  # number of tensors by codec

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


class ArtefactJudge:
    """Compares artefacts with the original on held-out text."""

    def __init__(
        self, original: Any, held_out: HeldOut, batch_rows: int = 4, questions: int = 100, tell: Tell = silent
    ) -> None:
        self.original, self.held_out, self.batch_rows, self.tell = original, held_out, batch_rows, tell
        self.before, self.goals = measure_goals(original, held_out, batch_rows, "original", tell)
        try:
            self.questions = continuations(held_out, questions) if questions else []
        except DataError:  # too few documents: the accuracy is then missing
            self.questions = []
        self.choices = answer_questions(original, self.questions, tell=tell) if self.questions else None

    def of_folder(self, folder: Path, stage: str = "judge") -> Figures:
        """Loads the folder as a user would, and measures that."""
        model = load_model(folder, dtype=self.original.dtype)
        return self.of_model(model.to(next(self.original.parameters()).device), folder_bytes(folder), stage)

    def of_model(self, model: Any, size: int, stage: str = "judge") -> Figures:
        comparison = compare(model.eval(), self.goals, self.held_out, self.batch_rows, stage, self.tell)
        answers = answer_questions(model, self.questions, tell=self.tell) if self.questions else None
        text, away = comparison.text, comparison.divergence
        return Figures(
            bytes=size,
            ppl=text.perplexity,
            ppl_stderr=text.perplexity_stderr,
            bits_per_byte=text.bits_per_byte,
            kl=away.kl,
            kl_stderr=away.kl_stderr,
            agreement=away.agreement,
            accuracy=None if answers is None else answers.value,
            accuracy_stderr=None if answers is None else answers.stderr,
            above_chance=None if answers is None else answers.above_chance,
            ppl_ratio_stderr=self._ratio_error(text),
        )

    def of_original(self, size: int) -> Figures:
        """The original's own figures, for a folder of so many bytes."""
        score, choices = self.before, self.choices
        answers = () if choices is None else (choices.value, choices.stderr, choices.above_chance)
        quality = (score.perplexity, score.perplexity_stderr, score.bits_per_byte)
        return Figures(size, *quality, 0.0, None, 1.0, *answers)

    def _ratio_error(self, text: TextScore) -> float | None:
        """Of the perplexity over the original's, document by document: most of what differs between
        documents is the same for both, and cancels."""
        more, error = ratio(text.nats - self.before.nats, text.tokens)
        return finite_or_none(math.exp(min(more, 700.0)) * error)
