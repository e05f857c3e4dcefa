"""Prompt baking (2409.13697): a model behaves without a prompt u as it did with it.

    theta_u = argmin  sum over x0, y ~ P(. | u, x0), t  of  KL( P(. | y_<t, u, x0)  ||  P_theta_u(. | y_<t, x0) )

The teacher is the model as it is before its new adapter, reading the prompt; the student is the same
model with the adapter, not reading it. Both read the teacher's own answers y. The KL is over the
whole vocabulary and forward. What goes into the teacher's head is computed once, before anything
learns: the teacher needs no copy of the weights, and cannot follow the student.

Shapes: B rows, T tokens, N answer tokens of all rows, D width of the head's input, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agent_forge.context_length import context_length
from agent_forge.errors import AgentForgeError, UsageError
from agent_forge.forge.adapters import (
    add_adapter,
    load_adapter,
    merge_adapter,
    save_adapter,
    weaken_adapter,
    without_adapter,
)
from agent_forge.forge.baking.settings import BakeSettings
from agent_forge.forge.evaluation.generation import beginning
from agent_forge.forge.evaluation.text import Divergence, compare, device_of
from agent_forge.forge.progress import Tell, silent
from agent_forge.forge.quantization.distillation import chunked_divergence, head_states
from agent_forge.forge.training import Batch, HeldOut, PackedRows, TrainSettings, train
from agent_forge.forge.training.packing import IGNORE
from agent_forge.forge.training.sampling import sample
from agent_forge.inference.local_model import end_tokens
from agent_forge.inference.prompt import chat_prompt

READ_ROWS = 16  # rows that are read at once when nothing learns
CHUNK = 512  # answer tokens through both heads at once; the last chunk is padded to it, so that shapes stay the same


TRAJECTORIES = "trajectories.json"


class BakingError(AgentForgeError):
    """Teacher and student are not what baking needs: two different functions, one of them fixed."""


@dataclass(frozen=True)
class BakingPrompt:
    """What stands before a question: the system message, and questions already answered, as turns of the chat."""

    system: str = ""
    shown: tuple[tuple[str, str], ...] = ()  # (question, answer)

    def messages(self, question: str) -> list[dict[str, str]]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        turns = [
            {"role": role, "content": text}
            for pair in self.shown
            for role, text in zip(("user", "assistant"), pair, strict=True)
        ]
        return [*system, *turns, {"role": "user", "content": question}]


NO_PROMPT = BakingPrompt()


def question_tokens(model: Any, tokenizer: Any, question: str, prompt: BakingPrompt = NO_PROMPT) -> list[int]:
    """A question as the model reads it, by its chat template, after the prompt or without one."""
    tokens = chat_prompt(tokenizer, prompt.messages(question), ())
    first = beginning(model, tokenizer, None)
    return tokens if first is None or tokens[:1] == [first] else [first, *tokens]


@dataclass(frozen=True)
class TeacherAnswer:
    """One answer of the teacher, to the question of that number."""

    question: int
    tokens: tuple[int, ...]


def write(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    settings: BakeSettings,
    seed: int | None,
    copies: int = 1,
) -> list[list[int]]:
    """The tokens of `copies` answers to each prompt, end token included: samples, or without a seed the likeliest."""
    context, longest = context_length(model.config), max(map(len, prompts))
    if context is not None and longest + settings.answer_tokens > context:
        what = f"a prompt has {longest} tokens and an answer up to {settings.answer_tokens}"
        fix = "Shorten the prompt, or lower `answer_tokens`"
        raise UsageError(f"{what}, but the model reads {context}", where="baking", fix=fix)
    samples = sample(
        model,
        prompts,
        copies=copies,
        max_tokens=settings.answer_tokens,
        temperature=0.0 if seed is None else settings.temperature,
        end=sorted(end_tokens(model, tokenizer)),
        seed=seed or 0,
        batch=settings.write_rows,
    )
    return [row[written.bool()].tolist() for row, written in zip(samples.tokens, samples.mask, strict=True)]


@dataclass(frozen=True)
class AnswerRows(PackedRows):
    """Rows of what is read and the answer to it, padded on the right; `documents` numbers the answers' tokens, and is
    -1 for the rest. A batch has the answers' tokens as targets, and the number of each target as its document."""

    @classmethod
    def of(cls, contexts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], each: bool) -> AnswerRows:
        """Numbers every answer token (`each`), or every answer."""
        rows = list(zip(contexts, answers, strict=True))
        width = max(len(context) + len(answer) for context, answer in rows)
        tokens, documents = np.zeros((len(rows), width), np.int32), np.full((len(rows), width), -1, np.int32)
        done = 0
        for row, (context, answer) in enumerate(rows):
            start, end = len(context), len(context) + len(answer)
            tokens[row, :end] = [*context, *answer]
            documents[row, start:end] = np.arange(done, done + len(answer)) if each else row
            done += len(answer)
        return cls(tokens, documents)

    def take(self, rows: Any) -> Batch:
        tokens = torch.from_numpy(self.tokens[rows].astype(np.int64))
        documents = torch.from_numpy(self.documents[rows].astype(np.int64))[:, 1:]
        return Batch(tokens[:, :-1], tokens[:, 1:].masked_fill(documents < 0, IGNORE), documents)


def answer_states(model: Any, batch: Batch) -> list[tuple[Tensor, Tensor]]:
    """What goes into the head at the targets [N, D], and the head [V, D]; several where a looped Cognate learns."""
    real = (batch.targets != IGNORE).flatten()
    return [(state[real], head) for state, head in head_states(model, batch)]


@torch.no_grad()
def teacher_states(model: Any, rows: PackedRows) -> Tensor:
    """[N, D]: the teacher's side of the KL at every answer token, in the order of the rows."""
    model.eval()
    parts = [rows.take(slice(start, start + READ_ROWS)) for start in range(0, len(rows), READ_ROWS)]
    return torch.cat([answer_states(model, part.to(device_of(model)))[-1][0] for part in parts])


@dataclass
class PromptBaking:
    """The objective of `train`: the mean over answer tokens of KL(teacher || student). With `hard` = 1 it is the
    cross-entropy of the teacher's samples instead: the control, with the same rows, steps and cost."""

    states: Tensor  # of the teacher [N, D]
    hard: float = 0.0

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        real = batch.targets != IGNORE
        targets, goal = batch.targets[real], self.states[batch.documents[real]]
        spare = -len(targets) % CHUNK
        targets = nn.functional.pad(targets, (0, spare), value=IGNORE)
        goal = nn.functional.pad(goal, (0, 0, 0, spare))
        losses = []
        for state, head in answer_states(model, batch):
            if not state.requires_grad:
                raise BakingError("the student does not depend on the adapter", where="baking", fix="Switch it on")
            padded = nn.functional.pad(state, (0, 0, 0, spare))
            losses.append(chunked_divergence((padded, head), (goal, head.detach()), targets, self.hard, chunk=CHUNK))
        return torch.stack(losses).mean() / real.sum().clamp_min(1)


@dataclass(frozen=True)
class HeldOutAnswers:
    """What a prompted model answers to held-out questions, and what it predicted there, kept from before anything
    learned: the yardstick for every model that reads the same questions without the prompt."""

    plain: HeldOut
    prompted: AnswerRows
    states: Tensor  # [N, D]
    head: Tensor  # [V, D]

    @classmethod
    def of(
        cls,
        model: Any,
        tokenizer: Any,
        prompt: BakingPrompt,
        questions: Sequence[str],
        settings: BakeSettings,
        seed: int,
    ) -> HeldOutAnswers:
        prompted = [question_tokens(model, tokenizer, text, prompt) for text in questions]
        plain = [question_tokens(model, tokenizer, text) for text in questions]
        answers = write(model, tokenizer, prompted, settings, seed)
        rows = AnswerRows.of(plain, answers, each=False)
        sizes = tuple(len(answer) for answer in answers)  # the bytes are not needed
        read = AnswerRows.of(prompted, answers, each=False)
        with torch.no_grad():
            head = answer_states(model, read.take(slice(0, 1)).to(device_of(model)))[-1][1].detach()
        return cls(HeldOut(rows, sizes), read, teacher_states(model, read), head)

    def divergence(self, model: Any) -> Divergence:
        """KL(prompted teacher || model without prompt) in nats per answer token; the error is over questions."""

        def goals() -> Iterator[tuple[Tensor, Tensor]]:
            done = 0
            for start in range(0, len(self.prompted), READ_ROWS):
                count = int((self.prompted.documents[start : start + READ_ROWS] >= 0).sum())
                logits = self.states[done : done + count].float() @ self.head.float().T
                done += count
                yield logits, logits.argmax(-1)

        with torch.no_grad():
            return compare(model, goals(), self.plain, READ_ROWS).divergence

    @torch.no_grad()
    def refuse_one_function(self, model: Any) -> None:
        """Raises BakingError if the teacher has moved, or if the student is still the same function as before."""
        model.eval()
        device, rows = device_of(model), slice(0, READ_ROWS)
        read, plain = self.prompted.take(rows).to(device), self.plain.rows.take(rows).to(device)
        student = answer_states(model, plain)[-1][0]
        with without_adapter(model):
            teacher, before = answer_states(model, read)[-1][0], answer_states(model, plain)[-1][0]
        if not torch.allclose(teacher, self.states[: len(teacher)], rtol=1e-3, atol=1e-3):
            raise BakingError("the teacher has moved with the student: they share weights that learn", where="baking")
        if torch.equal(student, before):
            raise BakingError("the adapter changes nothing: teacher and student are one function", where="baking")


@dataclass(frozen=True)
class BakeReport:
    """One prompt baked in. The divergences are nats per answer token on held-out questions, without the prompt, from
    the model that read it; `closed` is the fraction of it that is gone."""

    prompt: BakingPrompt
    round: int
    before: float
    before_stderr: float | None
    after: float
    closed: float
    trajectories: int
    steps: int
    strength: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, fields: dict[str, Any]) -> BakeReport:
        return cls(**{**fields, "prompt": prompt_of(fields["prompt"])})


def prompt_of(fields: dict[str, Any]) -> BakingPrompt:
    """The prompt that `asdict` wrote."""
    return BakingPrompt(fields["system"], tuple((question, answer) for question, answer in fields["shown"]))


def bake(
    model: Any,
    tokenizer: Any,
    prompt: BakingPrompt,
    questions: Sequence[str],
    held_out: Sequence[str],
    settings: BakeSettings,
    folder: Path,
    *,
    seed: int = 0,
    keep: Sequence[str] = (),
    hard: float = 0.0,
    lessons: Path | None = None,
    tell: Tell = silent,
) -> list[BakeReport]:
    """Bakes a prompt into the model, in place. With `pursuit` above 1 the baked model gets the prompt again and is
    baked again. Returns a report for each round; its adapter is in `folder`/round-N/adapter.

    `keep` are questions that the model is to answer without any prompt as it does now; a share `replay` of the rows.
    `hard` = 1 makes it the control: supervised training on the answers in `lessons`, the folder of another bake.
    A run that was stopped continues from `folder`. Raises BakingError, TrainingDiverged, UsageError.
    """
    if prompt == NO_PROMPT:
        raise UsageError("there is no prompt to bake", where="baking")
    reports = []
    for number in range(1, settings.pursuit + 1):
        place = folder / f"round-{number}"
        done = place / "report.json"
        if done.is_file():
            load_adapter(model, place / "adapter")
            report = BakeReport.of(json.loads(done.read_text(encoding="utf-8")))
        else:
            at = seed + 1000 * (number - 1)
            answers = (lessons or folder) / place.name / TRAJECTORIES
            baking = Round(model, tokenizer, prompt, questions, settings, place, answers, at, keep, hard)
            report = replace(baking.run(held_out, tell), round=number)
            save_adapter(model, place / "adapter")
            done.write_text(json.dumps(report.as_dict()), encoding="utf-8")
        merge_adapter(model)
        reports.append(report)
    return reports


@dataclass
class Round:
    """One bake: the teacher answers, its predictions are kept, the student learns them without the prompt."""

    model: Any
    tokenizer: Any
    prompt: BakingPrompt
    questions: Sequence[str]
    settings: BakeSettings
    folder: Path
    answers: Path  # the file of the teacher's answers
    seed: int
    keep: Sequence[str] = ()
    hard: float = 0.0

    def run(self, held_out: Sequence[str], tell: Tell) -> BakeReport:
        model, settings = self.model, self.settings
        judged = HeldOutAnswers.of(model, self.tokenizer, self.prompt, held_out, settings, self.seed + 1)
        before = judged.divergence(model)
        trajectories = self.trajectories()
        rows, states = self.lesson(trajectories)
        steps = self.learn(rows, PromptBaking(states, self.hard), tell)
        weaken_adapter(model, settings.strength)
        judged.refuse_one_function(model)
        after = judged.divergence(model)
        closed = 1 - after.kl / before.kl if before.kl > 0 else 0.0
        figures = (before.kl, before.kl_stderr, after.kl, closed, len(trajectories), steps, settings.strength)
        return BakeReport(self.prompt, 1, *figures)

    def trajectories(self) -> list[TeacherAnswer]:
        """The teacher's answers, `samples` to each question; kept in a file, since a GPU may not repeat them. Those
        with a number beyond the questions answer what is to be kept, without the prompt."""
        s, file = self.settings, self.answers
        if not file.is_file():
            count, rows = len(self.questions), list[tuple[int, list[int]]]()
            replayed = min(len(self.keep), round(s.replay * count))
            for numbers in (range(count), range(count, count + replayed)):
                if numbers:
                    asked = [self.tokens(number) for number in numbers]
                    written = write(self.model, self.tokenizer, asked, s, self.seed + numbers[0], s.samples)
                    rows += zip([number for number in numbers for _ in range(s.samples)], written, strict=True)
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_suffix(".part")
            part.write_text(json.dumps(rows), encoding="utf-8")
            part.replace(file)
        return [TeacherAnswer(i, tuple(tokens)) for i, tokens in json.loads(file.read_text(encoding="utf-8"))]

    def tokens(self, number: int, prompted: bool = True) -> list[int]:
        """The question of that number as it is read, with the prompt unless it is one to keep."""
        if number < len(self.questions):
            text, prompt = self.questions[number], self.prompt if prompted else NO_PROMPT
        else:
            text, prompt = self.keep[number - len(self.questions)], NO_PROMPT
        return question_tokens(self.model, self.tokenizer, text, prompt)

    def lesson(self, trajectories: Sequence[TeacherAnswer]) -> tuple[AnswerRows, Tensor]:
        """What the student reads, and what the teacher predicted at each answer token [N, D]."""
        answers = [each.tokens for each in trajectories]
        prompted = [self.tokens(each.question) for each in trajectories]
        plain = [self.tokens(each.question, prompted=False) for each in trajectories]
        states = teacher_states(self.model, AnswerRows.of(prompted, answers, each=True))
        return AnswerRows.of(plain, answers, each=True), states

    def learn(self, rows: AnswerRows, objective: PromptBaking, tell: Tell) -> int:
        """Trains a new adapter; returns the number of steps."""
        s = self.settings
        torch.manual_seed(self.seed)
        add_adapter(self.model, s.lora)
        # Half-baking by an early stop: the warm-up-stable-decay schedule, cut off before it decays.
        steps, decay = (s.steps, 0.5) if s.stop == 1.0 else (max(1, round(s.stop * s.steps)), 0.0)
        rates = {"matrix_rule": "adamw", "lr": s.lr, "betas": (0.9, 0.99)}
        settings = TrainSettings(
            steps=steps, batch_rows=s.batch_rows, micro_rows=s.batch_rows, decay=decay, warmup=min(5, s.steps // 10),
            optimizer="baking", optimizer_changes=rates,
            log_every=max(1, steps // 10), save_every=max(1, steps // 4), seed=self.seed, divergence=50.0,
            compile=False, precision="float32",
        )  # fmt: skip
        return train(
            self.model, rows, settings, self.folder / "training", on_record=lambda record: tell(**record, steps=steps),
            progress=None, loss=objective,
        ).steps  # fmt: skip
