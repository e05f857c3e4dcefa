"""The training loop.

Read it from `train` down. A step takes the batch that belongs to it, adds up the gradients of its micro-batches, clips,
sets the learning rate and lets the optimiser move the weights. Around it: logging, evaluation, checkpoints, and what to
do when memory runs out or the loss does not stay finite.
"""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TextIO

import torch
from torch import Tensor, nn

from agent_forge.bf16 import is_faster
from agent_forge.errors import AgentForgeError
from agent_forge.forge.models import CognateForCausalLM
from agent_forge.forge.progress import training_figures
from agent_forge.forge.training import checkpoint as ck
from agent_forge.forge.training import parallel
from agent_forge.forge.training.averaging import WeightAverage
from agent_forge.forge.training.evaluation import Evaluation
from agent_forge.forge.training.objective import objective
from agent_forge.forge.training.optimizer import MuGrokfast
from agent_forge.forge.training.packing import IGNORE, Batch, PackedRows
from agent_forge.forge.training.qk_clip import clip_heads, largest_logits
from agent_forge.forge.training.replay import Replayed, cuda_graph
from agent_forge.forge.training.report import TrainingLog
from agent_forge.forge.training.schedule import schedule_factor
from agent_forge.forge.training.settings import TrainSettings
from agent_forge.forge.training.speed import Later, Meter, compiled
from agent_forge.terminal import ProgressDisplay

Evaluate = Callable[[nn.Module], Evaluation]
Objective = Callable[[nn.Module, Batch], Tensor]  # the mean loss over a batch's targets


class TrainingDiverged(AgentForgeError):
    """The loss ran away or is no longer finite. The model has the weights of `checkpoint`, the last good one."""

    checkpoint: Path | None = None


@dataclass
class TrainResult:
    """The result of a run. `best` and `final` are None without an evaluation."""

    steps: int
    tokens: int
    losses: list[float] = field(default_factory=list)  # of the logged steps
    final: Evaluation | None = None
    best: Evaluation | None = None
    best_step: int | None = None
    stopped_early: bool = False
    micro_rows: int = 0
    tokens_per_s: float | None = None  # median over the logged intervals after the first
    mfu: float | None = None
    peak_memory: int | None = None  # bytes, on a GPU


def train(
    model: nn.Module,
    data: PackedRows,
    settings: TrainSettings,
    folder: Path | None = None,
    evaluate: Evaluate | None = None,
    on_record: Callable[[dict[str, Any]], None] | None = None,
    progress: TextIO | None = sys.stderr,
    loss: Objective | None = None,
) -> TrainResult:
    """Trains `model` on `data`; with a `folder`, resumes from the last checkpoint in it and saves new ones there.

    `loss` replaces the next-token objective, for phases that distil or bake.

    Raises TrainingDiverged, with the last good weights put back into the model.
    """
    run = TrainingRun(model, data, settings, folder, evaluate, on_record, progress, loss)
    with run.prepared():
        while run.step < settings.steps and not run.stopped_early:
            run.learn(data.batch(run.step, settings.batch_rows, settings.seed))
            run.step += 1
            if run.step == run.first_step + 1:
                gc.freeze()  # compiled code is many objects, and every collection would walk through all of them
            if run.due(settings.log_every):
                run.log()
            if evaluate is not None and run.due(settings.evaluate_every):
                run.judge()
            if run.due(settings.save_every):
                run.save()
        return run.finish()


class RowSource(Protocol):
    """Where batches come from, as far as a run needs to know."""

    @property
    def length(self) -> int:
        """Tokens per row."""


class TrainingRun:
    """A training run and its progress."""

    def __init__(
        self,
        model: nn.Module,
        data: RowSource,
        settings: TrainSettings,
        folder: Path | None,
        evaluate: Evaluate | None,
        on_record: Callable[[dict[str, Any]], None] | None,
        progress: TextIO | None,
        loss: Objective | None,
    ) -> None:
        self.model, self.data, self.settings, self.folder = model, data, settings, folder
        self.evaluate, self.on_record = evaluate, on_record
        self.objective = loss or partial(objective, document_mask=settings.document_mask)
        self.rank, self.world = parallel.join()
        self.device = next(model.parameters()).device
        self.in_bf16 = is_faster(model) if settings.precision == "auto" else settings.precision == "bf16"
        self.optimizer = MuGrokfast.for_phase(model, settings.optimizer, **settings.optimizer_changes)
        self.average = WeightAverage(model, settings.ema) if settings.ema else None
        self.micro_rows = min(settings.micro_rows, settings.batch_rows)
        self.passes = Replayed(self._forward_backward, self.device, cuda_graph if self._recordable(loss) else None)
        self.step, self.stopped_early, self.evaluations_without_gain = 0, False, 0
        self.result = TrainResult(0, 0, micro_rows=self.micro_rows)
        self.pending: list[Later] = []  # losses since the last log
        self.norm: Tensor | None = None
        self.smooth, self.lowest = math.nan, math.inf
        self.display = None if progress is None or self.rank else ProgressDisplay(progress)
        self.rates: list[dict[str, float]] = []
        self.notes: dict[str, Any] = {}  # kept in every checkpoint for the loop around the run

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Sets the model up for training, resumes, and cleans up afterwards."""
        torch.manual_seed(self.settings.seed)
        parallel.same_start(self.model)
        self.model.train()
        if self.settings.gradient_checkpointing:
            self.model.gradient_checkpointing_enable()  # type: ignore[operator]
        self._clear_gradients()
        self._resume()
        self.log_file = TrainingLog(self.folder / "log.jsonl" if self.folder and self.rank == 0 else None, self.step)
        self.meter = Meter(self.model, self.data.length, self.device, self.in_bf16)
        self.first_step = self.step
        compile_layers = self.device.type == "cuda" if self.settings.compile is None else self.settings.compile
        try:
            with (
                compiled(self.model) if compile_layers else nullcontext(),
                self._fast_matrices(),
                self.display or nullcontext(),
            ):
                yield
        finally:
            gc.unfreeze()
            self.passes.forget()
            self._clear_gradients()
            self.model.eval()

    # ------------------------------------------------------------------------------------------------ one step

    def learn(self, batch: Batch) -> None:
        """One optimiser step on one batch."""
        self.meter.add(batch.inputs.numel())
        share = batch.every(self.world, self.rank)
        while True:
            try:
                loss = self._gradients(share, int((batch.targets != IGNORE).sum()))
                break
            except torch.OutOfMemoryError:
                self._halve_micro_batch()
        parallel.sum_over_processes([loss, *(p.grad for p in self.model.parameters() if p.grad is not None)])
        if self.settings.clip:
            self.norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        self._check(loss)
        s = self.settings
        factor = schedule_factor(self.step, s.steps, s.schedule, s.warmup, s.decay, s.floor)
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor
        self.optimizer.step()
        self._clear_gradients()
        if s.qk_clip and (self.step + 1) % s.qk_clip_every == 0:
            clip_heads(self.model, largest_logits(self.model, batch.inputs[:4].to(self.device)), s.qk_clip)
        if self.average is not None:
            self.average.update(self.model)

    def _gradients(self, batch: Batch, targets: int) -> Tensor:
        """The batch's mean loss, with its gradient added to the parameters; both whatever the micro-batch."""
        total = torch.zeros((), device=self.device)
        for part in batch.split(self.micro_rows):
            total += self.passes(part, int((part.targets != IGNORE).sum()) / max(1, targets), self.micro_rows)
        return total

    def _forward_backward(self, batch: Batch, weight: Tensor) -> Tensor:
        """The weighted loss of a micro-batch, with its gradient added to the parameters."""
        with self.precision():
            loss = self.objective(self.model, batch) * weight
        loss.backward()
        return loss.detach()

    def _clear_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=self.passes.recorded is None)  # a recording holds their addresses

    def _halve_micro_batch(self) -> None:
        if self.micro_rows == 1:
            fix = "Shorten the rows, or use gradient checkpointing"
            raise AgentForgeError("a single row does not fit into memory", where="train", fix=fix)
        self.micro_rows = max(1, self.micro_rows // 2)
        self.passes.forget()
        self._clear_gradients()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    # ------------------------------------------------------------------------------------------------ watching

    def _check(self, loss: Tensor) -> None:
        """Stops a run that has gone wrong. On a GPU the loss is read one step late: waiting would idle it."""
        self.pending.append(Later(loss))
        late = 1 if self.device.type == "cuda" else 0
        if len(self.pending) > late:
            value = self.pending[-1 - late].value()
            self.smooth = value if math.isnan(self.smooth) else 0.9 * self.smooth + 0.1 * value
            self.lowest = min(self.lowest, self.smooth)
            if not math.isfinite(value) or self.smooth > self.lowest + self.settings.divergence:
                raise self._diverged(value)

    def _diverged(self, value: float) -> TrainingDiverged:
        """The error to raise, after going back to the last good checkpoint where there is one."""
        last = next(reversed(ck.checkpoints(self.folder)), None) if self.folder else None
        fix = "Lower the learning rate, and save checkpoints to have something to go back to"
        if last is not None:
            ck.restore_weights(self.model, ck.load_checkpoint(last)[0]["model"])
            fix = "Lower the learning rate; the model has the weights of the last good checkpoint"
        error = TrainingDiverged(
            f"the loss is {value:.4g} at step {self.step + 1} (its lowest was {self.lowest:.4g})",
            where=str(self.folder or "train"),
            fix=fix,
        )
        error.checkpoint = last
        return error

    def due(self, every: int) -> bool:
        return every > 0 and self.step % every == 0

    def losses(self) -> list[float]:
        """The losses of the steps since the last call."""
        losses = [loss.value() for loss in self.pending]
        self.pending = self.pending[-1:] if self.device.type == "cuda" else []
        return losses

    def log(self) -> None:
        losses = self.losses()
        rate = self.meter.read()
        self.rates.append(rate)
        record: dict[str, Any] = {"step": self.step, "loss": losses[-1], "mean_loss": sum(losses) / len(losses)}
        record["lr"] = self.optimizer.param_groups[0]["lr"]
        record["gradient_norm"] = None if self.norm is None else float(self.norm)
        record["tokens"] = self.step * self.settings.batch_rows * self.data.length
        record.update(rate)
        self.result.losses.append(record["loss"])
        self.publish(record)
        if self.display is not None:
            self.display.update("train", self.step, self.settings.steps, unit="steps", detail=training_figures(record))

    def judge(self) -> None:
        """Evaluates (the weight average, if there is one), keeps the best, stops when there is no more gain."""
        if self.evaluate is None:
            return
        with self._evaluation_mode():
            evaluation = self.evaluate(self.model)
            best = self.result.best
            if best is None or evaluation.bits_per_byte < best.bits_per_byte - self.settings.least_gain:
                self.result.best, self.result.best_step, self.evaluations_without_gain = evaluation, self.step, 0
                if self.folder is not None and self.rank == 0:
                    ck.save_checkpoint(self.folder / "best", {"model": ck.weights_of(self.model)}, asdict(evaluation))
            else:
                self.evaluations_without_gain += 1
        self.result.final = evaluation
        self.publish({"step": self.step, "evaluation": asdict(evaluation)})
        self.stopped_early = 0 < self.settings.patience <= self.evaluations_without_gain
        self.meter.read()  # the time of the evaluation is not the training's

    def finish(self) -> TrainResult:
        if self.evaluate is not None and not (self.stopped_early or self.due(self.settings.evaluate_every)):
            self.judge()
        if self.folder is not None and not self.due(self.settings.save_every):
            self.save()
        result = self.result
        if self.stopped_early and self.folder is not None:
            ck.restore_weights(self.model, ck.load_checkpoint(self.folder / "best")[0]["model"])
        elif self.average is not None:
            self.average.settle(self.model)
        result.stopped_early = self.stopped_early
        result.steps, result.micro_rows = self.step, self.micro_rows
        result.tokens = self.step * self.settings.batch_rows * self.data.length
        rates = sorted(self.rates[1:] or self.rates, key=lambda rate: rate["tokens_per_s"])  # the first one warms up
        if rates:
            median = rates[len(rates) // 2]
            result.tokens_per_s, result.mfu = median["tokens_per_s"], median["mfu"]
        result.peak_memory = torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None
        return result

    def publish(self, record: dict[str, Any]) -> None:
        self.log_file.write(record)
        if self.on_record is not None:
            self.on_record(record)

    # ------------------------------------------------------------------------------------------------ saving

    def save(self) -> None:
        if self.folder is None or self.rank != 0:
            return
        moments, rest = ck.optimizer_tensors(self.optimizer)
        tensors = {"model": ck.weights_of(self.model), "optimizer": moments, "random": ck.random_state()}
        if self.average is not None:
            tensors["average"] = self.average.weights
        state = {
            "step": self.step,
            "micro_rows": self.micro_rows,
            "smooth": self.smooth,
            "lowest": self.lowest,
            "optimizer": rest,
            "average_updates": self.average.updates if self.average else 0,
            "evaluations_without_gain": self.evaluations_without_gain,
            "best": None if self.result.best is None else asdict(self.result.best),
            "best_step": self.result.best_step,
            "final": None if self.result.final is None else asdict(self.result.final),
            "notes": self.notes,
        }
        ck.save_checkpoint(self.folder / f"step-{self.step:08}", tensors, state)
        ck.remove_old(self.folder, self.settings.keep)

    def _resume(self) -> None:
        saved = ck.checkpoints(self.folder) if self.folder else []
        if not saved:
            return
        tensors, state = ck.load_checkpoint(saved[-1])
        ck.restore_weights(self.model, tensors["model"])
        ck.restore_optimizer(self.optimizer, tensors["optimizer"], state["optimizer"])
        if self.average is not None:
            self.average.weights = {name: w.to(self.device) for name, w in tensors["average"].items()}
            self.average.updates = state["average_updates"]
        self.step, self.micro_rows = state["step"], state["micro_rows"]
        self.notes = state.get("notes", {})
        self.smooth, self.lowest = state["smooth"], state["lowest"]
        self.evaluations_without_gain, self.result.best_step = state["evaluations_without_gain"], state["best_step"]
        self.stopped_early = 0 < self.settings.patience <= self.evaluations_without_gain
        self.result.best = Evaluation(**state["best"]) if state["best"] else None
        self.result.final = Evaluation(**state["final"]) if state.get("final") else None
        ck.restore_random(tensors["random"])

    # ------------------------------------------------------------------------------------------------ hardware

    def precision(self) -> Any:
        return torch.autocast(self.device.type, torch.bfloat16) if self.in_bf16 else nullcontext()

    def _recordable(self, loss: Objective | None) -> bool:
        """Whether a micro-batch always launches the same kernels. Cognate's own loss does, except with document masks
        and with checkpointing, which asks the GPU for its random state. The models of transformers look at their
        numbers, or make another mask while they are recorded: they work only if compiled whole: set `graph` to try."""
        s, cognate = self.settings, isinstance(self.model, CognateForCausalLM)
        safe = cognate and loss is None and not s.document_mask and not s.gradient_checkpointing
        return self.device.type == "cuda" and (safe if s.graph is None else s.graph)

    @contextmanager
    def _evaluation_mode(self) -> Iterator[None]:
        self.model.eval()
        average = self.average.applied(self.model) if self.average else nullcontext()
        eager = torch.compiler.set_stance("force_eager")  # other shapes: not worth compiling
        try:
            with average, self.precision(), eager:
                yield
        finally:
            self.model.train()

    @contextmanager
    def _fast_matrices(self) -> Iterator[None]:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if self.device.type == "cuda" else before)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
