"""Training a student to say what its teacher says: the divergence of their predictions, in bounded memory.

    loss = (1 - hard) * T^2 KL(teacher || student, both at temperature T) + hard * cross-entropy
           + hidden * mean squared distance of the blocks' outputs, each divided by the teacher's mean square
             (of all blocks, or of the pairs that are named: a student may have fewer)

As with the plain cross-entropy, a chunk of tokens at a time goes through both heads and its
gradient is taken at once: logits of the whole batch never exist. Shapes: N tokens, D width, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent_forge.errors import UsageError
from agent_forge.forge.models import CognateForCausalLM
from agent_forge.forge.models.cross_entropy import missing_rows
from agent_forge.forge.progress import Tell, reporter, silent
from agent_forge.forge.quantization.bitlinear import head_matrix
from agent_forge.forge.training import Batch, Evaluation, PackedRows, TrainResult, TrainSettings, train
from agent_forge.forge.training.objective import context_for, has_plain_head, only_targets
from agent_forge.forge.training.packing import IGNORE
from agent_forge.forge.training.speed import compiled


def chunked_divergence(
    student: tuple[Tensor, Tensor],
    teacher: tuple[Tensor, Tensor],
    targets_N: Tensor,
    hard: float = 0.0,
    temperature: float = 1.0,
    chunk: int | None = None,
) -> Tensor:
    """The sum over targets (without those that are -100) of the loss above, without its hidden part.

    `student` and `teacher` are (hidden [N, D], head [V, D]); the widths may differ, the vocabulary
    may not. The gradient goes to the student's two only.
    """
    hidden, head = student
    if head.shape[0] != teacher[1].shape[0]:
        raise UsageError(
            f"the student has {head.shape[0]} tokens, the teacher {teacher[1].shape[0]}", fix="They need one tokenizer"
        )
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    goal = (teacher[0].to(dtype), teacher[1].to(dtype))
    size = chunk or (4096 if hidden.is_cuda else 512)
    total: Tensor = _ChunkedDivergence.apply(hidden.to(dtype), head, *goal, targets_N, hard, temperature, size)
    return total


class _ChunkedDivergence(torch.autograd.Function):
    """Takes the gradient in the forward pass; the backward pass only scales it."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        goal_hidden: Tensor,
        goal_head: Tensor,
        targets: Tensor,
        hard: float,
        temperature: float,
        chunk: int,
    ) -> Tensor:
        of_hidden, of_head = ctx.needs_input_grad[:2]  # below an adapter the head is fixed
        low, step = head.to(hidden.dtype), _step_of(hidden.device.type)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        hidden_grad = torch.empty_like(hidden) if of_hidden else None
        head_grad = torch.zeros_like(head, dtype=torch.float32) if of_head else None
        for start in range(0, hidden.shape[0], chunk):
            part = slice(start, start + chunk)
            loss, slope = step(hidden[part] @ low.T, goal_hidden[part] @ goal_head.T, targets[part], hard, temperature)
            total += loss
            if hidden_grad is not None:
                hidden_grad[part] = slope @ low
            if head_grad is not None:
                head_grad += slope.T @ hidden[part]
        ctx.save_for_backward(hidden_grad, head_grad)
        ctx.head_type = head.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        (scale,) = outer
        hidden_grad, head_grad = ctx.saved_tensors
        of_hidden = None if hidden_grad is None else hidden_grad * scale
        of_head = None if head_grad is None else (head_grad * scale).to(ctx.head_type)
        return of_hidden, of_head, None, None, None, None, None, None


def _loss_and_slope(
    logits: Tensor, goal_logits: Tensor, targets: Tensor, hard: float, temperature: float
) -> tuple[Tensor, Tensor]:
    """The chunk's summed loss, and its slope [chunk, V] on the student's logits, in their type."""
    real = targets != IGNORE
    target = torch.where(real, targets, 0)[:, None]
    wide = logits.float()
    soft = F.log_softmax(wide / temperature, dim=-1)
    goal = F.log_softmax(goal_logits.float() / temperature, dim=-1)
    likelihood = goal.exp()
    divergence = (likelihood * (goal - soft)).sum(-1) * temperature**2
    plain = soft if temperature == 1.0 else F.log_softmax(wide, dim=-1)
    losses = (1 - hard) * divergence - hard * plain.gather(1, target)[:, 0]
    right = torch.arange(logits.shape[-1], device=logits.device) == target
    slope = (1 - hard) * temperature * (soft.exp() - likelihood) + hard * (plain.exp() - right.float())
    return (losses * real).sum(), (slope * real[:, None]).to(logits.dtype)


@lru_cache(maxsize=2)
def _step_of(device: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """On a GPU one compiled kernel; on a CPU compiling would not pay."""
    if device != "cuda":
        return _loss_and_slope
    compiled = torch.compile(_loss_and_slope, dynamic=False)

    def step(
        logits: Tensor, goal_logits: Tensor, targets: Tensor, hard: float, temperature: float
    ) -> tuple[Tensor, Tensor]:
        more = missing_rows(len(logits))
        if not more:
            return compiled(logits, goal_logits, targets, hard, temperature)
        rows = (0, 0, 0, more)
        padded = F.pad(targets, (0, more), value=IGNORE)
        loss, slope = compiled(F.pad(logits, rows), F.pad(goal_logits, rows), padded, hard, temperature)
        return loss, slope[: len(logits)]

    return step


@dataclass
class Distillation:
    """The objective of `train`: the mean loss over a batch's targets. Any two causal LMs with one
    vocabulary."""

    teacher: nn.Module
    hard: float = 0.0
    hidden: float = 0.0
    temperature: float = 1.0
    blocks: Sequence[tuple[int, int]] | None = None  # the student's and the teacher's that are compared; None: all

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        real = (batch.targets != IGNORE).sum().clamp_min(1)
        here, there = zip(*self.blocks, strict=True) if self.blocks else (None, None)
        with ExitStack() as stack:
            mine = stack.enter_context(block_outputs(model, here)) if self.hidden else []
            states = head_states(model, batch)
            with torch.no_grad():
                theirs = stack.enter_context(block_outputs(self.teacher, there)) if self.hidden else []
                goal = head_states(self.teacher, batch)[-1]
        targets = only_targets(batch.inputs[..., None], batch)[1]
        losses = [chunked_divergence(state, goal, targets, self.hard, self.temperature) for state in states]
        total = torch.stack(losses).mean() / real
        if self.hidden:
            total = total + self.hidden * _distance(mine, theirs)
        return total


def head_states(model: Any, batch: Batch) -> list[tuple[Tensor, Tensor]]:
    """What goes into the head, and the head, for each answer of the model (a looped Cognate in
    training has several).

    A model whose logits are more than a matrix product returns the logits themselves, with the
    identity as head.
    """
    if not has_plain_head(model):
        logits = model(input_ids=batch.inputs, **context_for(model, batch), use_cache=False).logits.flatten(0, 1)
        return [(logits, torch.eye(logits.shape[-1], device=logits.device, dtype=logits.dtype))]
    output = model.base_model(input_ids=batch.inputs, **context_for(model, batch), use_cache=False)
    looped = isinstance(model, CognateForCausalLM) and model.training
    answers = output.answers if looped else (output.last_hidden_state,)
    if isinstance(model, CognateForCausalLM):
        answers = [model.head_down(answer) for answer in answers]
    head = head_matrix(model)
    return [(only_targets(answer, batch)[0], head) for answer in answers]


@contextmanager
def block_outputs(model: nn.Module, chosen: Sequence[int] | None = None) -> Iterator[list[Tensor]]:
    """Collects the outputs of the numbered blocks (all, or the chosen ones), in the order of their calls."""
    outputs: list[Tensor] = []
    blocks = [module for name, module in model.named_modules() if name.rpartition(".")[2].isdigit()]
    if chosen is not None:
        blocks = [blocks[number] for number in chosen]

    def collect(_: nn.Module, __: Any, output: Any) -> None:
        outputs.append(output[0] if isinstance(output, tuple) else output)

    hooks = [block.register_forward_hook(collect) for block in blocks]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()


def _distance(mine: list[Tensor], theirs: list[Tensor]) -> Tensor:
    if len(mine) != len(theirs) or any(a.shape != b.shape for a, b in zip(mine, theirs, strict=True)):
        raise UsageError("student and teacher have different blocks", fix="Distil without hidden states (hidden=0)")
    parts = [F.mse_loss(a.float(), b.float()) / b.float().square().mean() for a, b in zip(mine, theirs, strict=True)]
    return torch.stack(parts).mean()


@dataclass(frozen=True)
class PacedRows(PackedRows):
    """Rows that call back with the step they are taken for: a schedule of the model's own (its
    strength) follows the step, so a resumed run continues at the right place."""

    on_step: Callable[[int], None] = lambda _: None

    def batch(self, step: int, rows: int, seed: int) -> Batch:
        self.on_step(step)
        return super().batch(step, rows, seed)


def distil(
    student: nn.Module,
    teacher: nn.Module,
    rows: PackedRows,
    steps: int,
    *,
    settings: TrainSettings | None = None,
    hard: float = 0.0,
    hidden: float = 0.0,
    temperature: float = 1.0,
    folder: Path | None = None,
    evaluate: Callable[[nn.Module], Evaluation] | None = None,
    on_step: Callable[[int], None] = lambda _: None,
    stage: str = "distil",
    tell: Tell = silent,
) -> TrainResult:
    """Trains the student's parameters (those that require a gradient) towards the teacher for `steps` steps.

    `settings` has everything else about the run: rows per step, optimiser, schedule, patience,
    seed. The teacher is only read. With a `folder` the run resumes. Raises TrainingDiverged, with
    the last good weights restored.
    """
    settings = settings or TrainSettings(steps=steps, optimizer="compression", batch_rows=16, micro_rows=16)
    if settings.steps != steps:
        raise UsageError(f"steps is {steps}, and settings.steps {settings.steps}", where="distil")
    teacher.eval()
    report = reporter(stage, steps, tell)

    def begin(step: int) -> None:
        on_step(step)
        report(step)  # between two records of the loss a large model may take minutes

    with _compiled_teacher(teacher, settings, hidden):
        return train(
            student,
            PacedRows(rows.tokens, rows.documents, begin),
            settings,
            folder,
            evaluate=evaluate,
            on_record=lambda record: tell(**record),
            progress=None,
            loss=Distillation(teacher, hard, hidden, temperature),
        )


def _compiled_teacher(teacher: Any, settings: TrainSettings, hidden: float) -> AbstractContextManager[None]:
    """Where the student is compiled the teacher is too, unless its depth depends on the text or
    hooks watch it."""
    compiles = settings.compile if settings.compile is not None else next(teacher.parameters()).is_cuda
    adaptive = getattr(teacher.base_model, "halting", None) is not None
    return compiled(teacher) if compiles and not adaptive and not hidden else nullcontext()
