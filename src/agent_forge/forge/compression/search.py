"""`compress`: the smallest model that is still good enough, or the best one within a byte budget.

    calibrate -> try every codec on every tensor -> allocate bytes -> write, load, measure -> distil -> measure -> ...

Every stage is written as the folder that would be shipped, loaded from there, and judged on held-out text. What fails
is thrown away, and the last artefact that passed is what OUT holds in the end: a failed stage costs its time alone.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from agent_forge.errors import CheckpointError, UsageError
from agent_forge.forge.checkpoint import count_parameters
from agent_forge.forge.compression import folder as folders
from agent_forge.forge.compression.allocation import Allocation, allocate, worthwhile
from agent_forge.forge.compression.codecs import raw
from agent_forge.forge.compression.container import Encoded, pack
from agent_forge.forge.compression.feedback import Cost
from agent_forge.forge.compression.judge import Figures, Judge, Stage, Tell
from agent_forge.forge.compression.loading import METHOD
from agent_forge.forge.compression.recovery import recover
from agent_forge.forge.compression.sensitivity import measure_costs
from agent_forge.forge.compression.text import Text
from agent_forge.forge.compression.trials import USUAL, Reference, Trial, plain_tensors, run_trials
from agent_forge.forge.evaluation.text import refuse_unsound
from agent_forge.forge.training.packing import PackedRows

NEAR = 0.97  # sizes this near to each other are not told apart
RECOVERED = 0.88  # of the size that passes without recovery: tried with it
STUDENT_BITS = 1.0
PRICE = 0.8  # of what a byte was worth: what a bit costs at the start of recovery, which then holds the size
STUDENT = "below about 1 bit a weight it is distillation into a smaller student, not compression"


@dataclass(frozen=True)
class Settings:
    """What is asked for, and how much work may go into it."""

    budget: int | None = None  # bytes of the whole folder
    max_increase: float = 0.3  # of the perplexity on held-out text
    codecs: Sequence[str] = USUAL
    recovery_steps: int = 100
    recovery_lr: float = 0.01  # of a grid's step
    calibration_rows: int = 256
    gradient_rows: int = 48  # of those, with gradients
    trial_tokens: int = 2048
    measured: int = 2  # options measured for each matrix, the others inferred; 0: all are measured
    batch_rows: int = 4
    length: int = 256
    questions: int = 100  # of multiple choice, made from the held-out text
    tries: int = 5  # artefacts that the search over sizes may measure
    seed: int = 0


# What a machine without a GPU can do in well under an hour, by the number of weights: few options are measured of a
# large model, which has many matrices and takes long for a token. Recovery helps where a hundred thousand tokens are
# many for the weights; with 25 M weights they took half of the time and brought nothing.
WORK: tuple[tuple[float, dict[str, int]], ...] = (
    (2e6, {"measured": 0}),
    (5e7, {"recovery_steps": 0}),
    (2.5e8, {"measured": 1, "trial_tokens": 512, "calibration_rows": 96, "gradient_rows": 16, "recovery_steps": 0}),
    (math.inf, {"measured": 1, "trial_tokens": 256, "calibration_rows": 32, "gradient_rows": 4, "recovery_steps": 0}),
)


def usual_work(source: Path) -> dict[str, int]:
    """How much work goes into a model unless it is said: settings that follow from its size and from the device."""
    if torch.cuda.is_available():
        return {"measured": 0, "trial_tokens": 4096, "recovery_steps": 600, "batch_rows": 32}  # 5 M tokens of recovery
    weights = count_parameters(source)
    return next(work for most, work in WORK if weights <= most)


@dataclass(frozen=True)
class Report:
    """What came out. `accepted` is True only for an artefact that passed every gate that was asked for."""

    bytes_before: int
    weights: int
    before: Judge
    kept: Figures
    accepted: bool
    stages: Sequence[Stage]
    least_passing: int | None
    reason: str

    def as_dict(self) -> dict[str, Any]:
        fp32 = 4 * self.weights
        return {
            "bytes_before": self.bytes_before,
            "bytes": self.kept.bytes,
            "ratio": self.bytes_before / self.kept.bytes,
            "ratio_to_fp32_weights": fp32 / self.kept.bytes,
            "bits_per_weight": 8 * self.kept.bytes / self.weights,
            "ppl_before": self.before.before.perplexity,
            "ppl": self.kept.ppl,
            "ppl_ratio": self.kept.ppl / self.before.before.perplexity,
            "ppl_ratio_stderr": self.kept.ppl_ratio_stderr,
            "bits_per_byte_before": self.before.before.bits_per_byte,
            "bits_per_byte": self.kept.bits_per_byte,
            "kl": self.kept.kl,
            "kl_stderr": self.kept.kl_stderr,
            "agreement": self.kept.agreement,
            "accuracy_before": None if self.before.choices is None else self.before.choices.value,
            "accuracy": self.kept.accuracy,
            "accuracy_stderr": self.kept.accuracy_stderr,
            "above_chance_before": None if self.before.choices is None else self.before.choices.above_chance,
            "above_chance": self.kept.above_chance,
            "accepted": self.accepted,
            "least_bytes_that_passed": self.least_passing,
            "reason": self.reason,
            "stages": [stage.as_dict() for stage in self.stages],
        }


class Search:
    """One model on its way through the sizes."""

    def __init__(
        self, source: Path, text: Text, settings: Settings, tell: Tell = lambda **_: None, original: Any = None
    ) -> None:
        self.source, self.text, self.settings, self.tell = source, text, settings, tell
        torch.manual_seed(settings.seed)
        self.model = load_original(source)
        self.weights = sum(weight.numel() for weight in self.model.parameters())
        self.original = self.model if original is None else original  # of a student: its teacher
        self.judge = Judge(self.original, text.held_out, settings.batch_rows, settings.questions)
        self.limit = (1 + settings.max_increase) * self.judge.before.perplexity
        self.stages: list[Stage] = []
        self.trials: dict[str, list[Trial]] = {}
        self.plain: dict[str, Encoded] = {}
        self.others = _non_weights(self.model)

    def calibrate(self) -> None:
        """Measures what errors cost, and tries every codec on every matrix."""
        first = PackedRows(
            *(x[: self.settings.calibration_rows] for x in (self.text.rows.tokens, self.text.rows.documents))
        )
        self.tell(stage="calibrate", step=0)
        costs = measure_costs(self.model, first, self.settings.batch_rows, self.settings.seed, self.text.rows,
                              self.settings.gradient_rows)  # fmt: skip
        reference = Reference(self.model, self._others(), self.settings.trial_tokens)
        self.trials = run_trials(self.model, costs, reference, self.settings.codecs,
                                 lambda **said: self.tell(stage="trials", **said), self.settings.measured)  # fmt: skip
        self.plain = {name: raw.encode(tensor, Cost()) for name, tensor in plain_tensors(self.model).items()}

    def _others(self) -> PackedRows:
        """Rows that were not calibrated on, to try the options with: errors must not hide in the calibration text."""
        start = min(self.settings.calibration_rows, len(self.text.rows) - 1)
        return PackedRows(self.text.rows.tokens[start:], self.text.rows.documents[start:])

    def overhead(self, folder: Path) -> int:
        """Writes everything but the weights, and says what it takes, heads of the weights' file included."""
        folders.write_config(self.source, folder)
        folders.write_tokenizer(self.source, folder, self.text.samples)
        entries = dict.fromkeys((*self.trials, *self.plain), b"")
        folders.write_weights(folder, entries, self.others)
        room = 27 * len(entries) + 8  # a length and two offsets in the head have up to ten digits, here one; alignment
        return folders.folder_bytes(folder) + room + sum(len(pack(encoded)) for encoded in self.plain.values())

    def smallest(self) -> int:
        return sum(worthwhile([trial.option for trial in of])[0].bytes for of in self.trials.values())

    def largest(self) -> int:
        return sum(worthwhile([trial.option for trial in of])[-1].bytes for of in self.trials.values())

    def allocated(self, room: int) -> Allocation | None:
        return allocate({name: [trial.option for trial in of] for name, of in self.trials.items()}, room)

    def encoded(self, allocation: Allocation) -> dict[str, Encoded]:
        chosen = {
            name: next(trial.encoded for trial in self.trials[name] if trial.option is option)
            for name, option in allocation.chosen.items()
        }
        return {**chosen, **self.plain}

    def write(self, folder: Path, tensors: Mapping[str, Encoded]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        folders.write_config(self.source, folder)
        folders.write_tokenizer(self.source, folder, self.text.samples)
        folders.write_weights(folder, {name: pack(encoded) for name, encoded in tensors.items()}, self.others)

    def stage(self, name: str, folder: Path, tensors: Mapping[str, Encoded]) -> Stage:
        """Writes, loads, measures; the figures are those of the folder."""
        start = time.perf_counter()
        self.write(folder, tensors)
        figures = self.judge.of_folder(folder)
        kinds = Counter(encoded.codec for encoded in tensors.values())
        done = Stage(name, figures, self.limit, self.settings.budget, time.perf_counter() - start, kinds)
        self.stages.append(done)
        self.tell(stage=name, bytes=figures.bytes, ppl=figures.ppl, kl=figures.kl, passed=done.passed)
        return done

    def recovered(self, tensors: Mapping[str, Encoded], price: float, room: int) -> dict[str, Encoded]:
        """The tensors after a short distillation, brought back into the room that they had."""
        latents = recover(
            self.original, self.model, tensors, self.text.rows, self.settings.recovery_steps,
            batch_rows=self.settings.batch_rows, lr=self.settings.recovery_lr, price=price, seed=self.settings.seed,
            tell=lambda **said: self.tell(stage="recover", **said),
        )  # fmt: skip
        for tighter in (0.0, 0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2):
            found = {name: latent.encoded(tighter) for name, latent in latents.items()}
            if sum(len(pack(encoded)) for encoded in found.values()) <= room:
                break
        return found


def load_original(source: Path) -> Any:
    """The model in float32 on the device at hand; one that is packed already is unpacked first."""
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"the model cannot be loaded: {error}", where=str(source)) from error
    if getattr(model, "is_quantized", False) and getattr(model, "quantization_method", "") != METHOD:
        model = model.dequantize(torch.float32)
    refuse_unsound(model, str(source))
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def _non_weights(model: Any) -> dict[str, Tensor]:
    """Buffers that a state dict holds: they are kept as they are."""
    names = dict(model.named_parameters(remove_duplicate=False))
    return {name: tensor.cpu() for name, tensor in model.state_dict().items() if name not in names}


@dataclass
class Progress:
    """The search over sizes: the best artefact so far, and where it lies."""

    search: Search
    work: Path
    out: Path
    fixed: int  # bytes of everything but the matrices
    kept: Stage | None = None
    least: int | None = None
    count: int = field(default=0)
    grew: list[tuple[int, float]] = field(default_factory=list)  # size, and logarithm of the perplexity's ratio

    def attempt(self, total: int, recover: bool = False) -> bool:
        """An artefact of at most `total` bytes: as it comes from the codecs, then after recovery. True if one passed
        the gate on quality (whether it is within the budget is asked at the end)."""
        allocation = self.search.allocated(total - self.fixed)
        if allocation is None:
            return False
        tensors = self.search.encoded(allocation)
        self.count += 1
        size = f"{total / 1e6:.3g} MB"
        passed = self._judge(f"codecs {size}", tensors)
        grew = self.search.stages[-1].figures.ppl / self.search.judge.before.perplexity
        self.grew.append((total, max(1e-9, math.log(grew))))
        if recover and self.search.settings.recovery_steps:
            room = total - self.fixed + sum(len(pack(encoded)) for encoded in self.search.plain.values())
            better = self.search.recovered(tensors, PRICE * allocation.price, room)
            passed = self._judge(f"recovered {size}", better) or passed
        return passed

    def guess(self, low: int, high: int) -> int:
        """Where between a size that failed and one that passed the gate should lie: the logarithm of the perplexity's
        ratio falls about exponentially with the size. Not too near either end, so that the two come together."""
        points = sorted(self.grew)
        if len(points) < 2:
            return int(math.sqrt(low * high))
        sizes, grew = np.array([size for size, _ in points]), np.log([more for _, more in points])
        order = np.argsort(grew)
        middle = float(
            np.interp(math.log(max(1e-9, math.log1p(self.search.settings.max_increase))), grew[order], sizes[order])
        )
        return int(np.clip(middle, low + 0.15 * (high - low), high - 0.1 * (high - low)))

    def _judge(self, name: str, tensors: Mapping[str, Encoded]) -> bool:
        folder = self.work / f"{len(self.search.stages)}"
        stage = self.search.stage(name, folder, tensors)
        if stage.good and (self.kept is None or _better(stage, self.kept, self.search.settings.budget)):
            self._keep(folder, stage)
        else:
            shutil.rmtree(folder)
        if stage.good:
            self.least = min(stage.figures.bytes, self.least or stage.figures.bytes)
        return stage.good

    def _keep(self, folder: Path, stage: Stage) -> None:
        if self.out.exists():
            shutil.rmtree(self.out)
        folder.rename(self.out)
        self.kept = stage


def _better(new: Stage, old: Stage, budget: int | None) -> bool:
    """Within the budget beats beyond it; within it the better model wins; without a budget, or beyond it, the
    smaller one."""
    if new.fits != old.fits:
        return new.fits
    if budget is not None and new.fits:
        return new.figures.ppl < old.figures.ppl
    return new.figures.bytes < old.figures.bytes


def compress(
    source: str | Path, out: str | Path, text: Text, settings: Settings | None = None, tell: Tell = lambda **_: None
) -> Report:
    """Compresses a Hugging Face folder into `out`, which must not exist or be empty.

    With a budget, OUT is the best model within it whose perplexity is at most (1 + max_increase) times the original's;
    without one, the smallest such model. Where no artefact passes, `accepted` is False, and OUT holds the smallest one
    that passed the gate on quality, or the original if none did. Raises UsageError, CheckpointError.
    """
    settings = settings or Settings()
    source, out = Path(source), Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError("the folder is not empty", where=str(out), fix="name a new one")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=".compress-", dir=out.parent
    ) as work:  # before the work: may it be written?
        search = Search(source, text, settings, tell)
        search.calibrate()
        empty = Path(work) / "empty"
        empty.mkdir()
        progress = Progress(search, Path(work), Path(work) / "kept", search.overhead(empty))
        _explore(progress)
        return _finished(progress, out)


def _explore(progress: Progress) -> None:
    """The sizes that are tried. With a budget that, with recovery. Where it fails, and without one: the least size
    that passes as it comes from the codecs, then smaller ones with recovery, which takes most of the time."""
    search, settings = progress.search, progress.search.settings
    most, least = progress.fixed + search.largest(), progress.fixed + search.smallest()
    target = least
    if settings.budget is not None:
        target = min(settings.budget, most)
        if target >= least and progress.attempt(target, recover=True):
            return
    if not progress.attempt(most):
        return
    low, high = max(target, least), most
    while progress.count < settings.tries and low < NEAR * high:
        middle = progress.guess(low, high)
        low, high = (low, middle) if progress.attempt(middle) else (middle, high)
    if settings.recovery_steps:
        _recover_smaller(progress, max(target, least), high)


def _recover_smaller(progress: Progress, least: int, passed: int) -> None:
    """With recovery a smaller artefact may pass: a step down, then another, or half a step back up."""
    first = max(least, int(RECOVERED * passed))
    second = RECOVERED**2 if progress.attempt(first, recover=True) else RECOVERED**0.5
    if max(least, int(second * passed)) != first:
        progress.attempt(max(least, int(second * passed)), recover=True)


def _finished(progress: Progress, out: Path) -> Report:
    search, kept = progress.search, progress.kept
    before = folders.folder_bytes(search.source)
    if kept is None:
        progress.out.mkdir()
        folders.copy_model(search.source, progress.out)
        score = search.judge.before
        quality = (score.perplexity, score.perplexity_stderr, score.bits_per_byte)
        asked = search.judge.choices
        answers = () if asked is None else (asked.value, asked.stderr, asked.above_chance)
        same = Figures(folders.folder_bytes(progress.out), *quality, 0.0, None, 1.0, *answers)
        kept = Stage("original", same, search.limit, search.settings.budget, 0.0)
    accepted = progress.kept is not None and kept.passed
    if out.exists():
        out.rmdir()
    progress.out.rename(out)
    reason = _reason(accepted, kept, progress, search)
    return Report(before, search.weights, search.judge, kept.figures, accepted, search.stages, progress.least, reason)


def _reason(accepted: bool, kept: Stage, progress: Progress, search: Search) -> str:
    if accepted:
        return f"passed: perplexity {kept.figures.ppl:.4g}, at most {search.limit:.4g} was asked for"
    if progress.least is None:
        return "no artefact passed the gate on quality: OUT is the original"
    budget = search.settings.budget or 0
    text = f"the budget of {budget:,} bytes was not reached: the least size that passed is {progress.least:,} bytes"
    return f"{text}; {STUDENT}" if 8 * budget / search.weights < STUDENT_BITS else text


__all__ = ["Report", "Search", "Settings", "compress", "usual_work"]
