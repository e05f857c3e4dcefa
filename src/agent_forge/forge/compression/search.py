"""`compress`: the smallest model that is still good enough, or the best one within a byte budget.

    calibrate -> try every codec on every matrix -> allocate bytes -> write, load, measure -> distil -> measure -> ...

Every stage is written as the folder that would be shipped, loaded from there, and judged on
held-out text. What fails is thrown away, and OUT ends up with the last artefact that passed: a
failed stage costs only its time.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agent_forge.config import as_dict
from agent_forge.errors import UsageError
from agent_forge.forge.checkpoint import Card, Metric, digest_of, write_card
from agent_forge.forge.compression.allocation import Allocation, allocate, worthwhile
from agent_forge.forge.compression.codecs import raw
from agent_forge.forge.compression.container import Encoded, pack
from agent_forge.forge.compression.feedback import Cost
from agent_forge.forge.compression.folder import (
    copy_model,
    folder_bytes,
    write_config,
    write_tokenizer,
    write_weights,
)
from agent_forge.forge.compression.judge import ArtefactJudge, CompressionStage, Figures
from agent_forge.forge.compression.loading import METHOD
from agent_forge.forge.compression.recovery import recover
from agent_forge.forge.compression.sensitivity import measure_costs
from agent_forge.forge.compression.settings import CompressSettings
from agent_forge.forge.compression.text import Text
from agent_forge.forge.compression.trials import ReferencePredictions, Trial, plain_tensors, run_trials
from agent_forge.forge.evaluation.text import refuse_unsound
from agent_forge.forge.progress import Tell, silent
from agent_forge.forge.training.packing import PackedRows
from agent_forge.inference.loading import load_model

CLOSE = 0.97  # sizes whose ratio is above this are not told apart
RECOVERED = 0.88  # share of the size that passes without recovery: tried with it
PRICE = 0.8  # of what a byte was worth: what a bit costs at the start of recovery, which then holds the size
TIGHTER = (0.0, 0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2)  # wider dead zones, tried in turn until the codes fit
STUDENT_BITS = 1.0
STUDENT = "below about 1 bit per weight, distil a smaller student instead"
LONG_NAME = "recovered 0.123 MB: "
LONG_FIGURES = Figures(10**10, *(1e9 / 7,) * 9, None)  # a card with these is longer than any
MORE_TRIES = 6  # stages beside those of the search over sizes: the budget itself, and recovery
CARD_SPARE = 256  # bytes: what the files say of themselves (architecture, tokenizer)
HEADER = 27  # bytes by which an entry of the weights' header may grow: three numbers of up to ten digits


@dataclass(frozen=True)
class CompressionReport:
    """The result. `accepted` is True only for an artefact that passed every gate."""

    bytes_before: int
    weights: int
    before: ArtefactJudge
    figures: Figures
    accepted: bool
    stages: Sequence[CompressionStage]
    least_passing: int | None
    reason: str
    out: Path
    digest: str

    def as_dict(self) -> dict[str, Any]:
        figures, before = self.figures, self.before.before
        choices = self.before.choices
        return {
            "out": str(self.out),
            "digest": self.digest,
            "bytes_before": self.bytes_before,
            "bytes": figures.bytes,
            "ratio": self.bytes_before / figures.bytes,
            "ratio_to_fp32_weights": 4 * self.weights / figures.bytes,
            "bits_per_weight": 8 * figures.bytes / self.weights,
            "ppl_before": before.perplexity,
            "ppl": figures.ppl,
            "ppl_ratio": figures.ppl / before.perplexity,
            "ppl_ratio_stderr": figures.ppl_ratio_stderr,
            "bits_per_byte_before": before.bits_per_byte,
            "bits_per_byte": figures.bits_per_byte,
            "kl": figures.kl,
            "kl_stderr": figures.kl_stderr,
            "agreement": figures.agreement,
            "accuracy_before": None if choices is None else choices.value,
            "accuracy": figures.accuracy,
            "accuracy_stderr": figures.accuracy_stderr,
            "above_chance_before": None if choices is None else choices.above_chance,
            "above_chance": figures.above_chance,
            "accepted": self.accepted,
            "least_bytes_that_passed": self.least_passing,
            "reason": self.reason,
            "stages": [stage.as_dict() for stage in self.stages],
        }


class Compressor:
    """One model with everything that is measured on it: costs, trials, and the stages so far."""

    def __init__(
        self,
        source: Path,
        text: Text,
        settings: CompressSettings,
        tell: Tell = silent,
        original: Any = None,
        seed: int = 0,
        card: Card | None = None,
    ) -> None:
        self.source, self.text, self.settings, self.tell, self.seed = source, text, settings, tell, seed
        self.effort = settings.effort(source)
        resolved = as_dict(replace(settings, **asdict(self.effort)))
        self.card = replace(card or Card("compress", {}, seed=seed), config=resolved)
        torch.manual_seed(seed)
        self.model = load_original(source)
        self.weights = sum(weight.numel() for weight in self.model.parameters())
        self.original = self.model if original is None else original  # of a student: its teacher
        self.judge = ArtefactJudge(self.original, text.held_out, self.effort.batch_rows, settings.questions, tell)
        self.limit = (1 + settings.max_increase) * self.judge.before.perplexity
        self.stages: list[CompressionStage] = []
        self.trials: dict[str, list[Trial]] = {}
        self.plain: dict[str, Encoded] = {}
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        state: dict[str, Tensor] = self.model.state_dict()
        self.buffers = {name: tensor.cpu() for name, tensor in state.items() if name not in parameters}

    def calibrate(self) -> None:
        """Measures what errors cost, and tries every codec on every matrix."""
        effort, rows = self.effort, self.text.rows
        first = PackedRows(rows.tokens[: effort.rows], rows.documents[: effort.rows])
        costs = measure_costs(self.model, first, effort.batch_rows, self.seed, rows, effort.gradient_rows, self.tell)
        # options are tried on other rows: errors must not hide in the calibration text
        start = min(effort.rows, len(rows) - 1)
        others = PackedRows(rows.tokens[start:], rows.documents[start:])
        reference = ReferencePredictions(self.model, others, effort.trial_tokens)
        self.trials = run_trials(self.model, costs, reference, self.settings.codecs, effort.measured, self.tell)
        self.plain = {name: raw.encode(tensor, Cost()) for name, tensor in plain_tensors(self.model).items()}

    def plain_bytes(self) -> int:
        """What gains, biases and other small tensors take."""
        return sum(encoded.size() for encoded in self.plain.values())

    def overhead(self) -> int:
        """Bytes of everything but the matrices: configuration, tokenizer, small tensors, headers."""
        entries = dict.fromkeys((*self.trials, *self.plain), b"")
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_config(self.source, folder)
            self._write_tokenizer(folder)
            write_weights(folder, entries, self.buffers)
            others = HEADER * len(entries) + 8 + self.plain_bytes()  # 8: alignment
            stages = [self.stage_of(LONG_NAME, LONG_FIGURES)] * (self.settings.tries + MORE_TRIES)
            return len(self.card_of(LONG_FIGURES, stages).to_json()) + CARD_SPARE + folder_bytes(folder) + others

    def bounds(self) -> tuple[int, int]:
        """Bytes of the matrices at their smallest and at their largest worthwhile options."""
        hulls = [worthwhile([trial.option for trial in trials]) for trials in self.trials.values()]
        return sum(hull[0].bytes for hull in hulls), sum(hull[-1].bytes for hull in hulls)

    def allocated(self, room: int) -> Allocation | None:
        return allocate({name: [trial.option for trial in trials] for name, trials in self.trials.items()}, room)

    def encoded(self, allocation: Allocation) -> dict[str, Encoded]:
        chosen = {
            name: next(trial.encoded for trial in self.trials[name] if trial.option is option)
            for name, option in allocation.chosen.items()
        }
        return {**chosen, **self.plain}

    def write(self, folder: Path, tensors: Mapping[str, Encoded]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_config(self.source, folder)
        self._write_tokenizer(folder)
        write_weights(folder, {name: pack(encoded) for name, encoded in tensors.items()}, self.buffers)

    def _write_tokenizer(self, folder: Path) -> None:
        for name, data in self._tokenizer.items():
            (folder / name).write_bytes(data)

    @cached_property
    def _tokenizer(self) -> dict[str, bytes]:
        """The tokenizer's files. Packing it and reading the samples with it takes long, and no stage changes it."""
        with tempfile.TemporaryDirectory() as name:
            write_tokenizer(self.source, Path(name), self.text.samples)
            return {file.name: file.read_bytes() for file in Path(name).iterdir()}

    def stage(self, name: str, folder: Path, tensors: Mapping[str, Encoded]) -> CompressionStage:
        """Writes, loads, measures; the figures are those of the folder, its card included."""
        self.tell(stage=f"evaluate {name}")
        start = time.perf_counter()
        self.write(folder, tensors)
        figures = self.judge.of_folder(folder, name)

        def card_for(size: int) -> Card:
            measured = replace(figures, bytes=size)
            return self.card_of(measured, [*self.stages, self.stage_of(name, measured)])

        figures = replace(figures, bytes=write_card(folder, card_for))
        kinds = Counter(encoded.codec for encoded in tensors.values())
        stage = replace(self.stage_of(name, figures), seconds=time.perf_counter() - start, codecs=kinds)
        self.stages.append(stage)
        self.tell(stage=name, bytes=figures.bytes, ppl=figures.ppl, kl=figures.kl, passed=stage.passed)
        return stage

    def stage_of(self, name: str, figures: Figures) -> CompressionStage:
        return CompressionStage(name, figures, self.limit, self.settings.most_bytes, 0.0)

    def card_of(self, figures: Figures, stages: Sequence[CompressionStage]) -> Card:
        """The card of an artefact: its figures, and the stages up to it."""
        how = "held-out documents, from the folder as it is shipped"
        before, all_files = folder_bytes(self.source), "all files of the folder"
        metrics = {
            "bytes": Metric(float(figures.bytes), how=all_files),
            "ratio": Metric(before / figures.bytes, how="all files of both folders"),
            "bits_per_weight": Metric(8 * figures.bytes / self.weights, how=all_files),
            "perplexity_ratio": Metric(figures.ppl / self.judge.before.perplexity, how=f"to the input's, {how}"),
            "kl_to_input": Metric(figures.kl, figures.kl_stderr, how=f"nats per token, {how}"),
        }
        if figures.bits_per_byte is not None:
            metrics["bits per byte"] = Metric(figures.bits_per_byte, how=how)
        if figures.accuracy is not None:
            question = "which of four pieces follows?"
            metrics["continuation_accuracy"] = Metric(figures.accuracy, figures.accuracy_stderr, how=question)
        notes = "; ".join(f"{stage.name}: {'passed' if stage.passed else 'failed'}" for stage in stages)
        return replace(self.card, metrics=metrics, notes=notes)

    def recovered(self, tensors: Mapping[str, Encoded], price: float, room: int) -> dict[str, Encoded]:
        """The tensors after a short distillation, within `room` bytes. `price` is what a byte was
        worth in loss."""
        effort = self.effort
        latents = recover(
            self.original, self.model, tensors, self.text.rows, effort.recovery_steps,
            batch_rows=effort.batch_rows, lr=self.settings.recovery_lr, price=PRICE * price, seed=self.seed,
            tell=self.tell,
        )  # fmt: skip
        for tighter in TIGHTER:
            encoded = {name: latent.encoded(tighter) for name, latent in latents.items()}
            if sum(each.size() for each in encoded.values()) <= room:
                break
        return encoded


def load_original(source: Path) -> Any:
    """The model in float32 on the device at hand; a packed one is unpacked first."""
    model = load_model(source, dtype=torch.float32)
    if getattr(model, "is_quantized", False) and getattr(model, "quantization_method", "") != METHOD:
        model = model.dequantize(torch.float32)
    refuse_unsound(model, str(source))
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


@dataclass
class SizeSearch:
    """The search over sizes: the best artefact so far, and its folder."""

    compressor: Compressor
    work: Path
    overhead: int  # bytes of everything but the matrices
    best: CompressionStage | None = None
    least: int | None = None  # bytes that passed the gate on quality
    growth: list[tuple[int, float]] = field(default_factory=list)  # size, and logarithm of the perplexity's ratio

    @property
    def folder(self) -> Path:
        """Where the best artefact is."""
        return self.work / "best"

    def explore(self) -> None:
        """Tries the budget, with recovery. Where that fails, and without a budget: finds the least
        size that passes as it comes from the codecs, then tries smaller ones with recovery, which
        takes most of the time."""
        settings = self.compressor.settings
        least, most = (self.overhead + size for size in self.compressor.bounds())
        target = least
        if settings.most_bytes is not None:
            target = min(settings.most_bytes, most)
            if target >= least and self.attempt(target, recover=True):
                return
        if not self.attempt(most):
            return
        low, high = max(target, least), most
        while len(self.growth) < settings.tries and low < CLOSE * high:
            middle = self.guess(low, high)
            low, high = (low, middle) if self.attempt(middle) else (middle, high)
        if self.compressor.effort.recovery_steps:
            self._recover_smaller(max(target, least), high)

    def _recover_smaller(self, least: int, passed: int) -> None:
        """With recovery a smaller artefact may pass: a step down, then another, or half a step back up."""
        first = max(least, int(RECOVERED * passed))
        second = RECOVERED**2 if self.attempt(first, recover=True) else RECOVERED**0.5
        if max(least, int(second * passed)) != first:
            self.attempt(max(least, int(second * passed)), recover=True)

    def attempt(self, total: int, recover: bool = False) -> bool:
        """An artefact of at most `total` bytes, as it comes from the codecs, then after recovery.
        True if one passed the gate on quality; whether it is within the budget is decided at the
        end."""
        compressor = self.compressor
        allocation = compressor.allocated(total - self.overhead)
        if allocation is None:
            return False
        tensors = compressor.encoded(allocation)
        size = f"{total / 1e6:.3g} MB"
        passed = self._judge(f"codecs {size}", tensors)
        ratio = compressor.stages[-1].figures.ppl / compressor.judge.before.perplexity
        self.growth.append((total, max(1e-9, math.log(ratio))))
        if recover and compressor.effort.recovery_steps:
            room = total - self.overhead + compressor.plain_bytes()
            passed = self._judge(f"recovered {size}", compressor.recovered(tensors, allocation.price, room)) or passed
        return passed

    def guess(self, low: int, high: int) -> int:
        """Where between a size that failed and one that passed the gate should lie: the logarithm
        of the perplexity's ratio falls about exponentially with the size. Not too close to either
        end, so that the two converge."""
        points = sorted(self.growth)
        if len(points) < 2:
            return int(math.sqrt(low * high))
        sizes, growth = np.array([size for size, _ in points]), np.log([more for _, more in points])
        order = np.argsort(growth)
        limit = math.log(max(1e-9, math.log1p(self.compressor.settings.max_increase)))
        middle = float(np.interp(limit, growth[order], sizes[order]))
        return int(np.clip(middle, low + 0.15 * (high - low), high - 0.1 * (high - low)))

    def _judge(self, name: str, tensors: Mapping[str, Encoded]) -> bool:
        folder = self.work / f"{len(self.compressor.stages)}"
        stage = self.compressor.stage(name, folder, tensors)
        if stage.good:
            self.least = min(stage.figures.bytes, self.least or stage.figures.bytes)
        if stage.good and (self.best is None or _better(stage, self.best)):
            if self.folder.exists():
                shutil.rmtree(self.folder)
            folder.rename(self.folder)
            self.best = stage
        else:
            shutil.rmtree(folder)
        return stage.good

    def finish(self, out: Path) -> CompressionReport:
        """Moves the best artefact, or the original, to `out`."""
        compressor = self.compressor
        accepted = self.best is not None and self.best.passed
        if self.best is None:
            self.folder.mkdir()
            copy_model(compressor.source, self.folder)
            figures = compressor.judge.of_original(folder_bytes(self.folder))
        else:
            figures = self.best.figures
        if out.exists():
            out.rmdir()
        self.folder.rename(out)
        before, stages = folder_bytes(compressor.source), compressor.stages
        reason = self._reason(accepted, figures)
        return CompressionReport(
            before,
            compressor.weights,
            compressor.judge,
            figures,
            accepted,
            stages,
            self.least,
            reason,
            out,
            digest_of(out),
        )

    def _reason(self, accepted: bool, figures: Figures) -> str:
        if accepted:
            return f"passed: perplexity {figures.ppl:.4g}, the limit is {self.compressor.limit:.4g}"
        if self.least is None:
            return "no artefact passed the gate on quality: OUT is the original"
        budget = self.compressor.settings.most_bytes or 0
        text = f"the budget of {budget:,} bytes was not reached: the least size that passed is {self.least:,} bytes"
        return f"{text}; {STUDENT}" if 8 * budget / self.compressor.weights < STUDENT_BITS else text


def _better(new: CompressionStage, old: CompressionStage) -> bool:
    """Within the budget beats beyond it; within a budget the better model wins; otherwise the smaller one."""
    if new.fits != old.fits:
        return new.fits
    if new.budget is not None and new.fits:
        return new.figures.ppl < old.figures.ppl
    return new.figures.bytes < old.figures.bytes


def compress(
    source: str | Path,
    out: str | Path,
    text: Text,
    settings: CompressSettings | None = None,
    tell: Tell = silent,
    seed: int = 0,
    card: Card | None = None,
) -> CompressionReport:
    """Compresses a Hugging Face folder into `out`, which must not exist or be empty. `card` says where it came from.

    With a budget, OUT is the best model within it whose perplexity is at most (1 + max_increase)
    times the original's; without one, the smallest such model. Where no artefact passes, `accepted`
    is False, and OUT holds the smallest one that passed the gate on quality, or the original if
    none did. Raises UsageError, CheckpointError.
    """
    source, out = Path(source), Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError("the folder is not empty", where=str(out), fix="Name a new one")
    out.parent.mkdir(parents=True, exist_ok=True)
    # the working folder comes first: if OUT cannot be written, say so before the work
    with tempfile.TemporaryDirectory(prefix=".compress-", dir=out.parent) as work:
        compressor = Compressor(source, text, settings or CompressSettings(), tell, seed=seed, card=card)
        compressor.calibrate()
        search = SizeSearch(compressor, Path(work), compressor.overhead())
        search.explore()
        return search.finish(out)


__all__ = ["CompressionReport", "Compressor", "compress"]
